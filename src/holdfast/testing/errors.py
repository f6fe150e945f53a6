"""What can go wrong with a cluster on this machine."""

from __future__ import annotations

from holdfast.model.errors import NotStored


class ClusterFailed(NotStored):
    """It did not start, or something that was waited for did not happen in time; the text has the logs' last lines."""

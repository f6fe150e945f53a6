"""What keeps a recovery from going on, with a stable code for each case."""

from __future__ import annotations

from holdfast.model.errors import CallerError


class RecoveryIncomplete(CallerError):
    """A recovery that was begun needs directories that were not given."""

    code = "recovery_incomplete"


class RecoveryChanged(CallerError):
    """The files of a recovery that was begun are not what they were, or the store is another one."""

    code = "recovery_changed"


class RecoveryUnsure(CallerError):
    """Messages may have been stored before, and the store that was given cannot tell."""

    code = "recovery_unsure"

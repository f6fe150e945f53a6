"""Files without a name, for what a task cannot hold in memory: gone with the task, however that ends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO


def scratch_file() -> IO[bytes]:
    """On a disk that Spark was given for such things, where it runs: a directory for temporary files may be memory."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return tempfile.TemporaryFile(prefix="holdfast-recover-", dir=given if given and Path(given).is_dir() else None)

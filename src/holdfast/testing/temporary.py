"""A directory that is gone with the process that made it, also when that is killed.

A shell waits for the other end of a pipe to close, which the kernel does for a process however it ends, and deletes
the directory then. It tries for a while, since processes that still write there are ended at the same moment.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Final

_DELETE: Final = 'read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" 2>/dev/null && exit; sleep 0.2; done'


class TemporaryDirectory:
    """Made at once; `remove` deletes it, or the end of this process does."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._janitor = subprocess.Popen(
            ["sh", "-c", _DELETE, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def remove(self) -> None:
        """Returns when it is gone."""
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()

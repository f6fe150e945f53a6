"""Wall clocks that jump, one for each node, by libfaketime and a file; clocks that only go forwards stay true."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PLACES: Final = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
)


def library() -> Path | None:
    for pattern in _PLACES:
        for found in Path("/").glob(pattern.removeprefix("/")):
            return found
    return None


def why_not() -> str | None:
    """Why clocks cannot jump here; `None` if they can."""
    return None if library() is not None else "needs libfaketime (of the system's package of that name)"


def forget(pid: int) -> None:
    """Take away what libfaketime leaves of a process that was killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)


class Clock:
    """What one node takes for the time of day; it begins as the machine's own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """For the node; empty where there is no libfaketime."""
        found = library()
        if found is None:
            return {}
        return {
            "LD_PRELOAD": str(found),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            # The file is looked at again after so many seconds.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            # Its remedy for an old C library makes waits for the interpreter lock end at once: threads spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, ahead_s: int) -> None:
        """So many seconds ahead of the machine's clock, or behind it."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n", "ascii")
        new.replace(self._file)

"""A process and all that it has started: the CPU time of all together, and the memory they hold at most."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

# Looking at what a large process holds takes its time.
LOOK_S: Final = 1.0


class Watch:
    """Looks again and again while the context lasts. Pages that several share are counted once."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._cpu_s: dict[int, float] = {}
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """Until now; processes that have ended count as they were last seen."""
        self._look()
        return sum(self._cpu_s.values())

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()
            self.peak_bytes = max(self.peak_bytes, sum(map(_held_bytes, family(self._pid))))

    def _look(self) -> None:
        self._cpu_s |= {pid: used for pid in family(self._pid) if (used := used_s(pid)) > 0}


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text("ascii").split():
                found += family(int(child))
        except OSError:
            continue
    return found


def used_s(pid: int, *, with_ended: bool = False) -> float:
    """CPU time of a process, if wanted with that of children that have ended; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / os.sysconf("SC_CLK_TCK")


def _held_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)

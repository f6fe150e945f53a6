"""What it costs to make one append to each of n files durable, in five ways (decision 0003).

Run: `python -m benchmarks.experiments.syncing [DIRECTORY]`
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_APPEND = b"x" * 1000
_ROUNDS = 50
_FILES = (1, 4, 16, 64, 256)
_PREALLOCATED_BYTES = 1 << 20

Sync = Callable[[list[int]], None]


def main() -> None:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=parent) as directory, ThreadPoolExecutor(16) as pool:
        journal = os.open(Path(directory) / "journal", os.O_RDWR | os.O_CREAT)
        syncfs = ctypes.CDLL(None).syncfs

        def one_by_one(files: list[int]) -> None:
            for fd in files:
                os.fdatasync(fd)

        def through_journal(files: list[int]) -> None:
            os.write(journal, _APPEND * len(files))
            os.fdatasync(journal)

        ways: list[tuple[str, Sync, bool]] = [
            ("fdatasync, one after the other", one_by_one, False),
            ("the same, preallocated", one_by_one, True),
            ("fdatasync from 16 threads", lambda files: list(pool.map(os.fdatasync, files)).clear(), False),
            ("syncfs", lambda files: syncfs(files[0]), False),
            ("one shared journal", through_journal, False),
        ]
        print(f"{'p50, ms':32s}" + "".join(f"{count:>9d}" for count in _FILES))
        for name, sync, preallocated in ways:
            costs = [_p50_ms(Path(directory), count, sync, preallocated=preallocated) for count in _FILES]
            print(f"{name:32s}" + "".join(f"{cost:9.2f}" for cost in costs))
        os.close(journal)


def _p50_ms(directory: Path, count: int, sync: Sync, *, preallocated: bool) -> float:
    files = [os.open(directory / str(number), os.O_RDWR | os.O_CREAT | os.O_TRUNC) for number in range(count)]
    for fd in files:
        if preallocated:
            os.pwrite(fd, bytes(_PREALLOCATED_BYTES), 0)
        os.fsync(fd)
    seconds = []
    for turn in range(_ROUNDS):
        started = time.perf_counter()
        for fd in files:
            os.pwrite(fd, _APPEND, turn * len(_APPEND))
        sync(files)
        seconds.append(time.perf_counter() - started)
    for fd in files:
        os.close(fd)
    return statistics.median(seconds) * 1000


if __name__ == "__main__":
    main()

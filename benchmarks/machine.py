"""What the figures were measured on: enough to judge them, nothing that says whose machine it is."""

import os
import platform
import re
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.process import scratch

SYNCS = 100
SYNC_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    cpu: str
    memory_gb: float
    kernel: str
    filesystem: str
    fsync_p50_ms: float
    fsync_p50_ms_after: float
    python: str
    load_before: float

    @property
    def fsync_ms(self) -> float:
        """The quicker of the two: others on the disk only ever make it slower."""
        return min(self.fsync_p50_ms, self.fsync_p50_ms_after)

    def __str__(self) -> str:
        return (
            f"{self.cores} cores {self.cpu}, {self.memory_gb:.0f} GB, Linux {self.kernel}, "
            f"{self.filesystem} with fsync {self.fsync_ms:.2f} ms, Python {self.python}"
        )


def describe(directory: Path | None) -> Machine:
    with scratch(directory) as path:
        return Machine(
            cores=len(os.sched_getaffinity(0)),
            cpu=_cpu_model(),
            memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
            kernel=_kernel(),
            filesystem=_filesystem(path),
            fsync_p50_ms=_fsync_p50_ms(path),
            fsync_p50_ms_after=float("inf"),
            python=platform.python_version(),
            load_before=os.getloadavg()[0],
        )


def again(before: Machine, directory: Path | None) -> Machine:
    """The same machine after the run."""
    with scratch(directory) as path:
        return replace(before, fsync_p50_ms_after=_fsync_p50_ms(path))


def _kernel() -> str:
    found = re.match(r"\d+(\.\d+)*", platform.release())
    return found[0] if found else "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(path: Path) -> str:
    """The type of the mount that `path` lies on: the longest mount point that leads to it."""
    best_length, kind = -1, "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, mount_kind, *_ = line.split()
        if path.is_relative_to(mount_point) and len(mount_point) > best_length:
            best_length, kind = len(mount_point), mount_kind
    return kind


def _fsync_p50_ms(path: Path) -> float:
    """An appended block and its fdatasync, which is what a broker waits for."""
    descriptor = os.open(path / "sync", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    block, times_s = bytes(SYNC_BYTES), []
    try:
        for _ in range(SYNCS):
            os.write(descriptor, block)
            start = time.perf_counter()
            os.fdatasync(descriptor)
            times_s.append(time.perf_counter() - start)
    finally:
        os.close(descriptor)
    return statistics.median(times_s) * 1000

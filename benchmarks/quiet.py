"""Was the machine ours while we measured? Processor time that others used during a run, from the kernel.

Everything the suite starts is its child and is waited for before a run ends, so the process times of the
suite hold all of its own use. What the machine was busy beyond that was somebody else (or the kernel's
own threads, which write our pages back).
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

# Above this share a run counts as disturbed and is done again.
FOREIGN_SHARE_MAX = 0.10
ATTEMPTS_MAX = 3
WAIT_S_MAX = 10.0
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Moment:
    at_s: float
    machine_busy_s: float
    own_s: float


def now() -> Moment:
    times = os.times()
    own_s = times.user + times.system + times.children_user + times.children_system
    return Moment(time.monotonic(), machine_busy_s(Path("/proc/stat").read_text()), own_s)


def machine_busy_s(stat: str) -> float:
    """Seconds all cores together were not idle, stolen time included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def foreign_share(before: Moment, after: Moment) -> float:
    """The part of the machine that others had between two moments, 0 to 1."""
    cores = os.cpu_count() or 1
    available_s = (after.at_s - before.at_s) * cores
    foreign_s = (after.machine_busy_s - before.machine_busy_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, foreign_s / available_s)) if available_s > 0 else 0.0


def wait() -> None:
    """Let dirty pages reach the disk, then wait, not for ever, until nobody else is busy."""
    os.sync()
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        before = now()
        time.sleep(LOOK_S)
        if foreign_share(before, now()) <= FOREIGN_SHARE_MAX:
            return

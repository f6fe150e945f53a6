"""Pseudo computing: keeps a processor core busy for a random time and leaves the message as it is.

It stands for the work an edge broker does on each message before it forwards it, 50 to 150 ms in the
usual setting. The time is wall-clock time spent computing, not sleeping.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from holdfast.model.messages import StoredMessage

# Steps between two looks at the clock: some microseconds.
_STEPS = 200


def busy(duration_s: float, clock: Callable[[], float] = time.perf_counter) -> int:
    """Compute until `duration_s` have passed; returns how many steps that took."""
    end = clock() + duration_s
    state = steps = 1
    while clock() < end:
        for _ in range(_STEPS):
            state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        steps += _STEPS
    return steps


class Compute:
    """A processor function: computes for a uniformly distributed time, returns the value unchanged."""

    def __init__(self, ms_min: float, ms_max: float, seed: int | None = None) -> None:
        assert 0 <= ms_min <= ms_max
        self._ms_min = ms_min
        self._ms_max = ms_max
        self._dice = random.Random(seed)

    def duration_s(self) -> float:
        """The next message's duration."""
        return self._dice.uniform(self._ms_min, self._ms_max) / 1000

    def __call__(self, message: StoredMessage) -> bytes:
        busy(self.duration_s())
        return message.value

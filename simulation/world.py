"""Virtual time and chance: everything that happens is an event in one heap, and every choice comes from one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

TICK_MS = 10.0
STEPS_MAX = 300_000


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class World:
    """The clock, the dice, the counts and the trace of one run."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.dice = Random(seed)
        self.now_ms = 0.0
        self.counts: Counter[str] = Counter()
        self.is_traced = is_traced
        self.trace: list[str] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def after(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self._planned += 1
        heappush(self._events, (self.now_ms + delay_ms, self._planned, action, arguments))

    def run_until(self, end_ms: float) -> None:
        """Let everything happen that is planned before `end_ms`."""
        events = self._events
        steps = 0
        while events and events[0][0] <= end_ms:
            self.now_ms, _, action, arguments = heappop(events)
            action(*arguments)
            steps += 1
            if steps > STEPS_MAX:
                raise Violation("everything ends", f"{steps} steps and no end")
        self.now_ms = end_ms
        self.counts["steps"] += steps

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    def note(self, text: str) -> None:
        """A line of the trace; ask `is_traced` first, for making the text is not free."""
        self.trace.append(f"{self.now_ms:10.2f}  {text}")

"""Those who queue behind a spill that is being emptied are answered at the pace at which it is.

A local disk takes messages faster than a store takes them back: with publishers that push as fast as they are answered
a spill would grow for ever, beside a store that is well. So for every two messages that are stored again one may be
kept anew; who comes with more is answered later, in order, though never later than a push may take. What is answered
is on the disk long before, so nothing hangs on it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

# How many may be kept for each one that is stored again.
_SHARE: Final = 0.5
# Neither is more saved up, nor owed: pushes come in bursts, and who pushed too much does not pay for ever.
_SAVED_MAX: Final = 5_000
_OWED_MAX: Final = 10_000


class _Due(NamedTuple):
    until_s: float
    messages: int
    answer: Callable[[], None]


class Pacing:
    """`limit_s` is how long a push may take."""

    def __init__(self, limit_s: Callable[[], float]) -> None:
        self._limit_s = limit_s
        # How many messages may be kept now; below nothing while too many were.
        self._room = 0.0
        self._due: deque[_Due] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def stored(self, count: int) -> None:
        """So many are stored again."""
        self._room = min(self._room + _SHARE * count, _SAVED_MAX)
        while self._due and self._room >= 0:
            self._answer_first()

    def answer(self, count: int, answer: Callable[[], None]) -> None:
        """Call `answer` when those who pushed so many may go on."""
        self._due.append(_Due(time.monotonic() + self._limit_s(), count, answer))
        self.stored(0)
        if self._due and self._timer is None:
            self._set_timer()

    def release(self) -> None:
        """Nobody queues any more: the spill is empty, or the store is away."""
        while self._due:
            self._answer_first()
        self._room = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer_first(self) -> None:
        first = self._due.popleft()
        self._room = max(self._room - first.messages, -_OWED_MAX)
        first.answer()

    def _set_timer(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        while self._due and self._due[0].until_s <= now_s:
            self._answer_first()
        if self._due:
            self._timer = asyncio.get_running_loop().call_later(self._due[0].until_s - now_s, self._set_timer)

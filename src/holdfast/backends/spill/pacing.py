"""Those who queue behind a spill that is being emptied are answered at the pace at which it is.

A local disk takes messages faster than a store takes them back: with publishers that push as fast as they are answered
a spill would grow for ever, beside a store that is well. So for every two messages that are stored again one may be
kept anew; who comes with more is answered later, in order, though never later than a push may take. What is answered
is on the disk long before, so nothing hangs on it. While nothing is stored again nobody waits: that would help nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.model.limits import MESSAGES_PER_BATCH_MAX

# How many may be kept for each one that is stored again.
_SHARE: Final = 0.5
# Neither is more saved up, nor owed: pushes come in bursts, and who pushed too much does not pay for ever. But all of
# the largest push there may be is paid for.
_SAVED_MAX: Final = 5_000
_OWED_MAX: Final = MESSAGES_PER_BATCH_MAX


class _Due(NamedTuple):
    until_s: float
    messages: int
    answer: Callable[[], None]


class Pacing:
    """`limit_s` is how long a push may take."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_moving = False
        # How many messages may be kept now; below nothing while too many were.
        self._room = 0.0
        self._due: deque[_Due] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def stored(self, count: int) -> None:
        """So many are stored again."""
        self._is_moving = True
        self._make_room(count)

    def _make_room(self, count: int) -> None:
        self._room = min(self._room + _SHARE * count, _SAVED_MAX)
        while self._due and self._room >= 0:
            self._answer_first()

    def answer(self, count: int, since_s: float, answer: Callable[[], None]) -> None:
        """Call `answer` when those who pushed so many, and have waited since then, may go on."""
        if not self._is_moving:
            answer()
            return
        until_s = since_s + self._limit_s
        self._due.append(_Due(until_s, count, answer))
        self._make_room(0)
        # One that waited before it came here may have to be answered before others that are in front of it.
        if self._due and (self._timer is None or until_s < self._timer_s):
            self._set_timer(until_s)

    def release(self) -> None:
        """Nobody queues any more: the spill is empty, or not being emptied."""
        self._is_moving = False
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

    def _set_timer(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = until_s
        self._timer = asyncio.get_running_loop().call_later(until_s - time.monotonic(), self._answer_late)

    def _answer_late(self) -> None:
        """Those who may not wait any longer, and all before them."""
        self._timer = None
        now_s = time.monotonic()
        for _ in range(max((place for place, each in enumerate(self._due, 1) if each.until_s <= now_s), default=0)):
            self._answer_first()
        if self._due:
            self._set_timer(min(each.until_s for each in self._due))

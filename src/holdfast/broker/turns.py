"""The event loop, shared among those with much to do: many readers, and large requests, do not delay everybody else.

One message can wake ten thousand readers, and a large batch keeps each of them busy for a while. What they do between
two looks at the network has a bound: readers whose turn has not come wait for a later round of the loop. How many go on
in one round follows from how long the last ones took.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

# So long all readers together may take of one round of the loop.
_ROUND_S: Final = 0.01
# Readers that are let on together, at first and at most.
_AT_ONCE: Final = 1
_AT_ONCE_MAX: Final = 256
# Readers that are let on beside a part of a large request, at least.
_BESIDE_REQUEST: Final = 16


class Turns:
    """Take a turn before each piece of work that keeps the loop busy."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        # One of these goes on in each round.
        self._requests: deque[asyncio.Future[None]] = deque()
        self._round: asyncio.Handle | None = None
        self._began_s = 0.0
        self._at_once = _AT_ONCE
        # Whether a part of a request went on in this round. How long that takes says nothing about readers.
        self._had_request = False

    async def take(self) -> None:
        await self._take(self._waiting)

    async def take_for_request(self) -> None:
        """The same for a part of a large request: one of these goes on in each round, however many readers wait."""
        await self._take(self._requests)

    async def _take(self, line: deque[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        if self._round is None:
            self._began_s = loop.time()
            self._round = loop.call_soon(self._begin_round, loop)
        elif line or loop.time() - self._began_s >= _ROUND_S:
            turn: asyncio.Future[None] = loop.create_future()
            line.append(turn)
            await turn

    def _begin_round(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        if not self._waiting and not self._requests:
            self._round, self._at_once, self._had_request = None, _AT_ONCE, False
            return
        took_s = now_s - self._began_s
        if took_s > _ROUND_S:
            self._at_once = max(_BESIDE_REQUEST if self._had_request else 1, self._at_once // 2)
        elif took_s < _ROUND_S / 2:
            self._at_once = min(_AT_ONCE_MAX, 2 * self._at_once)
        self._began_s = now_s
        self._had_request = bool(self._requests)
        _let_on(self._requests, 1)
        _let_on(self._waiting, self._at_once)
        self._round = loop.call_soon(self._begin_round, loop)


def _let_on(line: deque[asyncio.Future[None]], count: int) -> None:
    while line and count:
        turn = line.popleft()
        # One that was cancelled does not go on.
        if not turn.done():
            turn.set_result(None)
            count -= 1

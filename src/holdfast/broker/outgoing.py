"""What all connections together hold of messages that were written to them and not taken: one bound over them all.

A reader gets a piece, takes it, and gets the next one; an answer is held until the last of it is taken. As long as
readers take what they get, there is room for everybody. Where there is none, nobody is given anything more: readers
wait, in their order, and front ends close the connections that take next to nothing (`is_short`, `Taking`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from holdfast.broker.turns import Turns
from holdfast.model.limits import (
    OUTGOING_BYTES_MAX,
    SUBSCRIBER_BUFFER_BYTES_MAX,
    SUBSCRIBER_PIECE_BYTES_MIN,
    SUBSCRIBER_PIECES_BYTES,
)

# So long a connection may take next to nothing while others wait for room. Seconds, because that is what a packet takes
# that is lost three times.
STALL_S: Final = 5.0


def piece_bytes(connections: int) -> int:
    """How much a reader is given at once where there are so many connections."""
    share = SUBSCRIBER_PIECES_BYTES // max(1, connections)
    return max(SUBSCRIBER_PIECE_BYTES_MIN, min(SUBSCRIBER_BUFFER_BYTES_MAX, share))


class Outgoing:
    """Counts bytes that front ends hold, and lets readers on while there is room."""

    def __init__(self, turns: Turns, bytes_max: int = OUTGOING_BYTES_MAX) -> None:
        self._turns = turns
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._letting_on: asyncio.Handle | None = None

    @property
    def is_short(self) -> bool:
        """Whether readers wait for room: who does not take what it was given is in their way."""
        return bool(self._waiting)

    def hold(self, count: int) -> None:
        """So many bytes more are held; less where it is negative."""
        self.bytes_held += count
        if self._waiting and self._letting_on is None and self._has_room:
            self._letting_on = asyncio.get_running_loop().call_soon(self._let_on)

    async def room(self) -> None:
        """Wait for a turn on the event loop, and for room to hold more. What is made then is counted at once."""
        await self._turns.take()
        if not self._waiting and self._has_room:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        finally:
            if turn.cancelled() and turn in self._waiting:
                self._waiting.remove(turn)

    @property
    def _has_room(self) -> bool:
        return self.bytes_held < self.bytes_max

    def _let_on(self) -> None:
        """One at a time: what it makes counts before the next one is looked at."""
        self._letting_on = None
        while self._waiting and self._has_room:
            turn = self._waiting.popleft()
            # Who gave up does not go on.
            if not turn.done():
                turn.set_result(None)
                self._letting_on = asyncio.get_running_loop().call_soon(self._let_on)
                return


class Taking:
    """Whether one client takes what was written to it: in some seconds a whole piece, or half of what is left."""

    def __init__(self) -> None:
        # What was left, and when.
        self._seen: tuple[int, float] | None = None

    def forget(self) -> None:
        """It has taken everything."""
        self._seen = None

    def has_stalled(self, left_bytes: int, now_s: float) -> bool:
        """Looked at every now and then, while others wait for room."""
        if self._seen is not None:
            seen_bytes, since_s = self._seen
            if left_bytes > max(seen_bytes // 2, seen_bytes - SUBSCRIBER_BUFFER_BYTES_MAX):
                return now_s - since_s > STALL_S
        self._seen = left_bytes, now_s
        return False

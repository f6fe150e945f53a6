"""What all connections together hold of messages that were written to them and not taken: one bound over them all.

A subscriber is given a piece, takes it, and is given the next one. Pieces are so small that all of them together have a
bound of their own (`piece_bytes`), so they are not counted here and never wait. Larger things are: answers over HTTP,
and messages that are larger than a piece. Half of the room is for whoever comes first. When that is used, answers are
short, and front ends close the connections that take next to nothing (`is_short`, `Taking`), so that there is room for
everybody who reads. When all of it is used, large things wait in their order.

A read takes a while. While half of the room is free, as much as it may give is held before it, and given back when it
is known how large it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final, NamedTuple

from holdfast.model.limits import (
    OUTGOING_BYTES_MAX,
    SUBSCRIBER_BUFFER_BYTES_MAX,
    SUBSCRIBER_PIECE_BYTES_MIN,
    SUBSCRIBER_PIECES_BYTES,
)

# How long a connection may take next to nothing while room is short. A packet that is lost three times takes seconds.
STALL_S: Final = 5.0


def piece_bytes(connections: int) -> int:
    """How much a reader is given at once where there are so many connections."""
    share = SUBSCRIBER_PIECES_BYTES // max(1, connections)
    return max(SUBSCRIBER_PIECE_BYTES_MIN, min(SUBSCRIBER_BUFFER_BYTES_MAX, share))


class _Waiting(NamedTuple):
    size: int
    turn: asyncio.Future[None]


class Outgoing:
    """Counts the bytes that front ends hold, and lets readers of large things on while there is room."""

    def __init__(self, bytes_max: int = OUTGOING_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._waiting: deque[_Waiting] = deque()

    @property
    def is_short(self) -> bool:
        """Whether connections that take nothing are in the way of others."""
        return bool(self._waiting) or self.bytes_held > self.bytes_max // 2

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be held now, and nobody waits for room."""
        return not self._waiting and self._fits(size)

    def _fits(self, size: int) -> bool:
        """Where nothing is held, anything fits."""
        return self.bytes_held + size <= self.bytes_max or not self.bytes_held

    def has_ample_room(self, size: int) -> bool:
        """Whether half of the room is enough for so many bytes more."""
        return not self._waiting and self.bytes_held + size <= self.bytes_max // 2

    def hold(self, count: int) -> None:
        """So many bytes more are held; less where it is negative."""
        self.bytes_held += count
        if count < 0:
            self._let_on()

    async def room(self, size: int) -> None:
        """Wait until so many bytes more may be held, and hold them."""
        if self.has_room(size):
            self.bytes_held += size
            return
        waiting = _Waiting(size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.cancelled():
                # It may have been passed over already.
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiting)
                self._let_on()
            else:
                self.hold(-size)  # its turn had come
            raise

    def _let_on(self) -> None:
        """In their order: the first one is not passed over because it is large."""
        while self._waiting and self._fits(self._waiting[0].size):
            size, turn = self._waiting.popleft()
            # Cancelled a moment ago, and not gone yet.
            if not turn.done():
                self.bytes_held += size
                turn.set_result(None)


class Taking:
    """Whether one client takes what was written to it: in some seconds a whole piece, or half of what is left."""

    def __init__(self) -> None:
        # What was left, and when.
        self._seen: tuple[int, float] | None = None

    def forget(self) -> None:
        """It has taken everything."""
        self._seen = None

    def has_stalled(self, left_bytes: int, now_s: float) -> bool:
        """Looked at every now and then, while room is short."""
        if self._seen is not None:
            seen_bytes, since_s = self._seen
            if left_bytes > max(seen_bytes // 2, seen_bytes - SUBSCRIBER_BUFFER_BYTES_MAX):
                return now_s - since_s > STALL_S
        self._seen = left_bytes, now_s
        return False

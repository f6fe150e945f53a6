"""One connection to a receiver: lines out, acknowledgements in, and nothing else in either direction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from holdfast.model.errors import BadCommand
from holdfast.model.limits import SUBSCRIBER_BUFFER_BYTES_MAX
from holdfast.wire.callbacks import ACK_LINE_BYTES_MAX, count_acks, not_an_ack


class Owner(Protocol):
    """Whose connection it is."""

    @property
    def unacknowledged(self) -> int: ...

    def on_acks(self, count: int) -> None:
        """Raises `BadCommand` where that many were not sent."""
        ...

    def on_room(self) -> None: ...
    def on_lost(self, connection: ReceiverConnection, why: str, *, is_nonsense: bool) -> None: ...
    def on_opened(self) -> None:
        """It holds a socket, also where nobody waits for it any more."""
        ...

    def on_hung_up(self) -> None:
        """It holds no socket any more."""
        ...


class ReceiverConnection(asyncio.Protocol):
    """Told to its owner once when it is over."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._half_line = b""
        self._is_paused = False
        self._is_over = False
        # Why it is over, and whether nonsense was answered; for an owner that did not have it yet.
        self.end: tuple[str, bool] | None = None
        self._transport: asyncio.Transport
        self.write: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.on_opened()
        self._transport.set_write_buffer_limits(high=SUBSCRIBER_BUFFER_BYTES_MAX)
        self.write = self._transport.write

    @property
    def has_room(self) -> bool:
        return not self._is_paused and not self._is_over

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        end = data.rfind(b"\n") + 1
        try:
            if end:
                self._owner.on_acks(count_acks(self._half_line + data[:end], self._owner.unacknowledged))
                self._half_line = data[end:]
            else:
                self._half_line += data
            if len(self._half_line) > ACK_LINE_BYTES_MAX:
                raise not_an_ack(self._half_line)
        except BadCommand as error:
            self.drop(error.message, is_nonsense=True)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._owner.on_room()

    def drop(self, why: str, *, is_nonsense: bool = False) -> None:
        """End it at once: what is not acknowledged is sent again, over another one."""
        self._transport.abort()
        self._end(why, is_nonsense=is_nonsense)

    def close(self) -> None:
        """End it without a word to the owner, who knows."""
        self._is_over = True
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.on_hung_up()
        why = "the receiver closed the connection" if exc is None else f"the connection was lost: {exc}"
        self._end(why, is_nonsense=False)

    def _end(self, why: str, *, is_nonsense: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self.end = (why, is_nonsense)
            self._owner.on_lost(self, why, is_nonsense=is_nonsense)

"""A receiver without `await`: messages cross from the loop's thread many at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from holdfast.client.errors import ClientClosed
from holdfast.client.loop_thread import LoopThread
from holdfast.client.receiver import ReceivedMessage, Receiver

# Crossing from thread to thread costs far more than a message does.
_TAKE_MESSAGES_MAX: Final = 1000
# Who works slowly on many says this often how far it is, or they would be sent again.
_TELL_S: Final = 1.0


class BlockingReceiver:
    """`Receiver` without `await`: `with BlockingReceiver("127.0.0.1:9000") as receiver`, then iterate over it."""

    def __init__(self, address: str) -> None:
        self._wanted = address
        self._thread = LoopThread()
        # Taken from the receiver and not handed out yet.
        self._ready: deque[ReceivedMessage] = deque()
        # How many messages were handed out before the last one that was asked for: these are processed.
        self._finished = 0
        self._said_s = 0.0
        try:
            self._receiver = self._thread.run(self._open())
        except BaseException:
            self._thread.stop()
            raise

    async def _open(self) -> Receiver:
        return await Receiver(self._wanted).__aenter__()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._receiver.address

    def __enter__(self) -> BlockingReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_running:
            # The one that was worked on when an error came is not processed; those before it are.
            self._thread.run(self._done(self.handed_out if error is None else self._finished))
        self.close()

    @property
    def handed_out(self) -> int:
        """How many messages `get` has returned."""
        return self._receiver.handed_out - len(self._ready)

    def done(self) -> None:
        """Everything that was handed out is processed; asking for more says the same."""
        self._thread.run(self._done(self.handed_out))
        self._said_s = time.monotonic()

    def close(self) -> None:
        """Listen no more, and hang up. What is not processed comes again, to whoever listens there next."""
        if self._thread.is_running:
            self._thread.run(self._receiver.close())
            self._thread.stop()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            try:
                yield self.get()
            except ClientClosed:
                return

    def get(self) -> ReceivedMessage:
        """The next message; those before it are processed. Raises `ClientClosed`."""
        self._finished = self.handed_out
        if not self._ready:
            self._thread.run(self._take())
            self._said_s = time.monotonic()
        elif time.monotonic() - self._said_s > _TELL_S:
            self.done()
        return self._ready.popleft()

    async def _take(self) -> None:
        self._ready += await self._receiver.get_many(_TAKE_MESSAGES_MAX)

    async def _done(self, through: int) -> None:
        if through > self._receiver.processed:
            self._receiver.done(through - self._receiver.processed)

"""What was read ahead: batches as they came, bounded by bytes and by messages.

Batches stay undecoded until somebody asks for them, so what is buffered takes the memory it took on the
wire. A reader starts to read while there is room, so the bound is exceeded by at most one read for each
partition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from holdfast.client.errors import ClientClosed


class RawBatch(NamedTuple):
    """A stored batch, of which the messages from `first_offset` on are wanted."""

    partition: int
    first_offset: int
    message_count: int
    data: memoryview


class Buffer:
    """Several readers put in, one subscription takes out, in the order of arrival."""

    def __init__(self, bytes_max: int, messages_max: int) -> None:
        self.size_bytes = 0
        self.message_count = 0
        self._bytes_max = bytes_max
        self._messages_max = messages_max
        self._batches: deque[RawBatch] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> None:
        """Wait until less is buffered than may be."""
        await self._room.wait()

    def put(self, batch: RawBatch) -> None:
        self._batches.append(batch)
        self._count(batch, 1)
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Whoever takes gets the error, once, behind all that came before it."""
        self._error = error
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def take(self) -> RawBatch:
        """The next batch. Raises what a reader failed with, and `ClientClosed` after the end."""
        while True:
            if self._closed:
                raise ClientClosed("the subscription is closed")
            if self._batches:
                batch = self._batches.popleft()
                self._count(batch, -1)
                return batch
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._news.clear()
            await self._news.wait()

    def _count(self, batch: RawBatch, sign: int) -> None:
        self.size_bytes += sign * len(batch.data)
        self.message_count += sign * batch.message_count
        if self.size_bytes < self._bytes_max and self.message_count < self._messages_max:
            self._room.set()
        else:
            self._room.clear()

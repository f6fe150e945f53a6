"""Following a topic: pollers read every partition ahead, the subscription hands out what they found.

With a name, the broker keeps the position: the cursor moves behind what was acknowledged. Without one,
the subscription is live and forgotten when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType

from holdfast.client.acks import Acks
from holdfast.client.addresses import Addresses
from holdfast.client.api import Api, Place
from holdfast.client.buffer import Buffer
from holdfast.client.errors import ClientClosed
from holdfast.client.limits import POLL_CONNECTIONS_MAX, POLL_WAIT_S, READ_BYTES_MAX, READ_BYTES_MIN
from holdfast.client.message import Message, MessageBatch
from holdfast.client.poller import Poller
from holdfast.client.pool import Pool
from holdfast.client.scout import Scout
from holdfast.client.starts import cursor_positions, live_positions, source_of
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import PartitionId
from holdfast.model.names import cursor_name, topic_name

_log = logging.getLogger("holdfast.client")


class Subscription:
    """Messages of one topic, in order within each partition. Use it with `async with`."""

    def __init__(
        self,
        api: Api,
        addresses: Addresses,
        topic: str,
        name: str | None,
        start: Place,
        *,
        buffer_bytes_max: int,
        buffer_messages_max: int,
        opened: set[Subscription],
    ) -> None:
        self.topic = topic_name(topic)
        self.name = None if name is None else cursor_name(name)
        self._api = api
        self._addresses = addresses
        self._start = start
        # Where the client keeps what it has to close; it also keeps the pollers from being collected.
        self._opened = opened
        self._buffer_bytes_max = buffer_bytes_max
        self._buffer = Buffer(buffer_bytes_max, buffer_messages_max)
        self._pool: Pool | None = None
        self._scout: Scout | None = None
        self._acks: Acks | None = None
        self._pollers: dict[int, Poller] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._batch: MessageBatch | None = None
        self._ready: deque[Message] = deque()
        self._delivered: dict[int, int] = {}
        self._closed = False

    async def __aenter__(self) -> Subscription:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(quietly=error is not None)

    async def open(self) -> None:
        """Find out where to begin. What is published after this returns is delivered."""
        if self._pollers or self._closed:
            raise ClientClosed("a subscription is opened once; subscribe again")
        source = await source_of(self._api, self.topic)
        if self.name is None:
            positions = await live_positions(self._api, source, self._start)
        else:
            positions = await cursor_positions(self._api, source.topic, self.name, self._start)
            self._acks = Acks(self._api, source.topic, self.name, positions)
        connections = min(len(positions), POLL_CONNECTIONS_MAX)
        self._pool = Pool(self._addresses, connections)
        crowded = len(positions) > connections
        self._scout = Scout(self._api, source.topic) if crowded else None
        read_bytes = min(READ_BYTES_MAX, max(READ_BYTES_MIN, self._buffer_bytes_max // connections))
        for number, position in positions.items():
            self._delivered[number] = position
            self._pollers[number] = Poller(
                self._api,
                self._pool,
                PartitionId(source.topic, number),
                position,
                self._buffer,
                read_bytes=read_bytes,
                wait_s=0.0 if crowded else POLL_WAIT_S,
                scout=self._scout,
                on_gap=self._lost,
            )
        self._opened.add(self)
        self._start_pollers()

    async def close(self, *, quietly: bool = False) -> None:
        """Send what was acknowledged and stop; `quietly` where an error is under way already."""
        if self._closed:
            return
        self._closed = True
        self._opened.discard(self)
        self._buffer.close()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        if self._scout is not None:
            await self._scout.close()
        if self._pool is not None:
            await self._pool.close()
        if self._acks is None:
            return
        try:
            await self._acks.flush()
        except HoldfastError as error:
            if not quietly:
                raise
            _log.warning("the last acknowledgements of %s on %s are not stored: %s", self.name, self.topic, error)
        finally:
            await self._acks.close()

    # --- taking messages ----------------------------------------------------------------------------

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        if not self._ready:
            try:
                await self._fill()
            except ClientClosed:
                if self._closed:
                    raise StopAsyncIteration from None
                raise
        return self._hand_out()

    async def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or `None` if there is none within `timeout_s`."""
        messages = await self.take(1, timeout_s)
        return messages[0] if messages else None

    async def take(self, messages_max: int = 1000, timeout_s: float | None = None) -> list[Message]:
        """The next messages, at least one, at most `messages_max`; none if none came within `timeout_s`."""
        if not self._ready:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._fill()
            except TimeoutError:
                return []
        return [self._hand_out() for _ in range(min(messages_max, len(self._ready)))]

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Whole batches instead of messages, for those who read in bulk."""
        while True:
            try:
                yield await self.take_batch()
            except ClientClosed:
                if self._closed:
                    return
                raise

    async def take_batch(self) -> MessageBatch:
        """The next batch, or what is left of one of which messages were taken."""
        if self._batch is not None and self._ready:
            batch = self._batch.rest_from(self._ready[0].offset)
            self._ready.clear()
        else:
            batch = await self._next_batch()
        self._delivered[batch.partition] = batch.next_offset
        return batch

    # --- acknowledging ------------------------------------------------------------------------------

    async def ack_all(self) -> None:
        """Say that everything handed out so far is done; returns once the broker has stored that."""
        await self.ack_below(self._delivered)

    async def ack_below(self, offsets: dict[int, int]) -> None:
        """Say that everything below these offsets, by partition, is done; returns once it is stored."""
        if self._acks is None:
            return
        for partition, end in offsets.items():
            self._acks.all_done_below(partition, min(end, self._delivered[partition]))
        await self._acks.flush()

    # --- inner --------------------------------------------------------------------------------------

    def _hand_out(self) -> Message:
        message = self._ready.popleft()
        self._delivered[message.partition] = message.offset + 1
        return message

    async def _fill(self) -> None:
        batch = await self._next_batch()
        self._batch = batch
        self._ready.extend(batch.messages)

    async def _next_batch(self) -> MessageBatch:
        self._start_pollers()
        raw = await self._buffer.take()
        return MessageBatch(self.topic, raw.partition, raw.data, raw.first_offset, self._acks)

    def _start_pollers(self) -> None:
        """Start those that do not run: all of them at first, later the ones that gave up."""
        if self._closed or not self._pollers:
            raise ClientClosed("the subscription is not open; use it with 'async with'")
        if len(self._tasks) == len(self._pollers):
            return
        for number, poller in self._pollers.items():
            if number not in self._tasks:
                task = asyncio.create_task(poller.run(), name=f"reading {self.topic}/{number}")
                self._tasks[number] = task
                task.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        del self._tasks[number]
        error = task.exception()
        assert error is not None, "pollers run until they fail or are cancelled"
        self._buffer.fail(error)

    def _lost(self, partition: int, start: int, end: int) -> None:
        """Messages that no reader will ever get count as done, or the cursor would wait for them."""
        if self._acks is not None:
            self._acks.done(partition, start, end)

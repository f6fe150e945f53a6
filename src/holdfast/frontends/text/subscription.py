"""One subscription of one text connection: reads the log at its own pace and writes lines.

A durable subscription has a name and a cursor under it. Its cursor moves when a message is delivered, which
here means that the subscriber's machine has acknowledged the bytes: the text protocol has no acknowledgement
of its own, so the kernel's count of unacknowledged bytes stands in for it. What was only written, but not
taken over there, is delivered again after a reconnect.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from holdfast.broker.broker import Broker
from holdfast.broker.delivery_marks import DELIVERED
from holdfast.broker.follower import Delivery, Follower
from holdfast.broker.processing import source_id
from holdfast.model.errors import HoldfastError, Internal, TakenOver
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.limits import SUBSCRIBER_BUFFER_BYTES_MAX
from holdfast.wire import record_batch
from holdfast.wire.text import Dialect, lines_with_ids

# How often the cursor of a busy durable subscription is moved.
_CONFIRM_INTERVAL_S = 0.02
_CACHE_BYTES_MAX = 8 * 1024 * 1024
# What an entry costs besides its lines: most deliveries to a fast reader are one short line.
_CACHE_ENTRY_BYTES = 512


class Outlet(Protocol):
    """What a subscription needs of its connection."""

    def write(self, data: bytes) -> None: ...
    def written_bytes(self) -> int: ...
    def taken_bytes(self) -> int: ...
    async def drained(self) -> None: ...


class LineCache:
    """Lines for the newest deliveries, so that a hundred subscribers at the tail cost one decoding."""

    def __init__(self, dialect: Dialect, *, is_epoch_told: bool = False, is_source_told: bool = False) -> None:
        self._dialect = dialect
        # Whether what a processor made goes by the id of the message it was made of.
        self._is_source_told = is_source_told
        # Whether ids that are made here hold the epoch: see `record_batch.default_id`.
        self._is_epoch_told = is_epoch_told
        self._lines: OrderedDict[tuple[object, ...], tuple[bytes, int]] = OrderedDict()
        self._bytes = 0

    def lines(self, topic: str, source: TopicName, delivery: Delivery, *, with_ids: bool = False) -> tuple[bytes, int]:
        """The lines of a delivery, and how many they are."""
        key = (topic, source, delivery.partition, delivery.offset, delivery.next_offset, delivery.cuts, with_ids)
        cached = self._lines.get(key)
        if cached is not None:
            return cached
        if with_ids:
            messages = [
                message for batch in delivery.batches for message in self._ids_and_values(batch, delivery.partition)
            ]
            del messages[: delivery.skip]
            made = (lines_with_ids(topic.encode(), messages), len(messages))
        else:
            values = [value for batch in delivery.batches for value in record_batch.decode_values(batch)]
            del values[: delivery.skip]
            made = (self._dialect.lines(topic.encode(), values), len(values))
        self._lines[key] = made
        self._bytes += len(made[0]) + _CACHE_ENTRY_BYTES
        while self._bytes > _CACHE_BYTES_MAX:
            self._bytes -= len(self._lines.popitem(last=False)[1][0]) + _CACHE_ENTRY_BYTES
        return made

    def _ids_and_values(self, batch: memoryview, partition: int) -> list[tuple[str, bytes]]:
        """What a subscriber with ids gets of a batch; without a publisher's id in it, no record is looked into."""
        if record_batch.has_ids(batch):
            messages = record_batch.decode(batch, partition, is_epoch_told=self._is_epoch_told)
            if self._is_source_told:
                return [(source_id(message) or message.id, message.value) for message in messages]
            return [(message.id, message.value) for message in messages]
        head = record_batch.header(batch)
        epoch = head.leader_epoch if self._is_epoch_told else None
        values = enumerate(record_batch.decode_values(batch), head.base_offset)
        return [(record_batch.default_id(partition, Offset(offset), epoch), value) for offset, value in values]

    def forget(self, source: TopicName) -> None:
        """A topic of that name is new: lines of one before it stand at the same offsets."""
        for key in [key for key in self._lines if key[1] == source]:
            self._bytes -= len(self._lines.pop(key)[0]) + _CACHE_ENTRY_BYTES


class Subscription:
    """Runs as a task until it is stopped, its cursor is taken over, or its topic is deleted."""

    def __init__(
        self,
        broker: Broker,
        outlet: Outlet,
        cache: LineCache,
        topic: str,
        cursor: CursorName | None,
        *,
        with_ids: bool = False,
    ) -> None:
        self.topic = topic
        self.cursor = cursor
        self.with_ids = with_ids
        self._broker = broker
        self._outlet = outlet
        self._cache = cache
        self._source = broker.delivers_from(topic)
        # Taken now, not when the task gets its turn: the next line may publish already. In a topic that
        # does not exist yet, everything is still to come.
        # What is published from now on: all of it where the topic is yet to be made.
        from_now_on = "earliest" if broker.backend.topic(self._source) is None else "latest"
        self._start: str | dict[int, Offset] = broker.end_positions(self._source) or from_now_on
        # Whether others go on where it ends: it has no cursor of its own then.
        self._is_marked = cursor is None and broker.backend.delivers_where_led
        self._unconfirmed: deque[tuple[int, int, Offset]] = deque()
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_lost = self._taken_over
        self._lost = False

    async def open(self) -> Follower:
        """Find where to start. Raises `HoldfastError`; nothing is left behind then."""
        broker = self._broker
        await broker.ensure_topic(self.topic)
        if self._source != self.topic:
            await broker.ensure_topic(self._source)
        if self.cursor is not None:
            # Whoever read through it before stops, and stores how far it came, before we look.
            broker.cursor_claims.claim((self._source, self.cursor), self._on_lost)
            positions = await broker.open_cursor(self.topic, self.cursor, self._start)
        elif isinstance(self._start, str):
            positions = await broker.positions(self._source, self._start)
        else:
            positions = self._start
        if self._is_marked:
            broker.delivery_marks.joined(self._source, self, positions)
        return broker.follow(self._source, positions, place=self.cursor or DELIVERED)

    def start(self, follower: Follower, on_end: Callable[[Subscription, HoldfastError], None]) -> None:
        if self._lost:  # while it was being opened
            follower.close()
            on_end(self, self._why_lost())
            return
        self._broker.stats.subscriptions += 1
        self._task = asyncio.get_running_loop().create_task(self._run(follower, on_end))
        # Not in the task itself, which may be cancelled before its first step.
        self._task.add_done_callback(lambda task: self._ended(task, follower, on_end))

    def stop(self) -> None:
        """End it; a durable one goes on later after what was delivered until now."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self.confirm()
        self._release()

    def _release(self) -> None:
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
        if self.cursor is not None:
            self._broker.cursor_claims.release((self._source, self.cursor), self._on_lost)
        if self._is_marked:
            self._broker.delivery_marks.left(self._source, self)
        self._unconfirmed.clear()

    async def _run(self, follower: Follower, on_end: Callable[[Subscription, HoldfastError], None]) -> None:
        try:
            while True:
                delivery = await follower.next(SUBSCRIBER_BUFFER_BYTES_MAX)
                lines, count = self._cache.lines(self.topic, self._source, delivery, with_ids=self.with_ids)
                self._outlet.write(lines)
                self._broker.stats.count_delivery(count, len(lines))
                if self.cursor is not None or self._is_marked:
                    self._unconfirmed.append((self._outlet.written_bytes(), delivery.partition, delivery.next_offset))
                    self._confirm_later()
                await self._outlet.drained()
        except HoldfastError as error:
            self._release()
            on_end(self, error)

    def _ended(
        self, task: asyncio.Task[None], follower: Follower, on_end: Callable[[Subscription, HoldfastError], None]
    ) -> None:
        self._broker.stats.subscriptions -= 1
        follower.close()
        if task.cancelled():
            if self._lost:
                on_end(self, self._why_lost())
            return
        bug = task.exception()
        if bug is not None:
            # Ours, and for the log; but the subscriber must not wait for ever.
            asyncio.get_running_loop().call_exception_handler({"message": "a subscription failed", "exception": bug})
            on_end(self, Internal("the subscription failed inside the broker, whose log says how; subscribe again"))

    def confirm(self) -> None:
        """Move the cursor behind everything the subscriber's machine has taken."""
        taken = self._outlet.taken_bytes()
        positions: dict[int, Offset] = {}
        while self._unconfirmed and self._unconfirmed[0][0] <= taken:
            _, partition, next_offset = self._unconfirmed.popleft()
            positions[partition] = next_offset
        if positions and self._is_marked:
            self._broker.delivery_marks.taken(self._source, self, positions)
        elif positions and self.cursor is not None:
            try:
                stored = self._broker.ack_cursor(self.topic, self.cursor, positions)
            except HoldfastError:
                return  # the topic or the cursor was deleted meanwhile: there is nothing to move
            stored.add_done_callback(self._count_failure)

    def _count_failure(self, stored: asyncio.Future[None]) -> None:
        """A cursor that could not be stored means a second delivery later, not a loss: count it, go on."""
        error = None if stored.cancelled() else stored.exception()
        if isinstance(error, HoldfastError):
            self._broker.stats.errors[error.code] += 1

    def _confirm_later(self) -> None:
        if self._confirm_timer is None:
            self._confirm_timer = asyncio.get_running_loop().call_later(_CONFIRM_INTERVAL_S, self._confirm_now)

    def _confirm_now(self) -> None:
        self._confirm_timer = None
        self.confirm()
        if self._unconfirmed:
            self._confirm_later()

    def _why_lost(self) -> TakenOver:
        return TakenOver(
            f"subscription {self.cursor} to {self.topic} was taken over, moved or deleted; subscribe again"
        )

    def _taken_over(self) -> None:
        self._lost = True
        self.stop()

"""The dedupe windows of partitions, read from the log, and kept warm where this node may have to lead next.

A window is a consequence of the log alone, so it outlives a reign: a node that leads a partition (again) reads
only what it has not read yet. On nodes that follow, `warm` does that all the time for partitions whose messages
have ids: a new leader would otherwise read ten minutes of log before it could answer its first publisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.broker.backend import Backend
from holdfast.broker.dedupe import DedupeWindow
from holdfast.model.errors import DamagedData, HoldfastError, OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic
from holdfast.wire import record_batch

_READ_BYTES = 256 * 1024


class _Known:
    """One partition's window: how far the log was read into it, and the reign in which it may be used."""

    def __init__(self, window: DedupeWindow, read_to: Offset, old_below: Offset) -> None:
        self.window = window
        self.read_to = read_to
        # What stood there at first is as old as its timestamp says; what came later is as old as it is known here.
        self.old_below = old_below
        self.reign: int | None = None
        # Reading twice at once would remember everything twice.
        self.reading = asyncio.Lock()


class DedupeWindows:
    """Windows by partition. One is used only by the leader, and only once it has read everything before its reign."""

    def __init__(
        self,
        backend: Backend,
        now_ms: Callable[[], TimestampMs],
        steady_ms: Callable[[], int],
        *,
        ids_max: int,
        age_ms_max: int,
    ) -> None:
        self._backend = backend
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._ids_max = ids_max
        self._age_ms_max = age_ms_max
        self._known: dict[PartitionId, _Known] = {}
        # Up to where partitions without a window were looked at for ids.
        self._looked_at: dict[PartitionId, Offset] = {}

    def missing(self, topic: Topic) -> list[PartitionId]:
        """Partitions that this node leads and whose ids it does not know."""
        partitions = [PartitionId(topic.name, number) for number in range(topic.config.partitions)]
        return [partition for partition in partitions if self._backend.leads(partition) and self.of(partition) is None]

    def of(self, partition: PartitionId) -> DedupeWindow | None:
        known = self._known.get(partition)
        if known is None or known.reign is None or known.reign != self._backend.reign(partition):
            return None
        return known.window

    def forget(self, name: TopicName) -> None:
        for remembered in (self._known, self._looked_at):
            for partition in [partition for partition in remembered if partition.topic == name]:
                del remembered[partition]

    async def load(self, topic: Topic) -> None:
        """Read the ids of the newest messages of every partition led here. Nothing may be appended meanwhile."""
        for partition in self.missing(topic):
            # A new leader knows what it has only once its reign has begun in earnest.
            await self._backend.catch_up(partition)
            reign = self._backend.reign(partition)
            if reign is not None:
                known = await self._read_on(partition)
                known.reign = reign

    async def warm(self) -> None:
        """Read on where other nodes lead: one round over all partitions."""
        for topic in self._backend.topics():
            if is_internal(topic.name):
                continue
            for number in range(topic.config.partitions):
                partition = PartitionId(topic.name, number)
                if self._backend.leads(partition) or self._backend.topic(topic.name) != topic:
                    continue
                try:
                    if partition in self._known or await self._has_ids_now(partition):
                        await self._read_on(partition)
                except HoldfastError:
                    continue  # deleted, or not readable now: whoever comes to lead it reads it all

    async def _has_ids_now(self, partition: PartitionId) -> bool:
        """Whether the newest message has an id. Most topics have none at all, and cost one look each time they grow."""
        end = self._backend.end_offset(partition)
        if end <= self._looked_at.get(partition, self._backend.start_offset(partition)):
            return False
        self._looked_at[partition] = end
        batches = await self._backend.read(partition, Offset(end - 1), 1)
        return bool(batches) and record_batch.has_ids(batches[-1])

    async def _read_on(self, partition: PartitionId) -> _Known:
        """The window with everything in it that is visible here now."""
        known = self._known.get(partition)
        if known is None:
            oldest_ms = TimestampMs(self._now_ms() - self._age_ms_max)
            start = await self._backend.offset_at(partition, oldest_ms)
            window = DedupeWindow(ids_max=self._ids_max, age_ms_max=self._age_ms_max)
            known = self._known.setdefault(partition, _Known(window, start, self._backend.end_offset(partition)))
        async with known.reading:
            # A leader remembers what it stores without reading it.
            offset = max(known.read_to, known.window.next_offset)
            while offset < self._backend.end_offset(partition):
                offset = await self._read_piece(partition, offset, known)
                known.read_to = offset
        return known

    async def _read_piece(self, partition: PartitionId, offset: Offset, known: _Known) -> Offset:
        try:
            batches = await self._backend.read(partition, offset, _READ_BYTES)
        except DamagedData as damage:
            return Offset(damage.next_offset)
        except OffsetOutOfRange:  # retention was faster
            return max(Offset(offset + 1), self._backend.start_offset(partition))
        for batch in batches:
            self._remember_ids(batch, offset, known)
            # Ten minutes of traffic may be much: everybody else goes on meanwhile.
            await asyncio.sleep(0)
        return record_batch.header(batches[-1]).next_offset

    def _remember_ids(self, batch: memoryview, start: Offset, known: _Known) -> None:
        """Take note of the ids in a batch, from the offset `start` on."""
        if not record_batch.has_ids(batch):
            return
        head = record_batch.header(batch)
        now_ms, steady_ms = self._now_ms(), self._steady_ms()
        for index, record in enumerate(record_batch.decode_records(batch)):
            offset = Offset(head.base_offset + index)
            message_id = record_batch.record_id(record)
            if message_id is not None and offset >= start:
                stamp_ms = head.base_timestamp_ms + record.timestamp_delta
                age_ms = max(0, now_ms - stamp_ms) if offset < known.old_below else 0
                known.window.remember(message_id, offset, steady_ms - age_ms)

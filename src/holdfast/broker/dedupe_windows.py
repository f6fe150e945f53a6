"""The dedupe windows of all partitions, read from the log when a topic first sees an id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.broker.backend import Backend
from holdfast.broker.dedupe import DedupeWindow
from holdfast.model.errors import DamagedData, OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.topics import Topic
from holdfast.wire import record_batch

_READ_BYTES = 256 * 1024


class DedupeWindows:
    """Windows by partition. A topic's windows are there together or not at all."""

    def __init__(self, backend: Backend, now_ms: Callable[[], TimestampMs], *, ids_max: int, age_ms_max: int) -> None:
        self._backend = backend
        self._now_ms = now_ms
        self._ids_max = ids_max
        self._age_ms_max = age_ms_max
        self._windows: dict[PartitionId, DedupeWindow] = {}

    def has(self, topic: Topic) -> bool:
        return PartitionId(topic.name, 0) in self._windows

    def of(self, partition: PartitionId) -> DedupeWindow | None:
        return self._windows.get(partition)

    def forget(self, name: TopicName) -> None:
        for partition in [partition for partition in self._windows if partition.topic == name]:
            del self._windows[partition]

    async def load(self, topic: Topic) -> None:
        """Read the ids of the newest messages of every partition. Nothing may be appended meanwhile."""
        partitions = [PartitionId(topic.name, number) for number in range(topic.config.partitions)]
        self._windows.update({partition: await self._loaded(partition) for partition in partitions})

    async def _loaded(self, partition: PartitionId) -> DedupeWindow:
        window = DedupeWindow(ids_max=self._ids_max, age_ms_max=self._age_ms_max)
        oldest_ms = TimestampMs(self._now_ms() - self._age_ms_max)
        offset = await self._backend.offset_at(partition, oldest_ms)
        while offset < self._backend.end_offset(partition):
            try:
                batches = await self._backend.read(partition, offset, _READ_BYTES)
            except DamagedData as damage:
                offset = Offset(damage.next_offset)
                continue
            except OffsetOutOfRange:  # retention was faster
                offset = self._backend.start_offset(partition)
                continue
            for batch in batches:
                _remember_ids(batch, window)
                # Ten minutes of traffic may be much: everybody else goes on meanwhile.
                await asyncio.sleep(0)
            offset = record_batch.header(batches[-1]).next_offset
        return window


def _remember_ids(batch: memoryview, window: DedupeWindow) -> None:
    if not record_batch.has_ids(batch):
        return
    head = record_batch.header(batch)
    for index, record in enumerate(record_batch.decode_records(batch)):
        message_id = record_batch.record_id(record)
        if message_id is not None:
            timestamp_ms = TimestampMs(head.base_timestamp_ms + record.timestamp_delta)
            window.remember(message_id, Offset(head.base_offset + index), timestamp_ms)

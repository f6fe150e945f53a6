"""How far the messages of a topic are delivered, also where a processor stands between them and the subscribers.

Without a processor that is the mark of the live subscribers (`broker/delivery_marks.py`). With one, subscribers read
what it makes of the messages, and the mark is in those outputs: a message is delivered when its output is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.broker.backend import Backend
from holdfast.broker.delivery_marks import DELIVERED
from holdfast.broker.processing import PROCESSED_SUFFIX, PROCESSOR_CURSOR, source_offset
from holdfast.model.errors import DamagedData, OffsetOutOfRange, TopicNotFound, WorldError
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.wire import record_batch

_READ_BYTES: Final = 64 * 1024
_AGAIN_S: Final = 0.05


class Deliveries:
    """Of one broker; `delivers_from` says which topic's messages the subscribers of a topic get."""

    def __init__(self, backend: Backend, delivers_from: Callable[[TopicName], TopicName]) -> None:
        self._backend = backend
        self._delivers_from = delivers_from

    def moved_with(self, topic: TopicName, name: CursorName) -> TopicName | None:
        """The topic whose messages may be delivered further when a cursor has moved."""
        if name not in (DELIVERED, PROCESSOR_CURSOR):
            return None
        source = TopicName(topic.removesuffix(PROCESSED_SUFFIX))
        return source if self._delivers_from(source) == topic else topic

    def is_output(self, topic: TopicName) -> bool:
        """Whether a processor of this broker puts its outputs there."""
        source = TopicName(topic.removesuffix(PROCESSED_SUFFIX))
        return source != topic and self._delivers_from(source) == topic

    async def delivered(self, topic: TopicName) -> Offset:
        """Everything of a topic below this offset is delivered. Raises `TopicNotFound`."""
        here = PartitionId(topic, 0)
        outputs = PartitionId(self._delivers_from(topic), 0)
        if outputs == here:
            return self._position(here, DELIVERED)
        # Asked first: the outputs of all that is before it are stored by now.
        processed = self._position(here, PROCESSOR_CURSOR)
        if self._backend.topic(outputs.topic) is None:
            return processed
        position = self._position(outputs, DELIVERED)
        while position < self._backend.end_offset(outputs):
            try:
                batches = await self._backend.read(outputs, position, _READ_BYTES)
            except DamagedData as damage:
                position = Offset(damage.next_offset)
                continue
            except OffsetOutOfRange:
                position = max(Offset(position + 1), self._backend.start_offset(outputs))
                continue
            for batch in batches:
                for message in record_batch.decode(batch, 0, start=position):
                    made_of = source_offset(message)
                    if made_of is not None:
                        return min(processed, made_of)
                position = record_batch.header(batch).next_offset
        return processed

    async def catch_up(self) -> None:
        """Until the broker below shows everything that it has."""
        while True:
            try:
                await self._backend.catch_up_cursors()
                for topic in self._backend.topics():
                    await self._backend.catch_up(PartitionId(topic.name, 0))
                return
            except WorldError:
                await asyncio.sleep(_AGAIN_S)

    async def settle_all(self) -> None:
        for topic in self._backend.topics():
            await self.settle(topic.name)

    async def settle(self, topic: TopicName) -> None:
        """Everything that is in a topic now counts as delivered: of a backup, which only stores what is."""
        names = {TopicName(topic): DELIVERED}
        delivered_from = self._delivers_from(topic)
        if delivered_from != topic:
            names = {topic: PROCESSOR_CURSOR, delivered_from: DELIVERED}
        for name, cursor in names.items():
            try:
                end = self._backend.end_offset(PartitionId(name, 0))
                await self._backend.set_cursor(name, cursor, {0: end}, only_forward=True)
            except TopicNotFound:
                continue

    def _position(self, partition: PartitionId, name: CursorName) -> Offset:
        start = self._backend.start_offset(partition)
        noted = self._backend.cursor(partition.topic, name) or {}
        return max(start, noted.get(partition.number, start))

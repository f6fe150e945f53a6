"""Which entries of the journal are delivered, and telling the backup so.

Topics hold messages in the order of the journal, each with its place (`draining.py`), so of every topic one number says
it all: the place of its first message that is not delivered. Nothing is remembered for single messages.

A connection begins with everything the backup may not have heard of: the journal is read from the backup's mark on.
From then on, topics whose mark has moved are read from where the last look ended. So a mark that was lost with a
connection is told again with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from holdfast.backends.plain.deliveries import Deliveries
from holdfast.backends.plain.draining import Draining, place_of
from holdfast.backends.plain.journal import Entry, Journal
from holdfast.broker.backend import Backend
from holdfast.consensus.plain_standing import Reign
from holdfast.model.errors import DamagedData, OffsetOutOfRange, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.wire import record_batch

_READ_BYTES: Final = 128 * 1024
# Marks of entries that are forgotten here, in one go.
_FORGOTTEN_MAX: Final = 1_000

# Tells the backup of entries that are delivered; waits while that one does not read.
Say = Callable[[list[Entry]], Awaitable[None]]


class _First(NamedTuple):
    """Of a topic: where it is delivered up to, and the place in the journal of the message there."""

    offset: Offset
    position: int


class Marking:
    """Of one primary, in one reign."""

    def __init__(
        self, backend: Backend, journal: Journal, draining: Draining, deliveries: Deliveries, reign: Reign
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._draining = draining
        self._deliveries = deliveries
        self._reign = reign
        # Before everything is in its topic again, nobody can say which entries are delivered.
        self._recovers_to = journal.end
        self._moved: dict[TopicName, None] = {}
        self._is_stale = False
        # Whether the backup was told of everything that is delivered.
        self.is_told = False
        self._work = asyncio.Event()

    def moved(self, topic: TopicName) -> None:
        self.is_told = False
        self._moved[topic] = None
        self._work.set()

    def look_again(self) -> None:
        """More was sent, or put into topics."""
        self._work.set()

    def forget(self) -> None:
        """A topic was deleted: nobody waits for its messages any more."""
        self._is_stale = True
        self._work.set()

    async def delivered_below(self) -> int:
        """Everything below this position is delivered."""
        firsts = await self._firsts()
        return min((first.position for first in firsts.values()), default=self._draining.drained)

    async def _firsts(self) -> dict[TopicName, _First]:
        drained = self._draining.drained
        return {
            topic.name: await self._first(topic.name, drained)
            for topic in self._backend.topics()
            if not self._deliveries.is_output(topic.name)
        }

    async def _first(self, topic: TopicName, drained: int) -> _First:
        """`drained`: what was in the topics before they were looked at."""
        try:
            offset = delivered = await self._deliveries.delivered(topic)
            while True:
                found, behind = await self._places(topic, offset, bytes_max=1)
                if found:
                    return _First(delivered, min(found[0][1], drained))
                if behind == offset:
                    return _First(delivered, drained)
                offset = behind
        except TopicNotFound:
            return _First(Offset(0), drained)

    async def _places(
        self, topic: TopicName, offset: Offset, bytes_max: int
    ) -> tuple[list[tuple[Offset, int, str, bytes]], Offset]:
        """Messages of this reign from an offset on, with their places, and the offset behind them."""
        partition = PartitionId(topic, 0)
        if offset >= self._backend.end_offset(partition):
            return [], offset
        try:
            batches = await self._backend.read(partition, offset, bytes_max)
        except DamagedData as damage:
            return [], Offset(damage.next_offset)
        except OffsetOutOfRange:
            return [], max(Offset(offset + 1), self._backend.start_offset(partition))
        found = []
        for batch in batches:
            for message in record_batch.decode(batch, 0, start=offset):
                place = place_of(message.headers)
                if place is not None and place[0] == self._reign:
                    found.append((message.offset, place[1], message.id, message.value))
            offset = record_batch.header(batch).next_offset
        return found, offset

    async def tell(self, mark: int, sent: Callable[[], int], say: Say) -> None:
        """Tell one backup, which knows of everything below `mark`, for as long as there is a connection."""
        while self._draining.drained < self._recovers_to:
            self._work.clear()
            await self._work.wait()
        # What is forgotten here was delivered; its ids are forgotten, too, and only one of ours needs none.
        while mark < self._journal.start:
            behind = min(mark + _FORGOTTEN_MAX, self._journal.start)
            await say([Entry(each, TopicName(""), "-", b"", TimestampMs(0)) for each in range(mark, behind)])
            mark = behind
        while True:
            self.is_told = self._is_stale = False
            self._moved.clear()
            position, end = max(mark, self._journal.start), self._draining.drained
            firsts = await self._firsts()
            while position < end:
                entries = self._journal.read(position, _READ_BYTES, min(end, sent()))
                if not entries:
                    self._work.clear()
                    await self._work.wait()
                    continue
                await say([each for each in entries if self._is_delivered(each, firsts)])
                position = entries[-1].position + 1
                await asyncio.sleep(0)
            told = {topic: first.offset for topic, first in firsts.items()}
            while not self._is_stale:
                self._work.clear()
                for topic in list(self._moved):
                    await self._tell_of(topic, told, sent, say)
                self.is_told = not self._moved
                if not self._is_stale:
                    await self._work.wait()

    def _is_delivered(self, entry: Entry, firsts: dict[TopicName, _First]) -> bool:
        """Of an entry that was in its topic when the topics were looked at."""
        if entry.topic in firsts:
            return entry.position < firsts[entry.topic].position
        return self._backend.topic(entry.topic) is None or self._deliveries.is_output(entry.topic)

    async def _tell_of(
        self,
        topic: TopicName,
        told: dict[TopicName, Offset],
        sent: Callable[[], int],
        say: Say,
    ) -> None:
        try:
            delivered = await self._deliveries.delivered(topic)
            offset = told.get(topic, Offset(0))
            while offset < delivered:
                found, behind = await self._places(topic, offset, _READ_BYTES)
                due = [each for each in found if each[0] < delivered and each[1] < sent()]
                late = [each for each in found if each[0] < delivered and each[1] >= sent()]
                await say([_entry(topic, *each) for each in due])
                offset = late[0][0] if late else min(behind, delivered)
                told[topic] = offset
                if late:
                    # Its turn comes when it was sent.
                    return
        except TopicNotFound:
            pass
        self._moved.pop(topic, None)


def _entry(topic: TopicName, offset: Offset, position: int, message_id: str, value: bytes) -> Entry:
    return Entry(position, topic, message_id, value, TimestampMs(0))

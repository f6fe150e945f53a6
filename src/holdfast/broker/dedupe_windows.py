"""The dedupe windows of partitions, read from the log, and kept warm where this node may have to lead next.

A window is a consequence of the log alone, so it outlives a reign: a node that leads a partition (again) reads
only what it has not read yet. On nodes that follow, `warm` does that all the time for partitions whose messages
have ids: a new leader would otherwise read ten minutes of log before it could answer its first publisher.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from holdfast.broker.backend import Backend
from holdfast.broker.dedupe import DedupeWindow
from holdfast.model.errors import DamagedData, HoldfastError, OffsetOutOfRange, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import StoredId
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic
from holdfast.wire import record_batch

_READ_BYTES = 256 * 1024
_IDS_AT_ONCE = 1_000


class _Known:
    """One partition's window: how far the log was read into it, and the reign in which it may be used."""

    def __init__(self, window: DedupeWindow, read_to: Offset, old_below: Offset, steady_ahead_ms: int) -> None:
        self.window = window
        self.read_to = read_to
        # What stood there at first is as old as its timestamp says; what came later is as old as it is known here.
        self.old_below = old_below
        # How far the clock that only goes forwards was ahead of the agreed time when this window was begun.
        self.steady_ahead_ms = steady_ahead_ms
        self.reign: int | None = None
        # Reading twice at once would remember everything twice.
        self.reading = asyncio.Lock()


class DedupeWindows:
    """Windows by partition. One is used only by the leader, and only once it has read everything before its reign."""

    def __init__(
        self,
        backend: Backend,
        steady_ms: Callable[[], int],
        *,
        ids_max: int,
        age_ms_max: int,
    ) -> None:
        self._backend = backend
        self._steady_ms = steady_ms
        self._ids_max = ids_max
        self._age_ms_max = age_ms_max
        self._known: dict[PartitionId, _Known] = {}
        # By topic, how far the clock that only goes forwards was ahead of the clocks that agreed, when last asked.
        self._agreed_ahead_ms: dict[TopicName, int] = {}
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

    def agreed_ms(self, partition: PartitionId) -> TimestampMs | None:
        """What time it is by the clocks that agreed when they were last asked, and by what passed since."""
        ahead_ms = self._agreed_ahead_ms.get(partition.topic)
        if ahead_ms is None and (known := self._known.get(partition)) is not None:
            ahead_ms = known.steady_ahead_ms
        return None if ahead_ms is None else TimestampMs(self._steady_ms() - ahead_ms)

    def forget(self, name: TopicName) -> None:
        self._agreed_ahead_ms.pop(name, None)
        for remembered in (self._known, self._looked_at):
            for partition in [partition for partition in remembered if partition.topic == name]:
                del remembered[partition]

    async def load(self, topic: Topic) -> None:
        """Read the ids of the newest messages of every partition led here. Nothing may be appended meanwhile."""
        missing = self.missing(topic)
        for partition in missing:
            # A new leader knows what it has only once its reign has begun in earnest.
            await self._backend.catch_up(partition)
            reign = self._backend.reign(partition)
            if reign is not None:
                known = await self._read_on(partition)
                known.reign = reign
        if missing:
            await self._ask_time(missing[0])

    async def ask_time(self) -> None:
        """Ask again what time it is where this node leads: clocks may have been put right since. One round.

        How old the ids in the windows are stays as it was: that is counted as time that passes.
        """
        led = {partition.topic: partition for partition in self._known if self.of(partition) is not None}
        await asyncio.gather(*map(self._ask_time, led.values()))

    async def _ask_time(self, partition: PartitionId) -> None:
        """The voters of one partition of a topic speak for all. Where too few answer, what they said before holds."""
        with contextlib.suppress(HoldfastError):
            now_ms = await self._backend.time_ms(partition)
            self._agreed_ahead_ms[partition.topic] = self._steady_ms() - now_ms

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
            known = self._known.setdefault(partition, await self._begun(partition))
        async with known.reading:
            # A leader remembers what it stores without reading it.
            offset = max(known.read_to, known.window.next_offset)
            while offset < self._backend.end_offset(partition):
                offset = await self._read_piece(partition, offset, known)
                known.read_to = offset
        return known

    async def _begun(self, partition: PartitionId) -> _Known:
        """A window that nothing was read into, and from where on it has to be read."""
        topic = self._backend.topic(partition.topic)
        now_ms = await self._backend.time_ms(partition)
        steady_ahead_ms = self._steady_ms() - now_ms
        start = await self._backend.offset_at(partition, TimestampMs(now_ms - self._age_ms_max))
        if start == self._backend.start_offset(partition):
            # Retention may have deleted some that are not older than that.
            start = Offset(0)
        if self._backend.topic(partition.topic) != topic:
            raise TopicNotFound(f"topic {partition.topic} was deleted")  # this says nothing of one that was made since
        window = DedupeWindow(ids_max=self._ids_max, age_ms_max=self._age_ms_max)
        return _Known(window, start, self._backend.end_offset(partition), steady_ahead_ms)

    async def _read_piece(self, partition: PartitionId, offset: Offset, known: _Known) -> Offset:
        # The ids of messages are kept before the messages are deleted.
        begin = self._backend.start_offset(partition)
        if offset < begin:
            await self._remember(await self._backend.expired_ids(partition, offset), known)
            return begin
        try:
            batches = await self._backend.read(partition, offset, _READ_BYTES)
        except DamagedData as damage:
            return Offset(damage.next_offset)
        except OffsetOutOfRange:
            if self._backend.start_offset(partition) > offset:
                return offset  # retention was faster: what it deleted comes next
            raise
        for batch in batches:
            await self._remember([each for each in record_batch.stored_ids(batch) if each.offset >= offset], known)
        return record_batch.header(batches[-1]).next_offset

    async def _remember(self, ids: Sequence[StoredId], known: _Known) -> None:
        steady_ms = self._steady_ms()
        for place, (offset, stored_ms, message_id) in enumerate(ids, 1):
            is_old = offset < known.old_below
            known_ms = min(steady_ms, stored_ms + known.steady_ahead_ms) if is_old else steady_ms
            known.window.remember(message_id, offset, known_ms)
            if place % _IDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        # Ten minutes of traffic may be much: everybody else goes on meanwhile.
        await asyncio.sleep(0)

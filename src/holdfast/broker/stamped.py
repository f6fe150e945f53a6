"""Storing the batches of transactions once each, however often and by whomever they are sent.

A batch of a transaction has a stamp (`wire/stamps.py`). Whoever leads the partition compares it with the newest stamp
of the same coordinator in its log: what is there already is answered as such, and nothing is stored out of its order.
A batch may say that all before it is stored: then it is taken although retention took what was before it.
That newest stamp follows from the log alone. It is read once in a reign, from the floor that came with the batch: no
batch of its commit can stand below that, so however long ago the first try was, nothing more needs to be remembered.

Everything with a stamp comes through here, so within a reign the stamps need not be read again. Where an append fails,
nobody knows what is in the log, and nothing more is taken in that reign.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from holdfast.broker import results
from holdfast.broker.backend import Backend
from holdfast.broker.stats import BrokerStats
from holdfast.model.errors import DamagedData, NotLeader, OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import BatchPublished
from holdfast.wire import record_batch, stamps
from holdfast.wire.stamps import Stamp

_READ_BYTES: Final = 1024 * 1024


class Newest(NamedTuple):
    """The newest stamp of a coordinator in a log, and where its batch stands."""

    decision: int
    sequence: int
    offset: Offset


def next_sequence(newest: Newest | None, mark: Stamp, floor: Offset) -> int | None:
    """Which batch of a commit comes next in a log; none where a later commit was there already.

    What stands below the floor was there before the commit was decided, and says nothing about it.
    """
    if newest is None or newest.offset < floor or newest.decision < mark.decision:
        return 0
    return newest.sequence + 1 if newest.decision == mark.decision else None


def repeated(partition: int, count: int, floor: Offset) -> BatchPublished:
    """The answer for a batch that is there already."""
    return BatchPublished(partition=partition, base_offset=floor, count=count, duplicates=count)


class _Known:
    """The stamps in one partition's log from `covered_from` on, in one reign; one for each coordinator."""

    def __init__(self) -> None:
        # Batches come side by side and are taken in their order.
        self.lock = asyncio.Lock()
        self.begin(None)

    def begin(self, reign: int | None) -> None:
        self.reign = reign
        self.covered_from: Offset | None = None
        self.newest: dict[int, Newest] = {}
        self.is_unknown = False
        self.last: asyncio.Future[Offset] | None = None


class StampedAppends:
    """Appends to partitions that this node leads."""

    def __init__(self, backend: Backend, stats: BrokerStats) -> None:
        self._backend = backend
        self._stats = stats
        self._known: dict[PartitionId, _Known] = {}
        backend.watch_deletions(self._forget)

    def _forget(self, topic: TopicName) -> None:
        for partition in [partition for partition in self._known if partition.topic == topic]:
            del self._known[partition]

    async def append(self, partition: PartitionId, batch: bytearray) -> BatchPublished:
        """Store a batch, unless it is there. Raises `NotLeader`, also for one that came before its predecessor.

        `OffsetOutOfRange` where retention took what would tell whether it is there.
        """
        mark, floor = stamps.stamp_of(batch), stamps.floor_of(batch)
        assert mark is not None, "a batch of a transaction has a stamp"
        count = record_batch.extent(batch)[0]
        known = self._known.setdefault(partition, _Known())
        async with known.lock:
            await self._know(partition, known, floor)
            topic = self._backend.topic(partition.topic)
            if self._known.get(partition) is not known or topic is None or not stamps.is_for_topic(batch, topic.token):
                # Deleted, or made anew, here or where it comes from: that one looks again.
                raise NotLeader(f"a batch of a transaction is for another topic than {partition.topic} is here")
            due = next_sequence(known.newest.get(mark.coordinator), mark, floor)
            if due is None or mark.sequence < due:
                appended = None
            elif mark.sequence > due and not mark.is_next:
                raise NotLeader(f"batch {mark.sequence} of a transaction came to {partition} before batch {due}")
            else:
                appended = known.last = self._backend.append(partition, batch)
                appended.add_done_callback(lambda done: _notice(done, known))
                self._stats.count_stored(appended, count, len(batch))
                offset = record_batch.header(batch).base_offset
                known.newest[mark.coordinator] = Newest(mark.decision, mark.sequence, offset)
            last = known.last
        if appended is not None:
            return results.regular(partition.number, await asyncio.shield(appended), count)
        if last is not None:
            # It may have come a moment ago, and not be durable yet.
            await asyncio.shield(last)
        return repeated(partition.number, count, floor)

    async def _know(self, partition: PartitionId, known: _Known, floor: Offset) -> None:
        """Have read every stamp from the floor on."""
        reign = self._backend.reign(partition)
        if reign != known.reign:
            known.begin(reign)
        if reign is None or known.is_unknown:
            raise NotLeader(f"this node does not lead {partition}, or not yet")
        if known.covered_from is not None and known.covered_from <= floor:
            return
        if floor < self._backend.start_offset(partition):
            raise OffsetOutOfRange(
                f"{partition} has nothing at {floor} any more, where a transaction's batches may stand"
            )
        end = self._backend.end_offset(partition) if known.covered_from is None else known.covered_from
        found: dict[int, Newest] = {}
        offset = floor
        while offset < end:
            try:
                batches = await self._backend.read(partition, offset, _READ_BYTES)
            except DamagedData as damage:  # it is never served, so what it was does not count
                offset = Offset(damage.next_offset)
                continue
            for batch in batches:
                head = record_batch.header(batch)
                if head.base_offset < end and (mark := stamps.stamp_of(batch)) is not None:
                    found[mark.coordinator] = Newest(mark.decision, mark.sequence, head.base_offset)
                offset = head.next_offset
        if self._backend.reign(partition) != reign:
            raise NotLeader(f"the leader of {partition} changed")
        # What was known before is newer than what was found now.
        known.newest = {**found, **known.newest}
        known.covered_from = floor


def _notice(appended: asyncio.Future[Offset], known: _Known) -> None:
    """Whether an append went well; where it did not, nobody knows whether it did."""
    if results.failure(appended) is not None:
        known.is_unknown = True

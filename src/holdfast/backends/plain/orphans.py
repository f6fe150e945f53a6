"""What a broker had stored alone and gave to the one that replaced it: still in its topics, and void.

Such a message is the winner's from then on: to be stored, delivered, and sent back. Should it come back by its id, the
old copy must not be taken for it: that one counts as delivered here, and was perhaps delivered nowhere.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from holdfast.backends.plain.draining import place_of
from holdfast.backends.plain.journal import Journal
from holdfast.broker.backend import Backend
from holdfast.consensus.plain_standing import Reign
from holdfast.model.errors import DamagedData, OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.wire import record_batch

_READ_BYTES: Final = 256 * 1024
# Stretches of a topic that are remembered: as many changes of primary within the time ids are remembered.
_STRETCHES_MAX: Final = 50

Void = dict[str, list[tuple[int, int]]]


def without(void: Void, topic: TopicName) -> Void:
    """The stretches of all topics but one that was deleted."""
    return {name: stretches for name, stretches in void.items() if name != topic}


async def with_orphans(void: Void, backend: Backend, journal: Journal, reign: Reign, common: int) -> Void:
    """The void stretches of all topics, those of entries from `common` on among them."""
    counts: Counter[TopicName] = Counter()
    position = common
    while entries := journal.read(position, _READ_BYTES):
        counts.update(entry.topic for entry in entries)
        position = entries[-1].position + 1
    found = dict(void)
    for topic, count in counts.items():
        if backend.topic(topic) is not None:
            stretch = await _stretch(backend, PartitionId(topic, 0), count, reign, common)
            if stretch is not None:
                found[topic] = [*found.get(topic, []), stretch][-_STRETCHES_MAX:]
    return found


async def _stretch(
    backend: Backend, partition: PartitionId, count: int, reign: Reign, common: int
) -> tuple[int, int] | None:
    """They are the newest of their topic."""
    end = backend.end_offset(partition)
    offset = max(backend.start_offset(partition), Offset(end - count))
    while offset < end:
        try:
            batches = await backend.read(partition, offset, _READ_BYTES)
        except (DamagedData, OffsetOutOfRange):
            offset = max(Offset(offset + 1), backend.next_readable(partition, offset))
            continue
        for batch in batches:
            for message in record_batch.decode(batch, 0, start=offset):
                place = place_of(message.headers)
                if place is not None and place[0] == reign and place[1] >= common:
                    return (message.offset, end)
            offset = record_batch.header(batch).next_offset
    return None

"""Events of a spill as record batches again, made in bulk.

What was pushed comes back as a push: columns, which a store of rows takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, ne
from typing import Final

from holdfast.backends.spill.events import Event
from holdfast.backends.spill.ports import Batch
from holdfast.broker import admit
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.push_ids import are_uuids
from holdfast.model.topics import Topic
from holdfast.wire import batch_builder
from holdfast.wire.push_batch import Pushed, TimedPush

Choose = Callable[[Event], PartitionId]
# The queue, and the partition's number where it is known.
Place = tuple[str, int | None]

# A batch of its own for each time is worth it if so many messages share one.
_OF_ONE_TIME_MIN: Final = 8
_time_of: Final[Callable[[Event], int]] = attrgetter("time")
place_of: Final[Callable[[Event], Place]] = attrgetter("queue", "number")


def batches_of(events: Sequence[Event], choose: Choose, messages_max: int) -> list[Batch]:
    """Events as record batches or columns, by partition, each partition's in the order of the events.

    `choose` gives the partition of one that has none yet.
    """
    by_partition: dict[PartitionId, list[Event]] = {}

    def add_where_it_belongs(event: Event) -> None:
        by_partition.setdefault(choose(event), []).append(event)

    places = list(map(place_of, events))
    add: dict[Place, Callable[[Event], None]] = {}
    for queue, number in dict.fromkeys(places):
        if number is None:
            add[queue, number] = add_where_it_belongs
        else:
            add[queue, number] = by_partition.setdefault(PartitionId(TopicName(queue), number), []).append
    for event, place in zip(events, places, strict=True):
        add[place](event)
    return [(partition, batch) for partition, run in by_partition.items() for batch in run_of(run, messages_max)]


def run_of(events: Sequence[Event], messages_max: int, *, is_for_rows: bool = False) -> Iterator[bytearray | TimedPush]:
    """Events of one partition, in their order. Pushes need not be of one time.

    `is_for_rows`: a store of rows takes apart what it is given, and values of one time need that least.
    """
    for first in range(0, len(events), messages_max):
        some = events[first : first + messages_max]
        pushed = pushed_of(some)
        if pushed is not None:
            yield TimedPush(pushed, some[0].time)
        else:
            yield from _unlike(some, is_for_rows=is_for_rows)


def _unlike(events: Sequence[Event], *, is_for_rows: bool) -> Iterator[bytearray]:
    for is_plain, run in groupby(events, _is_plain):
        alike = list(run)
        times_ms = [event.time for event in alike]
        changes = sum(map(ne, times_ms, times_ms[1:]))
        if is_plain and (not changes or (is_for_rows and changes * _OF_ONE_TIME_MIN < len(alike))):
            for time_ms, same in groupby(alike, _time_of):
                yield batch_builder.build_values([event.value for event in same], time_ms)
        else:
            yield batch_builder.build_timed([event.message() for event in alike], times_ms)


def _is_plain(event: Event) -> bool:
    return (
        not event.push and event.id is None and event.key is None and event.headers is None and event.key_base64 is None
    )


def pushed_of(events: Sequence[Event]) -> Pushed | None:
    """Events as columns; none unless each of them was pushed, as a store of rows takes it."""
    if False in [event.push for event in events]:
        return None
    transaction_ids = [event.transaction_id or "" for event in events]
    trace_ids = [event.trace_id or None for event in events]
    ids = [event.id or "" for event in events]
    # No column of text takes that character: such headers are for those who take bytes.
    if not are_uuids(ids) or "\0" in "".join(transaction_ids) or "\0" in "".join(filter(None, trace_ids)):
        return None
    times_ms = [event.time for event in events]
    names = [event.partition for event in events]
    own_times_ms = times_ms if len(set(times_ms)) > 1 else None
    return Pushed(names, _values(events), ids, transaction_ids, trace_ids, times_ms=own_times_ms)


def _values(events: Sequence[Event]) -> list[bytes]:
    others = [event.payload_text or event.payload_base64 for event in events]
    if others.count(None) < len(others):
        return [event.value for event in events]
    return list(map(bytes, [event.payload for event in events]))


def chosen_partition(event: Event, topic: Topic) -> PartitionId:
    """Where a message goes that was spilled before anybody knew how its topic is divided."""
    message = NewMessage(value=b"", key=event.message().key, id=event.id)
    return PartitionId(topic.name, admit.partition_of(topic, message) or 0)

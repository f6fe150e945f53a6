"""Lines on their way back: read, taken apart and made into batches ahead, while the store works on those before.

All of that is done in the loop, a little in each of its turns: a thread would wait for the loop and the loop for the
thread, and whoever else wants the loop, the connection to the store first of all, has it in between.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence, Set
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.backends.spill import batches, events, files
from holdfast.backends.spill.batches import place_of
from holdfast.backends.spill.events import BadLine, Event
from holdfast.backends.spill.files import SpillFile
from holdfast.backends.spill.ports import Batch
from holdfast.backends.spill.waiting import ANY
from holdfast.broker import results
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.limits import KIB

# Of lines that are worked on in one turn of the loop: one or two milliseconds.
_TURN_BYTES: Final = 384 * KIB
# Of the time a turn takes, so much is left to others: the store's short answers come meanwhile, and it is asked on.
_PAUSE_SHARE: Final = 0.5

tried_of = attrgetter("tried")


class Stretch(NamedTuple):
    """Lines one behind the other; none for one that cannot be read.

    `counts` says how many are waited for, by partition. `batches` is there where all of them can be stored without
    another question: where each is there, has its partition, and cannot have been stored before.
    """

    events: Sequence[Event | None]
    counts: Counter[PartitionId]
    batches: list[Batch] | None = None

    @classmethod
    def of(cls, read: Sequence[Event | None]) -> Stretch:
        return cls(read, counts_of(event for event in read if event is not None))

    @classmethod
    def made(cls, read: Sequence[Event | None], messages_max: int) -> Stretch:
        """The same with its batches, if they can be made now."""
        present = [event for event in read if event is not None]
        counts = counts_of(present)
        is_chosen = all(partition.number != ANY for partition in counts)
        if len(present) < len(read) or not is_chosen or set(map(tried_of, present)) != {None}:
            return cls(read, counts)
        return cls(read, counts, batches.batches_of(present, _not_asked, messages_max))

    def first(self, count: int) -> Stretch:
        return self if count == len(self.events) else Stretch.of(self.events[:count])

    @property
    def present(self) -> int:
        """How many are to be stored."""
        return len(self.events) - self.events.count(None)

    def without(self, places: Set[int]) -> Stretch:
        """The same without some lines; as many are waited for until it is stored."""
        return Stretch([None if place in places else event for place, event in enumerate(self.events)], self.counts)


class Piece(NamedTuple):
    """Some lines of a file in stretches, the bad ones among them, and how many bytes they are."""

    stretches: deque[Stretch]
    bad: list[BadLine]
    size_bytes: int


def _not_asked(event: Event) -> PartitionId:
    raise AssertionError("each has its partition")


def counts_of(present: Iterable[Event]) -> Counter[PartitionId]:
    counts = Counter(map(place_of, present))
    return Counter(
        {
            PartitionId(TopicName(queue), ANY if number is None else number): count
            for (queue, number), count in counts.items()
        }
    )


def counted(file: SpillFile) -> tuple[Counter[PartitionId], int]:
    """The events of a file by partition, and its lines."""
    return counted_between(file, 0, sys.maxsize)


def counted_between(file: SpillFile, first: int, end: int) -> tuple[Counter[PartitionId], int]:
    """The same of some lines, counted from 0."""
    counts: Counter[PartitionId] = Counter()
    position, lines = files.position_of_line(file.path, first), 0
    while first + lines < end:
        data = files.read_piece(file.path, position)
        if not data:
            break
        read = events.events_of(data)[0][: end - first - lines]
        counts.update(counts_of(event for event in read if event is not None))
        lines += len(read)
        position += len(data)
    return counts, lines


def next_of(stretches: Sequence[Stretch], events_max: int) -> Stretch:
    """Those that come next, as one: as many as may be."""
    taken: list[Stretch] = []
    total = 0
    for each in stretches:
        total += len(each.events)
        if total > events_max:
            break
        taken.append(each)
    if not taken:
        return stretches[0].first(events_max)
    joined: list[Event | None] = []
    counts: Counter[PartitionId] = Counter()
    made: list[Batch] | None = []
    for each in taken:
        joined += each.events
        counts.update(each.counts)
        made = None if made is None or each.batches is None else made + each.batches
    return Stretch(joined, counts, made)


def drop(stretches: deque[Stretch], count: int) -> None:
    """Those that are done with."""
    while count:
        first = stretches.popleft()
        if len(first.events) > count:
            stretches.appendleft(Stretch.of(first.events[count:]))
            return
        count -= len(first.events)


async def taken_apart(data: bytes) -> list[Event | None]:
    """The events of whole lines; none for one that cannot be read."""
    found: list[Event | None] = []
    for some in events.some_lines(data, _TURN_BYTES):
        began_s = time.monotonic()
        found += events.events_of(some)[0]
        await asyncio.sleep(_PAUSE_SHARE * (time.monotonic() - began_s))
    return found


class Reader:
    """Reads pieces of files, and the next one ahead."""

    def __init__(self, batch_messages_max: int) -> None:
        self._batch_messages_max = batch_messages_max
        # Of which file, from where on.
        self._ahead: tuple[SpillFile, int, asyncio.Task[Piece]] | None = None

    async def piece(self, file: SpillFile, position: int) -> Piece:
        """Raises `OSError`."""
        if self._ahead is not None and self._ahead[:2] == (file, position):
            (_, _, reading), self._ahead = self._ahead, None
            return await reading
        self.stop()
        return await self._read(file, position)

    def read_ahead(self, file: SpillFile, position: int) -> None:
        self.stop()
        reading = asyncio.create_task(self._read(file, position))
        reading.add_done_callback(results.failure)  # whoever asks for it is told as well
        self._ahead = file, position, reading

    def stop(self) -> None:
        """Let go of what was read ahead."""
        if self._ahead is not None:
            self._ahead[2].cancel()
            self._ahead = None

    async def _read(self, file: SpillFile, position: int) -> Piece:
        data = await asyncio.to_thread(files.read_piece, file.path, position)
        stretches: deque[Stretch] = deque()
        bad: list[BadLine] = []
        lines = 0
        for some in events.some_lines(data, _TURN_BYTES):
            began_s = time.monotonic()
            read, bad_of_turn = events.events_of(some)
            bad += [each._replace(place=lines + each.place) for each in bad_of_turn]
            lines += len(read)
            stretches.append(Stretch.made(read, self._batch_messages_max))
            await asyncio.sleep(_PAUSE_SHARE * (time.monotonic() - began_s))
        return Piece(stretches, bad, len(data))

"""Spill files as blocks of lines (`blocks`), made in bulk; what cannot be read is set aside.

A message whose partition was not chosen yet, or is not there any more, gets it here: by the topics that the backlog
tells of, so that every run chooses the same.

Lines of Queen MQ, which have no sum, are rewritten as the push that they were (`backends.spill.queen`).

What cannot be read is set aside (`aside`). What the file's own broker had set aside is there already, and left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.backends.spill import batches, events, files, queen, sums
from holdfast.backends.spill.events import BadLine, Event
from holdfast.broker import admit
from holdfast.model import names
from holdfast.model.errors import CallerError
from holdfast.model.ids import TimestampMs
from holdfast.model.limits import MESSAGE_BYTES_MAX_SETTABLE, MESSAGE_ID_BYTES_MAX, MIB
from holdfast.model.topics import Topic, TopicConfig
from holdfast.recovery.aside import Aside
from holdfast.recovery.backlog import Backlog, BacklogFile
from holdfast.recovery.blocks import Blocks

# Worked on at once: what is made of it stays in the processor's cache, and a batch of Arrow has few thousand rows.
_TURN_BYTES: Final = 2 * MIB
_TIME_MAX: Final = 1 << 53


class Places:
    """Where messages belong, by the topics of a backlog."""

    def __init__(self, backlog: Backlog) -> None:
        self._partitions = backlog.topics
        self._new_topic_partitions = backlog.new_topic_partitions
        self._topics: dict[str, Topic] = {}

    def topic(self, queue: str) -> Topic:
        """Raises `CallerError` where no topic can have that name."""
        topic = self._topics.get(queue)
        if topic is None:
            config = TopicConfig(partitions=self._partitions.get(queue, self._new_topic_partitions))
            topic = Topic(name=names.topic_name(queue), config=config, created_ms=TimestampMs(0))
            self._topics[queue] = topic
        return topic

    def number(self, event: Event) -> int:
        topic = self.topic(event.queue)
        if event.number is not None and 0 <= event.number < topic.config.partitions:
            return event.number
        return batches.chosen_partition(event, topic).number

    def are_as_noted(self, read: Sequence[Event]) -> bool:
        """Whether all of them belong to the partition that their line says."""
        try:
            return all(
                number is not None and 0 <= number < self.topic(queue).config.partitions
                for queue, number in set(map(batches.place_of, read))
            )
        except CallerError:
            return False


class Source(NamedTuple):
    """A file that a task reads; `number` is its place in the order of all files."""

    number: int
    file: BacklogFile
    path: str


def blocks_of(sources: Sequence[Source], places: Places, order_by: str) -> Iterator[pa.RecordBatch]:
    """All lines of some files. Raises `OSError`."""
    blocks = Blocks(order_by)
    for source in sources:
        yield from _blocks_of_file(source, places, blocks)
    yield from blocks.take()


def _blocks_of_file(source: Source, places: Places, blocks: Blocks) -> Iterator[pa.RecordBatch]:
    path = Path(source.path)
    bad = Aside(path)
    known = {number - 1 for number in source.file.set_aside}
    position = files.position_of_line(path, source.file.first_line)
    line = _count_lines(path, position)
    while data := files.read_piece(path, position):
        position += len(data)
        for some in events.some_lines(data, _TURN_BYTES):
            read, faults = events.events_of(some)
            present = [event for event in read if event is not None]
            is_known = not known.isdisjoint(range(line, line + len(read)))
            if faults or is_known or not _are_plain(present, len(some)) or not places.are_as_noted(present):
                yield from _checked(source, line, some, read, faults, places, known, bad, blocks)
            else:
                lines = np.arange(line, line + len(read), dtype=np.int32)
                yield from blocks.add(source.number, lines, present, [each.number for each in present], _cut(some))
            line += len(read)
    rest = files.rest(path, position)
    if rest:
        bad.add(BadLine(line, rest, "the file ends within it"))
    bad.finish()


def skipped_lines(source: Source) -> int:
    """How many lines of a file were stored before it was taken over."""
    if not source.file.first_line:
        return 0
    path = Path(source.path)
    return min(source.file.first_line, _count_lines(path, source.file.size_bytes))


def _count_lines(path: Path, end: int) -> int:
    """How many lines are in front of a place."""
    with path.open("rb") as file:
        count = 0
        while end > 0 and (piece := file.read(min(end, _TURN_BYTES))):
            count += piece.count(b"\n")
            end -= len(piece)
    return count


def _are_plain(present: Sequence[Event], size_bytes: int) -> bool:
    """Whether nothing has to be looked at one by one: any broker takes it, and decoding cannot fail."""
    times_ms = [event.time for event in present] + [event.at for event in present]
    ids = [event.id for event in present if event.id is not None]
    return (
        size_bytes <= MESSAGE_BYTES_MAX_SETTABLE
        and [event.headers for event in present].count(None) == len(present)
        and -_TIME_MAX < min(times_ms, default=0) <= max(times_ms, default=0) < _TIME_MAX
        # A character may have four bytes.
        and (not ids or 0 < min(map(len, ids)) <= max(map(len, ids)) <= MESSAGE_ID_BYTES_MAX // 4)
        and "".join(ids).isprintable()
    )


def _cut(data: bytes) -> pa.Array:
    """Lines with their line breaks, where they are: nothing is copied."""
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == ord("\n")).astype(np.int32) + 1
    offsets = np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])


def _checked(
    source: Source,
    first_line: int,
    data: bytes,
    read: Sequence[Event | None],
    faults: Sequence[BadLine],
    places: Places,
    known: Container[int],
    bad: Aside,
    blocks: Blocks,
) -> Iterator[pa.RecordBatch]:
    """The same line by line."""
    reasons = {fault.place: fault.reason for fault in faults}
    good: list[tuple[int, Event, int, bytes]] = []
    for place, (event, line) in enumerate(zip(read, data.split(b"\n"), strict=False)):
        if first_line + place in known:
            continue
        reason = reasons.get(place)
        if event is None:
            made = queen.event_of(line, source.file.time_ms) if sums.fault(line) is not None else None
            if made is not None:
                event, line = made[0], made[1] + b"}"
        if event is not None:
            try:
                good.append((first_line + place, event, _checked_number(event, places), line + b"\n"))
                continue
            except (CallerError, ValueError, LookupError) as error:
                reason = f"no message can be made of it: {error}"
        assert reason is not None, "what could not be read has a reason"
        bad.add(BadLine(first_line + place, line, reason))
    if good:
        lines, present, numbers, texts = zip(*good, strict=True)
        yield from blocks.add(source.number, np.array(lines, np.int32), present, numbers, pa.array(texts, pa.binary()))


def _checked_number(event: Event, places: Places) -> int:
    """The partition of a message of which everything else is as it has to be. Raises `CallerError`, `ValueError`."""
    if not (-_TIME_MAX < event.time < _TIME_MAX and -_TIME_MAX < event.at < _TIME_MAX):
        raise ValueError("its time is out of range")
    # As every broker does, with the largest message that one can be told to take.
    admit.check_messages([event.message()], MESSAGE_BYTES_MAX_SETTABLE)
    return places.number(event)

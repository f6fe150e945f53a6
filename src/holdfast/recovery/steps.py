"""Rows that come in order are stored, a step at a time; and what became of them is counted.

A stream is the rows of one (queue, partition). Where its steps end depends on its rows alone: behind `STEP_EVENTS`, or
as soon as the lines have `STEP_BYTES`; and where a step is cut because of a message that the store refuses, on which
one that is. So a task that runs again makes the same steps, and a store may count steps instead of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress, pairwise
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.spill.events import BadLine, Event
from holdfast.model.errors import BadMessage
from holdfast.model.limits import MIB
from holdfast.recovery.errors import RecoveryChanged

STEP_EVENTS: Final = 10_000
STEP_BYTES: Final = 4 * MIB
# What a task says of each of its streams.
COUNTS: Final = ("events", "stored", "duplicates", "already_stored")
RESULT: Final = pa.schema(
    [("queue", pa.string()), ("number", pa.int32()), *((name, pa.int64()) for name in COUNTS)],
)
RESULT_DDL: Final = "queue string, number int, " + ", ".join(f"{name} bigint" for name in COUNTS)

# Beside the lines.
_KEPT: Final = ("copy", "source", "line")

Events = list[Event]

_decode_line: Final = msgspec.json.Decoder(Event).decode
_decode_lines: Final = msgspec.json.Decoder(Event).decode_lines


class Stream(NamedTuple):
    """All messages of one partition in one recovery."""

    recovery: UUID
    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.number}"


class Overtaken(Exception):
    """Somebody else stores the same stream, and is further."""


class Store(Protocol):
    """Where a task stores its streams, one after the other."""

    def reached(self, stream: Stream) -> int:
        """How many of a stream are done; called before anything of it is stored."""
        ...

    def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
        """Store these and that `after` are done; returns how many were new.

        Raises `Overtaken`, and `BadMessage` where one of them is not taken.
        """
        ...

    def close(self) -> None: ...


class SetAside(Protocol):
    """Where lines go that the store does not take, by file and number."""

    def known(self, sources: Any, lines: Any) -> Any:
        """Of some lines, which went there before."""
        ...

    def keep(self, source: int, bad: BadLine) -> None:
        """Durably."""
        ...


class Step(NamedTuple):
    """Rows of one stream: the first is its row number `begin`. `copies` is 1 for what is the first of its id.

    `sources` and `numbers` say which line of which file each is.
    """

    queue: str
    number: int
    begin: int
    copies: Any
    sources: Any
    numbers: Any
    lines: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.copies)


def stored(
    batches: Iterator[pa.RecordBatch],
    store: Store,
    recovery: UUID,
    tell: Callable[[int], None],
    set_aside: SetAside,
) -> Iterator[pa.RecordBatch]:
    """Store all rows, which come sorted by stream and order; gives a row of `RESULT` for each stream.

    `tell` hears how many more are done.
    """
    stream: Stream | None = None
    counts = dict.fromkeys(COUNTS, 0)
    done = 0
    for step in steps_of(batches):
        if not step.begin:
            if stream is not None:
                yield _result(stream, counts)
            stream = Stream(recovery, step.queue, step.number)
            counts = dict.fromkeys(COUNTS, 0)
            done = store.reached(stream)
        assert stream is not None, "the first step of a stream begins at 0"
        done = max(done, _store_step(store, stream, step, done, counts, set_aside))
        tell(len(step.copies))
    if stream is not None:
        yield _result(stream, counts)


def _store_step(
    store: Store,
    stream: Stream,
    step: Step,
    done: int,
    counts: dict[str, int],
    set_aside: SetAside,
) -> int:
    """How far the stream is then.

    Where the store refuses one of many, halves are tried, down to the one (`_until`). One that was refused before
    is not tried again: should it be taken now, it would be stored, and set aside as well.
    """
    count = len(step.copies)
    at = min(max(done - step.begin, 0), count)
    is_done_before = np.arange(count) < at
    is_refused = set_aside.known(step.sources, step.numbers)
    read = _read(step.lines) if at < count else []
    is_fresh = ((step.copies == 1) & ~is_refused).tolist()
    texts: list[bytes] = []
    limit = count
    while at < count:
        until = _until(at, limit, is_refused)
        fresh = list(compress(read[at:until], is_fresh[at:until]))
        try:
            new = store.store(stream, step.begin + at, step.begin + until, _whole(fresh))
        except Overtaken:
            reached = store.reached(stream) - step.begin
            if reached < at:
                raise RecoveryChanged(
                    f"{step.begin + at} messages of {stream} were stored, and the store now says "
                    f"{step.begin + reached}: it has gone back in time"
                ) from None
            is_done_before[at:reached] = True
            at, limit = min(reached, count), count
            continue
        except BadMessage as error:
            if until - at > 1:
                limit = until - 1
            else:
                assert not is_refused[at], "without it there is nothing to refuse"
                texts = texts or step.lines.split(b"\n")
                reason = f"the store does not take it: {error.message}"
                set_aside.keep(int(step.sources[at]), BadLine(int(step.numbers[at]), texts[at], reason))
                is_refused[at], is_fresh[at] = True, False
            continue
        counts["stored"] += new
        counts["duplicates"] += until - at - new - int(is_refused[at:until].sum())
        at, limit = until, count
    is_done_before &= ~is_refused
    counts["events"] += count - int(is_refused.sum())
    is_first = step.copies[is_done_before] == 1
    counts["already_stored"] += int(is_first.sum())
    counts["duplicates"] += int((~is_first).sum())
    return max(done, step.end)


def _read(lines: bytes) -> list[Event | None]:
    """None where a line cannot be read here: how deep a payload may be nested depends on who calls."""
    try:
        return list(_decode_lines(lines))
    except (ValueError, RecursionError):
        return [_read_line(line) for line in lines.split(b"\n")[:-1]]


def _read_line(line: bytes) -> Event | None:
    try:
        return _decode_line(line)
    except (ValueError, RecursionError):
        return None


def _whole(read: Sequence[Event | None]) -> Events:
    """Raises `BadMessage`."""
    found = [event for event in read if event is not None]
    if len(found) < len(read):
        raise BadMessage("its payload is nested too deep")
    return found


def _until(at: int, limit: int, is_refused: Any) -> int:
    """Where what is tried next ends, of a step that begins at 0.

    What may be tried are the nodes of one tree, halves of halves of the step: the largest that begins here, and ends
    at `limit` at the latest. One with a refused message in it is left out, unless that is all it has. So all tasks of
    a stream store the same pieces, whoever stored the one in front, and a store that looks at `after` alone
    recognises each of them.
    """
    begin, end = 0, len(is_refused)
    while begin < at or end > limit or (end - begin > 1 and is_refused[begin:end].any()):
        middle = (begin + end) // 2
        begin, end = (begin, middle) if at < middle else (middle, end)
    return end


def _result(stream: Stream, counts: dict[str, int]) -> pa.RecordBatch:
    columns = [[stream.queue], [stream.number], *([counts[name]] for name in COUNTS)]
    return pa.RecordBatch.from_arrays(
        [pa.array(each, field.type) for each, field in zip(columns, RESULT, strict=True)], schema=RESULT
    )


def steps_of(
    batches: Iterator[pa.RecordBatch], events_max: int = STEP_EVENTS, bytes_max: int = STEP_BYTES
) -> Iterator[Step]:
    """Rows with the columns of `merging.SCHEMA`; those of a stream stand together, in order."""
    held = _Held(events_max, bytes_max)
    for batch in batches:
        for begin, end in _runs(batch):
            run = batch.slice(begin, end - begin)
            stream = run["queue"][0].as_py(), run["number"][0].as_py()
            if stream != held.stream:
                yield from held.take()
                held.begin_stream(stream)
            yield from held.add(run)
    yield from held.take()


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Neighbours of one stream."""
    rows = batch.num_rows
    if not rows:
        return
    queues, numbers = batch["queue"], batch["number"].to_numpy(zero_copy_only=False)
    is_other = np.diff(numbers) != 0
    if rows > 1:
        is_other |= pc.not_equal(queues.slice(1), queues.slice(0, rows - 1)).to_numpy(zero_copy_only=False)
    bounds = [0, *(np.flatnonzero(is_other) + 1).tolist(), rows]
    yield from pairwise(bounds)


class _Held:
    """Rows of a stream that wait for the end of their step."""

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self.stream: tuple[str, int] | None = None
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._begin = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in _KEPT}
        self._lines: list[bytes] = []
        self._events = 0
        self._bytes = 0

    def begin_stream(self, stream: tuple[str, int]) -> None:
        self.stream = stream
        self._begin = 0

    def add(self, run: pa.RecordBatch) -> Iterator[Step]:
        lines = run["event"]
        offsets = np.frombuffer(lines.buffers()[1], np.int64, len(lines) + 1, 8 * lines.offset)
        data = memoryview(lines.buffers()[2] or b"")
        columns = {name: run[name].to_numpy(zero_copy_only=False) for name in _KEPT}
        first = 0
        while first < len(lines):
            room = min(len(lines) - first, self._events_max - self._events)
            sizes = offsets[first + 1 : first + room + 1] - offsets[first]
            fits = int(np.searchsorted(sizes, self._bytes_max - self._bytes, "left")) + 1
            end = first + min(room, fits)
            for name, values in columns.items():
                self._columns[name].append(values[first:end])
            self._lines.append(bytes(data[offsets[first] : offsets[end]]))
            self._events += end - first
            self._bytes += int(offsets[end] - offsets[first])
            first = end
            if self._events >= self._events_max or self._bytes >= self._bytes_max:
                yield from self.take()

    def take(self) -> Iterator[Step]:
        """What waits, as a step."""
        if self._events:
            assert self.stream is not None
            copies, sources, numbers = (np.concatenate(self._columns[name]) for name in _KEPT)
            step = Step(*self.stream, self._begin, copies, sources, numbers, b"".join(self._lines))
            self._begin = step.end
            self._columns = {name: [] for name in _KEPT}
            self._lines, self._events, self._bytes = [], 0, 0
            yield step


def summed(rows: Sequence[Any]) -> dict[str, dict[str, int]]:
    """What tasks have told, by queue."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        queue = found.setdefault(row["queue"], dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            queue[name] += row[name]
    return dict(sorted(found.items()))

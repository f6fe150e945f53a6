"""Lines of one (queue, partition) side by side: what travels between tasks, so that Spark moves few and large rows.

A block is a row of `SCHEMA`. `lines` are lines as they stand in files, one behind the other; `rows` has a `ROW` for
each of them, by which they are sorted and recognised; `first` is the lowest of theirs, by which blocks are sorted.
Within a block the order is that of the files.

A block of ids alone, which a store has, has no lines: its rows have the source `KNOWN`, and are before all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from holdfast.backends.spill.events import Event
from holdfast.model.limits import MIB
from holdfast.model.push_ids import is_uuid, raw_uuids

ROW: Final = np.dtype(
    [
        # What is compared first and then: the message's time, and when it was kept, or the other way round.
        ("first", "<i8"),
        ("then", "<i8"),
        # By what an id is recognised; nothing where there is none.
        ("high", "<u8"),
        ("low", "<u8"),
        ("has_id", "<i4"),
        ("source", "<i4"),
        ("line", "<i4"),
        ("size", "<i4"),
    ]
)
SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("number", pa.int32()),
        ("first", pa.int64()),
        ("rows", pa.binary()),
        ("lines", pa.binary()),
    ]
)
DDL: Final = "queue string, number int, first bigint, rows binary, lines binary"
KNOWN: Final = -1
KNOWN_FIRST: Final = -(1 << 62)
# What is divided into blocks at once: the more, the larger these are where there are many partitions.
_GATHERED_BYTES: Final = 16 * MIB
_BLOCK_BYTES: Final = 1 * MIB

Place = tuple[str, int]


class Blocks:
    """Gathers lines, and gives them by (queue, partition)."""

    def __init__(self, order_by: str) -> None:
        self._is_by_time = order_by == "time"
        self._codes: dict[Place, int] = {}
        self._parts: list[tuple[Any, Any, pa.Array]] = []
        self._size_bytes = 0

    def add(
        self, source: int, lines: Any, events: Sequence[Event], numbers: Sequence[int | None], texts: pa.Array
    ) -> Iterator[pa.RecordBatch]:
        """Lines of a file with their numbers in it, what stands in them, and their partitions."""
        rows = np.zeros(len(events), ROW)
        first, then = ("first", "then") if self._is_by_time else ("then", "first")
        rows[first] = [event.time for event in events]
        rows[then] = [event.at for event in events]
        rows["source"] = source
        rows["line"] = lines
        rows["size"] = np.diff(np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset))
        note_ids(rows, [event.id for event in events])
        codes = self._codes
        for place in (places := [(event.queue, number) for event, number in zip(events, numbers, strict=True)]):
            if place not in codes:
                codes[place] = len(codes)  # type: ignore[index]
        self._parts.append((np.array([codes[place] for place in places], np.int32), rows, texts))  # type: ignore[index]
        self._size_bytes += int(rows["size"].sum())
        if self._size_bytes >= _GATHERED_BYTES:
            yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Everything that was gathered."""
        if not self._parts:
            return
        codes, rows, texts = zip(*self._parts, strict=True)
        places = list(self._codes)
        self._parts, self._codes, self._size_bytes = [], {}, 0
        joined = np.concatenate(codes)
        # Few different numbers in few bits are sorted in one go.
        order = np.argsort(joined.astype(np.uint16) if len(places) <= 1 << 16 else joined, kind="stable")
        lines = pa.concat_arrays(texts).take(pa.array(order))
        yield _cut(places, joined[order], np.concatenate(rows)[order], lines.buffers()[2])


def known_ids(queue: str, number: int, ids: Sequence[str]) -> pa.RecordBatch:
    """A block of ids that a store has."""
    rows = np.zeros(len(ids), ROW)
    rows["first"] = KNOWN_FIRST
    rows["source"] = KNOWN
    note_ids(rows, ids)
    return _cut([(queue, number)], np.zeros(len(ids), np.int32), rows, None)


def note_ids(rows: Any, ids: Sequence[str | None]) -> None:
    present = [each for each in ids if each is not None]
    if not present:
        return
    keys = np.frombuffer(raw_uuids(present) or b"".join(map(_key, present)), ">u8").reshape(-1, 2)
    chosen: Any = slice(None) if len(present) == len(ids) else np.array([each is not None for each in ids])
    rows["has_id"][chosen] = 1
    rows["high"][chosen] = keys[:, 0]
    rows["low"][chosen] = keys[:, 1]


def _key(message_id: str) -> bytes:
    """What stores recognise it by, too: itself if it is a UUID, else the first half of its hash."""
    return UUID(message_id).bytes if is_uuid(message_id) else sha256(message_id.encode()).digest()[:16]


def _cut(places: Sequence[Place], codes: Any, rows: Any, lines: pa.Buffer | None) -> pa.RecordBatch:
    """Blocks of rows that stand together by partition; none much larger than it has to be."""
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(rows["size"], dtype=np.int64)))
    is_begin = np.diff(ends[:-1] // _BLOCK_BYTES, prepend=-1) != 0
    is_begin |= np.diff(codes, prepend=-1) != 0
    begins = np.flatnonzero(is_begin)
    bounds = np.append(begins, len(rows))
    owners = codes[begins].tolist()
    columns = [
        pa.array([places[code][0] for code in owners], pa.string()),
        pa.array([places[code][1] for code in owners], pa.int32()),
        pa.array(np.minimum.reduceat(rows["first"], begins), pa.int64()),
        _binary(bounds * ROW.itemsize, pa.py_buffer(rows.tobytes())),
        _binary(ends[bounds], pa.py_buffer(b"") if lines is None else lines),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _binary(ends: Any, data: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends.astype(np.int32).tobytes()), data]
    )

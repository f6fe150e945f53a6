"""Blocks of a stream become its lines in order, copies marked, while they come.

Blocks come sorted by the lowest of their rows (`blocks`). So whatever is lower than the lowest row of the block that
comes next is in its place for good, and need not be held any longer. Files are written in the order of time, more or
less: what is held at once is what brokers have spilled at the same time. Should that be much, lines go to a file
without a name, and their rows alone stay in memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from holdfast.model.limits import MIB
from holdfast.recovery.blocks import KNOWN, KNOWN_FIRST, ROW
from holdfast.recovery.scratch import scratch_file
from holdfast.recovery.seen_ids import SeenIds

SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("number", pa.int32()),
        ("copy", pa.int32()),
        ("source", pa.int32()),
        ("line", pa.int32()),
        ("event", pa.large_binary()),
    ]
)
# Sorted at once, at the least.
_HELD_ROWS_MIN: Final = 20_000
# And at the most, where times allow that.
_SORTED_ROWS_MAX: Final = 500_000
# Of lines that are held in memory.
_HELD_BYTES_MAX: Final = 64 * MIB
_GIVEN_BYTES: Final = 4 * MIB


def merged(
    batches: Iterator[pa.RecordBatch], held_rows_min: int = _HELD_ROWS_MIN, held_bytes_max: int = _HELD_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Lines with the columns of `SCHEMA`, those of a stream together and in order, of blocks that come sorted."""
    held: _Stream | None = None
    try:
        for batch in batches:
            places = zip(batch["queue"].to_pylist(), batch["number"].to_pylist(), strict=True)
            for index, (place, first) in enumerate(zip(places, batch["first"].to_pylist(), strict=True)):
                if held is None or held.place != place:
                    if held is not None:
                        yield from held.take(None)
                        held.close()
                    held = _Stream(place, held_rows_min, held_bytes_max)
                elif held.is_full:
                    yield from held.take(first)
                held.add(batch["rows"][index].as_buffer(), batch["lines"][index].as_buffer())
        if held is not None:
            yield from held.take(None)
    finally:
        if held is not None:
            held.close()


class _Stream:
    """What is held of one (queue, partition)."""

    def __init__(self, place: tuple[str, int], held_rows_min: int, held_bytes_max: int) -> None:
        self.place = place
        self._seen = SeenIds()
        self._lines = _Lines(held_bytes_max)
        # Rows with where their lines begin, as they came.
        self._parts: list[tuple[Any, Any]] = []
        self._count = 0
        self._held_rows_min = self._count_max = held_rows_min
        self._bytes_max = held_bytes_max

    @property
    def is_full(self) -> bool:
        """Whether it is worth sorting. Where much was left of the last time, more has to come."""
        return self._count >= self._count_max or self._lines.held_bytes >= 2 * self._bytes_max

    def add(self, rows: pa.Buffer, lines: pa.Buffer) -> None:
        # A buffer that came from Spark is part of one with the lines, which would be held along with it.
        added = np.frombuffer(rows, ROW).copy()
        ends = np.cumsum(added["size"], dtype=np.int64)
        self._parts.append((added, self._lines.add(lines) + ends - added["size"]))
        self._count += len(added)

    def take(self, before: int | None) -> Iterator[pa.RecordBatch]:
        """Lines in order, up to those that `before` may come in front of."""
        if before == KNOWN_FIRST:
            before += 1  # ids that the store has are in no order
        for bound in (*self._bounds(), before):
            if bound is None or before is None or bound <= before:
                yield from self._given(*self._taken(bound))
        self._parts = self._lines.kept(self._parts)
        self._count_max = max(self._held_rows_min, 2 * self._count)

    def _bounds(self) -> list[int]:
        """By which rows are divided where they are many: what is sorted is copied several times."""
        if self._count <= _SORTED_ROWS_MAX:
            return []
        firsts = np.concatenate([rows["first"] for rows, _ in self._parts])
        firsts.sort()
        return sorted(set(firsts[_SORTED_ROWS_MAX::_SORTED_ROWS_MAX].tolist()))

    def _taken(self, bound: int | None) -> tuple[Any, Any]:
        """Rows below a bound, or all, in order. The others stay as they are."""
        taken, left = [], []
        parts = self._parts[::-1]
        self._parts = []
        while parts:
            # No part is held together with what is left of it for longer than it has to be.
            rows, begins = parts.pop()
            is_below = np.ones(len(rows), bool) if bound is None else rows["first"] < bound
            if is_below.any():
                taken.append((rows[is_below], begins[is_below]))
                rows, begins = rows[~is_below], begins[~is_below]
            if len(rows):
                left.append((rows, begins))
        self._parts = left
        if not taken:
            return np.empty(0, ROW), np.empty(0, np.int64)
        rows, begins = map(np.concatenate, zip(*taken, strict=True))
        self._count -= len(rows)
        order = np.lexsort((rows["line"], rows["source"], rows["then"], rows["first"]))
        return rows[order], begins[order]

    def _given(self, rows: Any, begins: Any) -> Iterator[pa.RecordBatch]:
        copies = np.ones(len(rows), np.int32)
        with_id = np.flatnonzero(rows["has_id"])
        if len(with_id):
            is_first = self._seen.are_first(rows["high"][with_id], rows["low"][with_id])
            copies[with_id[~is_first]] = 2
        is_line = rows["source"] != KNOWN
        rows, begins, copies = rows[is_line], begins[is_line], copies[is_line]
        sizes = rows["size"]
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
        at = 0
        while at < len(sizes):
            until = max(at + 1, int(np.searchsorted(ends, ends[at] + _GIVEN_BYTES, "right")) - 1)
            yield self._batch(rows[at:until], copies[at:until], begins[at:until])
            at = until

    def _batch(self, rows: Any, copies: Any, begins: Any) -> pa.RecordBatch:
        count, sizes = len(rows), rows["size"]
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
        data = pa.py_buffer(self._lines.joined(begins, sizes))
        columns = [
            pa.repeat(pa.scalar(self.place[0], pa.string()), count),
            pa.repeat(pa.scalar(self.place[1], pa.int32()), count),
            pa.array(copies, pa.int32()),
            pa.array(np.ascontiguousarray(rows["source"]), pa.int32()),
            pa.array(np.ascontiguousarray(rows["line"]), pa.int32()),
            pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(ends.tobytes()), data]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def close(self) -> None:
        self._lines.close()


class _Lines:
    """Bytes by where they begin: in memory, and in a file once they are many."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = bytearray()
        self._file: IO[bytes] | None = None
        self._size_bytes = 0

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def add(self, lines: pa.Buffer) -> int:
        """Where they begin."""
        begin = self._size_bytes
        if self._file is None:
            self._held += lines
        else:
            self._file.write(lines)
        self._size_bytes += len(lines)
        return begin

    def joined(self, begins: Any, sizes: Any) -> bytes:
        spans = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        if self._file is None:
            held = memoryview(self._held)
            try:
                return b"".join([held[begin:end] for begin, end in spans])
            finally:
                held.release()
        self._file.flush()
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as written:
            return b"".join([written[begin:end] for begin, end in spans])

    def kept(self, parts: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Forget all but the lines of these rows; where they begin then. They go to a file if they are many."""
        size = sum(int(rows["size"].sum(dtype=np.int64)) for rows, _ in parts)
        if self._file is not None and size > self._bytes_max:
            return parts
        held, moved = bytearray(), []
        for rows, begins in parts:
            ends = np.cumsum(rows["size"], dtype=np.int64)
            moved.append((rows, len(held) + ends - rows["size"]))
            held += self.joined(begins, rows["size"])
        self.close()
        self._held, self._size_bytes = held, size
        if size > self._bytes_max:
            self._file = scratch_file()
            self._file.write(held)
            self._held = bytearray()
        return moved

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

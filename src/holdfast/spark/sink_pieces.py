"""A task's rows become pieces: record batches of one partition, as many together as one call should carry.

Each piece is a receipt that the commit has to name, and a commit names so many only. So rows wait, partition by
partition, until they are enough for a large piece; where that is too much to hold, the partition with the most is
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import BadValue
from holdfast.spark.errors import with_code
from holdfast.spark.sink_encoding import encoded, partitions_of

# Rows that are spread over partitions together, in Arrow, which takes a while for each time and little for each row.
_GATHERED_BYTES_MAX: Final = 8 * 1024 * 1024
_GATHERED_ROWS_MAX: Final = 50_000
# A batch of so many is checked and read fastest: it stays in the processor's cache.
_BATCH_ROWS: Final = 5_000
# One piece is one call, and one message of the broker's: well below the 16 MiB that it takes.
PIECE_BYTES_MAX: Final = 8 * 1024 * 1024
# All rows of a task that wait. With 256 partitions a piece has half a megabyte, and 20,000 of them 10 GB.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
# What a table takes beside its rows; there may be many of few rows.
_TABLE_BYTES: Final = 4 * 1024

Target = tuple[str, int]


class Piece(NamedTuple):
    """Record batches, one behind the other, and where they go."""

    topic: str
    partition: int
    batches: bytes


def pieces(
    rows: Iterator[pa.RecordBatch], topic: str | None, partition_count: Callable[[str], int], task: int
) -> Iterator[Piece]:
    """All rows, those of a partition in their order. They go to `topic`, or without it where each row says."""
    counts: dict[str, int] = {}
    held = _Held()
    for turn, gathered in zip(count(task), _gathered(rows), strict=False):
        for name, of_topic in _by_topic(gathered, topic):
            if name not in counts:
                counts[name] = partition_count(name)
            for partition, of_partition in _by_partition(of_topic, counts[name], turn):
                yield from _encoded((name, partition), held.add((name, partition), of_partition))
        while held.is_too_much:
            yield from _encoded(*held.take_largest())
    while held:
        yield from _encoded(*held.take_largest())


class _Held:
    """Rows that wait for more of their partition."""

    def __init__(self) -> None:
        self._tables: dict[Target, list[pa.Table]] = {}
        self._sizes: dict[Target, int] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._tables)

    @property
    def is_too_much(self) -> bool:
        return self._bytes > HELD_BYTES_MAX

    def add(self, target: Target, rows: pa.Table) -> list[pa.Table]:
        """All rows of the partition, where they are enough for a piece; none where they wait."""
        self._tables.setdefault(target, []).append(rows)
        size = rows.nbytes + _TABLE_BYTES
        self._sizes[target] = self._sizes.get(target, 0) + size
        self._bytes += size
        return self._take(target) if self._sizes[target] >= PIECE_BYTES_MAX else []

    def take_largest(self) -> tuple[Target, list[pa.Table]]:
        target = max(self._sizes, key=self._sizes.__getitem__)
        return target, self._take(target)

    def _take(self, target: Target) -> list[pa.Table]:
        self._bytes -= self._sizes.pop(target)
        return self._tables.pop(target)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
        if size >= _GATHERED_BYTES_MAX or rows >= _GATHERED_ROWS_MAX:
            yield pa.Table.from_batches(held)
            held, size, rows = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _by_topic(rows: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """The option's topic, whatever the rows say, as in Spark's Kafka connector; or each row's own."""
    if topic is not None:
        yield topic, rows
        return
    column = rows["topic"]  # that it is there was checked when the query began
    for name in pc.unique(column).to_pylist():
        if name is None:
            raise with_code(BadValue, "a row has no topic, and the option topic is not given")
        yield name, rows.filter(pc.equal(column, name))


def _by_partition(rows: pa.Table, partitions: int, turn: int) -> Iterator[tuple[int, pa.Table]]:
    """Rows of one partition together, in their order: by their own number, by key, or all where the turn is."""
    names = rows.column_names
    if "partition" in names:
        numbers = pc.fill_null(rows["partition"].combine_chunks(), turn % partitions).to_numpy(zero_copy_only=False)
    elif "key" in names or "id" in names:
        tokens = rows["key" if "key" in names else "id"].combine_chunks()
        if "key" in names and "id" in names:
            tokens = pc.coalesce(tokens.cast("binary"), rows["id"].combine_chunks().cast("binary"))
        numbers = partitions_of(tokens, partitions, turn % partitions)
    else:
        yield turn % partitions, rows
        return
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    for number, piece in zip(found, np.split(order, starts[1:]), strict=True):
        yield int(number), rows.take(piece)


def _encoded(target: Target, tables: list[pa.Table]) -> Iterator[Piece]:
    """Pieces of the rows of one partition; none where there are no rows."""
    if not tables:
        return
    rows = pa.concat_tables(tables)
    held: list[bytes] = []
    size = 0
    for start in range(0, rows.num_rows, _BATCH_ROWS):
        part = rows.slice(start, _BATCH_ROWS)
        for batch in _cut({name: part[name].combine_chunks() for name in part.column_names}):
            if held and size + len(batch) > PIECE_BYTES_MAX:
                yield Piece(*target, b"".join(held))
                held, size = [], 0
            held.append(batch)
            size += len(batch)
    yield Piece(*target, b"".join(held))


def _cut(columns: dict[str, pa.Array]) -> Iterator[bytes]:
    """One batch, or as many as it takes where rows are large."""
    rows = len(columns["value"])
    if rows > 1 and sum(column.nbytes for column in columns.values()) > PIECE_BYTES_MAX // 2:
        half = rows // 2
        yield from _cut({name: column.slice(0, half) for name, column in columns.items()})
        yield from _cut({name: column.slice(half) for name, column in columns.items()})
        return
    yield encoded(columns["value"], columns.get("key"), columns.get("id"), columns.get("headers"))

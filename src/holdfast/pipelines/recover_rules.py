"""The recovery's rules as DataFrame functions: which lines belong together, and in which order they are stored.

A row is a block of lines of a spill (`holdfast.recovery.blocks`). Which message is a copy of another is found where
they are put in order (`holdfast.recovery.merging`). tests/spark/recover_by_hand.py has the rules a second time, in
plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f

from holdfast.recovery import blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def ordered(read: DataFrame, pieces: int) -> DataFrame:
    """Blocks of each (queue, partition) together, by their first rows, in so many pieces."""
    return read.repartition(pieces, "queue", "number").sortWithinPartitions("queue", "number", "first")


def with_stored(read: DataFrame, stored: DataFrame) -> DataFrame:
    """Blocks together with messages that a store has, rows as the connector reads them.

    A message that was given no id has its place for one, and is like no other.
    """
    has_id = f.col("id") != f.concat_ws("-", "partition", "offset")
    return read.unionByName(stored.where(has_id).select("topic", "partition", "id").mapInArrow(_known, blocks.DDL))


def _known(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ids: dict[tuple[str, int], list[str]] = {}
        for topic, number, message_id in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            ids.setdefault((topic, number), []).append(message_id)
        for (topic, number), some in ids.items():
            yield blocks.known_ids(topic, number, some)

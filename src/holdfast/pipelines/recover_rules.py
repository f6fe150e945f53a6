"""The recovery's rules as DataFrame functions: which message is a copy of another, and in which order they are stored.

A row is a line of a spill (`holdfast.recovery.lines`). tests/spark/recover_by_hand.py has the rules a second time, in
plain Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LINES_DDL: Final = "queue string, number int, time bigint, kept bigint, source int, line int, key string, event binary"
# By what messages of a partition are sorted first. Clocks tie; files and lines do not.
ORDERS: Final = {"time": ("time", "kept", "source", "line"), "kept": ("kept", "time", "source", "line")}


def ordered(lines: DataFrame, order_by: str, pieces: int) -> DataFrame:
    """Rows of each (queue, partition) together and in order, in so many pieces; `copy` counts those of one id.

    The first in that order is copy 1, unless a message that is stored already is: those are left out then. Rows are
    exchanged once: what is sorted by id is sorted again where it is.
    """
    order = ORDERS[order_by]
    copies = Window.partitionBy("key", "queue", "number").orderBy(*order)
    return (
        lines.repartition(pieces, "queue", "number")
        .withColumn("copy", f.row_number().over(copies))
        .where("event is not null")
        .sortWithinPartitions("queue", "number", *order)
        .select("queue", "number", "copy", "event")
    )


def with_stored(lines: DataFrame, stored: DataFrame) -> DataFrame:
    """Lines together with messages that a store has, rows as the connector reads them: all of those come first.

    A message that was given no id has its place for one, and is like no other.
    """
    has_id = f.col("id") != f.concat_ws("-", "partition", "offset")
    first = f.lit(-(1 << 62))
    rows = stored.where(has_id).select(
        f.col("topic").alias("queue"),
        f.col("partition").alias("number"),
        first.alias("time"),
        first.alias("kept"),
        f.lit(-1).alias("source"),
        f.lit(0).alias("line"),
        f.col("id").alias("key"),
        f.lit(None).cast("binary").alias("event"),
    )
    return lines.unionByName(rows)

"""What a task does: fetch the batches of its slice, decode them in bulk, hand Arrow batches to Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from holdfast.spark.fetching import Slice, Source, fetch
from holdfast.spark.options import SourceOptions
from holdfast.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that Spark gets at a time: the JVM works on one batch while the next is made.
_ROWS_MAX: Final = 16_384


def read_slice(options: SourceOptions, schema: StructType, wanted: Slice | None) -> Iterator[pa.RecordBatch]:
    """All messages of a slice, in order, as Arrow batches of exactly that schema."""
    if wanted is None:
        return
    # Loaded where they are used: a driver that only plans needs neither.
    from holdfast.spark.decoding import decode

    columns = arrow_schema(schema)
    source = Source(options.servers, options.broker_timeout_s, options.fail_on_data_loss)
    for start, data in fetch(source, wanted):
        batch = decode(data, wanted.topic, wanted.partition, start, wanted.end, columns)
        for first in range(0, batch.num_rows, _ROWS_MAX):
            yield batch.slice(first, _ROWS_MAX)

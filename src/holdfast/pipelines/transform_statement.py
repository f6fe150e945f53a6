"""A statement that works row by row, written micro-batch by micro-batch, without the rows for which it raises.

A micro-batch is one numbered job of the sink, under the name and number that the streaming sink would use: the query of
the checkpoint, and the batch. It is tried as a whole first. Where that fails nothing of it is visible, and rows for
which the statement raises are looked for. If there are none, somebody else failed, and that ends the query. Else what
the other rows make is written with the dead letters of these, in one transaction. A driver that is killed in between
finds them again: the batch has the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Observation

from holdfast.pipelines.dead_letters import dead_letters, rows_at
from holdfast.pipelines.errors import TooManyRaise, from_spark
from holdfast.pipelines.made_rows import MADE_DDL, Rules
from holdfast.pipelines.transform_errors import is_no_rows_fault
from holdfast.pipelines.transform_plans import Transform, counts, sink_options, timed
from holdfast.pipelines.transform_raising import Failed, failing
from holdfast.pipelines.transform_sql import as_messages, quietly, selected

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_QUERY_ID: Final = "sql.streaming.queryId"


class StatementWriter:
    """Writes each micro-batch of a statement that works row by row."""

    def __init__(self, wanted: Transform, servers: str, checkpoint: str, tell: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._servers = servers
        self._checkpoint = checkpoint
        self._tell = tell
        self.counts = {"made": 0, "dead": 0}
        self.is_used = False

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.is_used = True
        try:
            self._write_batch(rows, batch)
        except (PySparkException, Py4JJavaError, TooManyRaise) as error:
            failed = error if isinstance(error, TooManyRaise) else from_spark(str(error))
            # Spark passes on texts only, and of this one all.
            raise RuntimeError(f"[{failed.code}] {failed.message}") from error

    def _write_batch(self, rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        assert query is not None, "a batch of a streaming query knows its query"
        # As the streaming sink would: the checkpoint's query, and the batch.
        options = {
            "servers": self._servers,
            "writer": f"spark-{query}",
            "writerBatch": str(batch),
            "checkpointLocation": self._checkpoint,
            **sink_options(self._wanted),
        }

        def write(made: DataFrame) -> None:
            seen = Observation()
            counted = made.observe(seen, *counts(self._wanted.target))
            counted.write.format("holdfast").options(**options).mode("append").save()
            for name, count in seen.get.items():
                self.counts[name] += count

        try:
            with quietly():
                write(self._made(rows))
        except (PySparkException, Py4JJavaError) as error:
            if is_no_rows_fault(error):
                raise
            kept = rows.persist()
            try:
                failed = failing(kept, self._made, self._tell)
                if not failed:
                    raise
                write(self._made(without(kept, failed)).unionByName(buried(kept, failed, self._wanted.rules)))
            finally:
                kept.unpersist()

    def _made(self, rows: DataFrame) -> DataFrame:
        assert self._wanted.sql is not None
        return as_messages(selected(timed(rows, self._wanted), self._wanted.sql), self._wanted.rules)


def without(rows: DataFrame, failed: list[Failed]) -> DataFrame:
    """All others. Not by a join, or a condition: Spark would look at those of the statement first."""
    places = {(each.partition, each.offset) for each in failed}

    def leave_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield rows_at(batch, lambda place: place not in places)

    return rows.mapInArrow(leave_out, rows.schema)


def buried(rows: DataFrame, failed: list[Failed], rules: Rules) -> DataFrame:
    """Dead letters of rows for which a statement raises."""
    errors = {(each.partition, each.offset): each.error for each in failed}

    def bury(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from dead_letters(rows_at(batch, errors.__contains__), errors, rules)

    return rows.mapInArrow(bury, MADE_DDL)

"""Which rows of a batch make a statement raise, and what is said for each.

A job that fails tells of one error, and not of its row. So the driver runs the statement itself, over a part of the
batch at a time: a plan of projections, filters and generators alone is an iterator over its scan. It goes on behind a
row that raised, and the scan counts the rows that it gave. Each row is looked at once, and one that raises takes some
milliseconds more.

Where a statement needs something else, a function that was registered with the session for one, rows that raise are
found by trying smaller and smaller ranges of offsets, each as a job: some twenty for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from holdfast.pipelines.errors import TooManyRaise
from holdfast.pipelines.transform_plans import configured
from holdfast.pipelines.transform_sql import message_bytes, nodes, of_a_row, quietly

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# A statement that raises for more of a batch is wrong, and to look at each takes minutes.
RAISING_MAX: Final = 10_000
RAISING_BY_JOBS_MAX: Final = 100
# What the driver holds of a batch at a time, in Python and in Java.
_PART_BYTES_MAX: Final = 16 * 1024 * 1024
_PART_ROWS_MAX: Final = 20_000
_PLACE: Final = ("partition", "offset")
_ITERATORS: Final = frozenset(("Project", "Filter", "Generate", "LocalTableScan"))
# Statements that run once, on few rows: compiling each takes longer than what it saves. And nothing may be run while it
# is planned.
_INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    "spark.sql.execution.arrow.localRelationThreshold": str(1 << 40),
}

Make = Callable[["DataFrame"], "DataFrame"]


class Failed(NamedTuple):
    """A row for which a statement raises, and what that said."""

    partition: int
    offset: int
    error: str


class _Range(NamedTuple):
    partition: int
    first: int
    last: int

    def of(self, rows: DataFrame) -> DataFrame:
        return rows.where((f.col("partition") == self.partition) & f.col("offset").between(self.first, self.last))


def failing(rows: DataFrame, make: Make, tell: Callable[[str], None]) -> list[Failed]:
    """The rows of a batch for which what `make` makes of them raises; `too_many_raise` where they are too many."""
    found: dict[tuple[int, int], Failed] = {}
    with configured(rows.sparkSession, _INTERPRETED), quietly():
        parts = list(_parts(rows))
        is_simple = all(name in _ITERATORS for name, _ in nodes(_executed(make, _local(rows, rows.limit(1).toArrow()))))
        raised = _on_the_driver(rows, parts, make) if is_simple else _by_halves(rows, parts, make)
        for count, failed in enumerate(raised, 1):
            found.setdefault((failed.partition, failed.offset), failed)
            _check(count, RAISING_MAX if is_simple else RAISING_BY_JOBS_MAX)
            tell(f"{len(found):,} messages raise so far")
    return list(found.values())


def _check(count: int, most: int) -> None:
    if count > most:
        raise TooManyRaise(
            f"the statement raises for more than {most:,} messages of a batch; nothing of it is written. Write "
            "try_cast, try_divide and their like, or a function, or give a smaller batch_messages, and start it again"
        )


def _parts(rows: DataFrame) -> Iterator[_Range]:
    """The batch as ranges of offsets, each as large as the driver may hold."""
    size = message_bytes(f.col("key"), f.col("value"), f.col("headers"))
    sizes = (
        rows.select("partition", "offset", size.alias("bytes")).toArrow().sort_by([(n, "ascending") for n in _PLACE])
    )
    part, held, count = None, 0, 0
    for partition, offset, each in zip(*(sizes[name].to_pylist() for name in (*_PLACE, "bytes")), strict=True):
        held, count = held + each, count + 1
        if part is None or partition != part.partition or held > _PART_BYTES_MAX or count > _PART_ROWS_MAX:
            if part is not None:
                yield part
            part, held, count = _Range(partition, offset, offset), each, 1
        part = part._replace(last=offset)
    if part is not None:
        yield part


def _on_the_driver(rows: DataFrame, parts: list[_Range], make: Make) -> Iterator[Failed]:
    jvm: Any = rows.sparkSession._jvm
    context = getattr(getattr(jvm.org.apache.spark, "TaskContext$"), "MODULE$").empty()
    for part in parts:
        table = part.of(rows).toArrow()
        plan = _executed(make, _local(rows, table))
        scanned = plan.collectLeaves().apply(0).metrics().apply("numOutputRows")
        results = plan.execute()
        for slice_ in results.partitions():
            for error in _errors(results.iterator(slice_, context)):
                row = int(scanned.value()) - 1
                yield Failed(table["partition"][row].as_py(), table["offset"][row].as_py(), error)


def _errors(results: Any) -> Iterator[str]:
    """What an iterator of rows raises on its way to its end."""
    while True:
        try:
            results.size()
        except (PySparkException, Py4JJavaError) as error:
            yield _said(error)
        else:
            return


def _said(error: Exception) -> str:
    text = of_a_row(error)
    if text is None:
        raise error
    return text


def _local(rows: DataFrame, table: pa.Table) -> DataFrame:
    return rows.sparkSession.createDataFrame(table, rows.schema)


def _executed(make: Make, rows: DataFrame) -> Any:
    return make(rows)._jdf.queryExecution().executedPlan()


def _by_halves(rows: DataFrame, parts: list[_Range], make: Make) -> Iterator[Failed]:
    waiting = parts[::-1]
    while waiting:
        part = waiting.pop()
        try:
            make(part.of(rows)).write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            text = _said(error)
            if part.first == part.last:
                yield Failed(part.partition, part.first, text)
                continue
            middle = (part.first + part.last) // 2
            waiting += [part._replace(first=middle + 1), part._replace(last=middle)]

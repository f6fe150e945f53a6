"""Which rows of a batch make a statement raise, and what is said for each.

A job that fails tells of one error, and not of its row. So the driver runs the statement itself, over a part of the
batch at a time: a plan of projections, filters and generators alone is an iterator over its scan. It goes on behind a
row that raised, and the scan counts the rows that it gave. Each row is looked at once, and one that raises takes some
milliseconds more. There is neither sink nor broker in that, so whatever is raised, the row is to blame.

Where a statement needs something else, a function that was registered with the session for one, rows that raise are
found by trying smaller and smaller ranges of offsets, each as a job: some twenty for each row. A row is to blame if it
raises alone, and once more when the driver gives it to the job itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from holdfast.pipelines.errors import TooManyRaise
from holdfast.pipelines.transform_errors import is_no_rows_fault, of_a_row, said
from holdfast.pipelines.transform_plans import configured
from holdfast.pipelines.transform_sql import message_bytes, nodes, quietly

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# A statement that raises for more of a batch is wrong, and to look at each takes minutes.
RAISING_MAX: Final = 10_000
RAISING_BY_JOBS_MAX: Final = 100
# What the driver holds of a batch at a time, in Python and in Java.
_PART_BYTES_MAX: Final = 16 * 1024 * 1024
_PART_ROWS_MAX: Final = 20_000
# Behind explode a row may raise for each that it makes. To plan what is behind the row takes as long as some of these.
_RAISES_OF_A_ROW_MAX: Final = 30
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

_log = logging.getLogger("holdfast.pipelines")

Make = Callable[["DataFrame"], "DataFrame"]


class Failed(NamedTuple):
    """A row for which a statement raises, and what that said."""

    partition: int
    offset: int
    error: str


class _NotOnTheDriver(Exception):
    """The driver raises for a row for which a job does not."""


class _Range(NamedTuple):
    partition: int
    first: int
    last: int

    def of(self, rows: DataFrame) -> DataFrame:
        return rows.where((f.col("partition") == self.partition) & f.col("offset").between(self.first, self.last))


def failing(rows: DataFrame, make: Make, tell: Callable[[str], None]) -> list[Failed]:
    """The rows of a batch for which what `make` makes of them raises; `too_many_raise` where they are too many."""
    with configured(rows.sparkSession, _INTERPRETED), quietly():
        parts = list(_parts(rows))
        try:
            if _is_simple(rows, make):
                return _all(_on_the_driver(rows, parts, make), RAISING_MAX, tell)
        except Py4JJavaError:
            raise
        except (_NotOnTheDriver, TypeError, AttributeError, Py4JError) as error:
            # What is called in Java to that end is no interface, and another release may have something else there.
            _log.warning("the driver cannot look for rows that raise, jobs do: %s", error)
        return _all(_by_halves(rows, parts, make), RAISING_BY_JOBS_MAX, tell)


def _all(raised: Iterator[Failed], most: int, tell: Callable[[str], None]) -> list[Failed]:
    found: list[Failed] = []
    for failed in raised:
        found.append(failed)
        _check(len(found), most)
        tell(f"{len(found):,} messages raise so far")
    return found


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


def _is_simple(rows: DataFrame, make: Make) -> bool:
    return all(name in _ITERATORS for name, _ in nodes(_executed(make, _local(rows, rows.limit(1).toArrow()))))


def _on_the_driver(rows: DataFrame, parts: list[_Range], make: Make) -> Iterator[Failed]:
    known: set[str] = set()
    for part in parts:
        table = part.of(rows).toArrow()
        while table.num_rows:
            last, times, rest = -1, 0, table.slice(table.num_rows)
            for row, error in _errors(rows, _executed(make, _local(rows, table))):
                last, times = row, times + 1 if row == last else 1
                if times == 1:
                    _confirm(rows, table.slice(row, 1), make, error, known)
                    yield Failed(table["partition"][row].as_py(), table["offset"][row].as_py(), said(error))
                elif times == _RAISES_OF_A_ROW_MAX:
                    rest = table.slice(row + 1)
                    break
            table = rest


def _errors(rows: DataFrame, plan: Any) -> Iterator[tuple[int, Exception]]:
    """What a plan raises on its way to its end, and at which row of its scan; at one row many times, behind explode."""
    jvm: Any = rows.sparkSession._jvm
    context = getattr(getattr(jvm.org.apache.spark, "TaskContext$"), "MODULE$").empty()
    scanned = plan.collectLeaves().apply(0).metrics().apply("numOutputRows")
    results = plan.execute()
    for slice_ in results.partitions():
        made = results.iterator(slice_, context)
        while True:
            try:
                made.size()
            except (PySparkException, Py4JJavaError) as error:
                row = int(scanned.value()) - 1
                if row < 0 or is_no_rows_fault(error):
                    raise
                yield row, error
            else:
                break


def _confirm(rows: DataFrame, row: pa.Table, make: Make, error: Exception, known: set[str]) -> None:
    """See once for each kind of error that a job raises, too, unless the kind is one that only rows raise."""
    kind = said(error).partition(":")[0]
    if kind in known:
        return
    if of_a_row(error) is None and _raised(_local(rows, row), make) is None:
        raise _NotOnTheDriver(said(error))
    known.add(kind)


def _raised(rows: DataFrame, make: Make) -> Exception | None:
    """What a job raises that makes something of rows, and writes it nowhere."""
    try:
        make(rows).write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JJavaError) as error:
        if is_no_rows_fault(error):
            raise
        return error
    return None


def _local(rows: DataFrame, table: pa.Table) -> DataFrame:
    return rows.sparkSession.createDataFrame(table, rows.schema)


def _executed(make: Make, rows: DataFrame) -> Any:
    return make(rows)._jdf.queryExecution().executedPlan()


def _by_halves(rows: DataFrame, parts: list[_Range], make: Make) -> Iterator[Failed]:
    waiting = parts[::-1]
    while waiting:
        part = waiting.pop()
        if _raised(part.of(rows), make) is None:
            continue
        if part.first < part.last:
            middle = (part.first + part.last) // 2
            waiting += [part._replace(first=middle + 1), part._replace(last=middle)]
        # Once more, with the row in the driver's hands: where it came from has no part in that.
        elif (error := _raised(_local(rows, part.of(rows).toArrow()), make)) is not None:
            yield Failed(part.partition, part.first, said(error))

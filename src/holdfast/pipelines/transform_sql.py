"""A statement over the view `messages`: whether its rows are messages, and each is made of one.

Where each row of the result is made of one row of `messages` (`is_row_by_row`), a row that raises can be found
(`transform_raising`) and left out. Aggregates have no such rows: there the statement must not raise (`try_cast`,
`try_divide` and their like give null).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as f

from holdfast.model.errors import HoldfastError
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX, MESSAGE_ID_BYTES_MAX
from holdfast.pipelines.errors import BadSql, first_line
from holdfast.pipelines.made_rows import GIVEN, Rules
from holdfast.spark.sink_options import SinkOptions, check_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VIEW: Final = "messages"
# A view is its session's, which several transforms may share.
_VIEW_LOCK: Final = threading.Lock()
_QUERY: Final = re.compile(r"\s*(SELECT|WITH|FROM)\b", re.IGNORECASE)
# Nodes of a plan that make each row of one.
_ROW_BY_ROW: Final = frozenset(("Project", "Filter", "Generate", "SubqueryAlias", "View", "EventTimeWatermark"))
# Printable characters in a row that make a range of the pattern for most ids: Latin, Cyrillic, Chinese and such.
_COMMON_RUN: Final = 90
_HEADERS_TYPE: Final = "array<struct<key: string, value: binary>>"


def selected(rows: DataFrame, sql: str) -> DataFrame:
    """The result of a statement; `bad_sql` where Spark does not understand it."""
    if not _QUERY.match(sql):
        raise BadSql("the statement has to be a query: SELECT … FROM messages")
    with _VIEW_LOCK:
        _create_view(rows)
        try:
            with quietly():
                return rows.sparkSession.sql(sql)
        except (AnalysisException, ParseException) as error:
            raise BadSql(f"Spark does not understand it: {first_line(str(error))}") from error
        finally:
            rows.sparkSession.catalog.dropTempView(VIEW)


def _create_view(rows: DataFrame) -> None:
    if not rows.isStreaming:
        # A micro-batch: its session is the query's alone, and began as a copy of the caller's at some moment.
        rows.createOrReplaceTempView(VIEW)
        return
    try:
        with quietly():
            rows.createTempView(VIEW)
    except AnalysisException as error:
        if error.getCondition() != "TEMP_TABLE_OR_VIEW_ALREADY_EXISTS":
            raise
        raise BadSql(
            f"the session has a view {VIEW} of its own, which a statement would not read: give that another name, or "
            "start this in a session of its own"
        ) from error


def check(result: DataFrame) -> None:
    """Refuse a result whose rows are no messages, and what a stream cannot do."""
    if not result.isStreaming:
        raise BadSql(f"the statement does not read {VIEW}: SELECT … FROM {VIEW}")
    if strange := [name for name in result.columns if name not in GIVEN]:
        raise BadSql(
            f"a message has no column {', '.join(strange)}; select {', '.join(GIVEN)}, and make one value of several "
            "columns with to_json(struct(…)) AS value"
        )
    try:
        check_columns(result.schema, SinkOptions((), "", None, 0))
    except HoldfastError as error:
        raise BadSql(error.message.partition("] ")[2]) from error
    if len(set(result.columns)) < len(result.columns):
        raise BadSql(f"a column comes twice: {', '.join(result.columns)}")
    try:
        with quietly():
            _check_streams(result)
    except AnalysisException as error:
        raise BadSql(
            f"a stream cannot do this: {first_line(str(error))}. Aggregates need a window of the event time and the "
            "setting watermark"
        ) from error


def _check_streams(result: DataFrame) -> None:
    jvm: Any = result.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(_plan(result), jvm.org.apache.spark.sql.streaming.OutputMode.Append())


def is_row_by_row(result: DataFrame) -> bool:
    """Whether each row of the result is made of one row of a stream, whichever others there are."""
    return all(name in _ROW_BY_ROW or is_leaf for name, is_leaf in nodes(_plan(result)))


def _plan(result: DataFrame) -> Any:
    return result._jdf.queryExecution().analyzed()


def nodes(plan: Any) -> Iterator[tuple[str, bool]]:
    """The names of a plan's nodes, and whether each is a leaf."""
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    yield str(plan.nodeName()), not children
    for child in children:
        yield from nodes(child)


def as_messages(result: DataFrame, rules: Rules) -> DataFrame:
    """The result as rows for the target; a row that a broker would refuse raises, as one does that cannot be made."""
    columns = {name: f.col(name) for name in result.columns}
    key = columns.get("key", f.lit(None)).cast("binary")
    value = columns["value"].cast("binary")
    headers = columns.get("headers", f.lit(None)).cast(_HEADERS_TYPE)
    identity = columns.get("id", f.lit(None)).cast("string")
    is_strange = f.exists(
        headers, lambda each: each["key"].isNull() | (each["key"] == "holdfast-id") | ~f.is_valid_utf8(each["key"])
    )
    plain, unprintable = id_patterns()
    refused = (
        f.when(
            message_bytes(key, value, headers) > rules.message_bytes_max,
            f.lit(f"a message has at most {rules.message_bytes_max} bytes"),
        )
        .when(
            ~f.octet_length(identity).between(1, MESSAGE_ID_BYTES_MAX),
            f.lit(f"an id has 1 to {MESSAGE_ID_BYTES_MAX} bytes"),
        )
        .when(~f.is_valid_utf8(identity), f.lit("an id is UTF-8 text"))
        .when(
            ~identity.rlike(plain) & identity.rlike(unprintable),
            f.lit("an id has printable characters only"),
        )
        .when(f.size(headers) > HEADERS_PER_MESSAGE_MAX, f.lit(f"at most {HEADERS_PER_MESSAGE_MAX} headers"))
        .when(is_strange, f.lit("a header has a name in UTF-8, and it is not holdfast-id"))
    )
    checked = f.when(refused.isNull(), value).otherwise(f.raise_error(refused).cast("binary"))
    target = f.lit(rules.target).alias("topic")
    return result.select(
        target, key.alias("key"), checked.alias("value"), headers.alias("headers"), identity.alias("id")
    )


def message_bytes(key: Column, value: Column, headers: Column) -> Column:
    """What a broker counts for a message."""
    return _length(key) + _length(value) + f.coalesce(f.aggregate(headers, f.lit(0), _with_header), f.lit(0))


def _length(column: Column) -> Column:
    return f.coalesce(f.octet_length(column), f.lit(0))


def _with_header(size: Column, header: Column) -> Column:
    return size + _length(header["key"]) + _length(header["value"]) + 10


@functools.cache
def id_patterns() -> tuple[str, str]:
    """What ids of common characters alone match, and in what else a character is found that no id has, for Java.

    Both are made of what Python says, as brokers go by that, and each release of either language knows other
    characters. Java tries one range after the other: the second pattern is slow, and for few ids.
    """
    kinds = itertools.groupby(range(sys.maxunicode + 1), lambda each: chr(each).isprintable())
    runs = [(is_printable, found[0], found[-1]) for is_printable, each in kinds if (found := list(each))]
    common = [(first, last) for is_printable, first, last in runs if is_printable and last - first >= _COMMON_RUN]
    strange = [(first, last) for is_printable, first, last in runs if not is_printable]
    return rf"\A{_ranges(common)}*\z", _ranges(strange)


def _ranges(ranges: list[tuple[int, int]]) -> str:
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Spark's Python side logs each error of a statement with all of Java's trace; here somebody takes care of it."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before

"""What a transform does with rows, as plans: through a function over batches, or through one with a state.

These are functions of DataFrames that know neither brokers nor queries; `transform_sql` has those for statements.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as f

from holdfast.model.limits import MESSAGE_BYTES_MAX
from holdfast.model.names import topic_name
from holdfast.pipelines.dead_letters import dead_letter, dead_topic
from holdfast.pipelines.errors import BadPipelineSetting, first_line
from holdfast.pipelines.made_rows import ARROW, BATCHES, MADE_DDL, Rules
from holdfast.pipelines.transform_functions import Found
from holdfast.pipelines.transform_rows import over_batches
from holdfast.spark.sink_options import DEAD_MAX, DEAD_TOPIC, is_dead_max

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVENT_TIME: Final = "event_time"
BATCH_ROWS_MAX_DEFAULT: Final = 10_000
CALL_TIMEOUT_S_MAX: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """What is to be done: a `function` or a statement (`sql`), and how rows come to it.

    `event_time` is an expression; where it is null, or not given, the time of a message is its timestamp. `dead_max`
    ends the pipeline before a batch with more dead letters is written: a number, or a share such as `5%`. A message for
    which one call of the function takes longer than `call_timeout_s` is dead.
    """

    source: str
    target: str
    function: Found | None = None
    sql: str | None = None
    is_stateful: bool = False
    window_s: float | None = None
    watermark_s: float | None = None
    state_ttl_s: float | None = None
    event_time: str | None = None
    batches: str = ARROW
    batch_rows_max: int = BATCH_ROWS_MAX_DEFAULT
    message_bytes_max: int = MESSAGE_BYTES_MAX
    dead_max: str | int | None = None
    call_timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself (`bad_option`), or names no topic (`bad_topic`)."""
        topic_name(self.source)
        topic_name(self.target)
        wrong = [
            (self.target in (self.source, dead_topic(self.source)), "target has to be another topic than source"),
            ((self.function is None) == (self.sql is None), "give a function or sql, one of both"),
            (self.is_stateful and self.function is None, "stateful goes with a function; sql says itself what it is"),
            (self.window_s is not None and not self.is_stateful, "window goes with stateful; sql has its own windows"),
            ((self.window_s is None) < (self.watermark_s is None), "window needs a watermark: when is a window over?"),
            (self.state_ttl_s is not None and not self.is_stateful, "state_ttl goes with stateful"),
            (
                self.state_ttl_s is not None and self.window_s is not None,
                "a window ends by itself: leave state_ttl out",
            ),
            (
                self._uses_time and self.sql is None and self.window_s is None,
                "watermark and event_time go with windows",
            ),
            (self.batches not in BATCHES, f"batches is one of {', '.join(BATCHES)}"),
            (self.batch_rows_max < 1, "batch_rows is at least 1"),
            (
                self.dead_max is not None and not is_dead_max(str(self.dead_max)),
                f"dead_max is a number or a share such as 5%, not {self.dead_max}",
            ),
            (
                self.call_timeout_s is not None and self.function is None,
                "call_timeout goes with a function; what SQL does cannot be interrupted",
            ),
            (
                self.call_timeout_s is not None and not 0.001 <= self.call_timeout_s <= CALL_TIMEOUT_S_MAX,
                "call_timeout is 1ms to 7d",
            ),
            (self.message_bytes_max < 1, "message_bytes_max is at least 1"),
        ]
        for is_wrong, words in wrong:
            if is_wrong:
                raise BadPipelineSetting(words)

    @property
    def _uses_time(self) -> bool:
        return self.watermark_s is not None or self.event_time is not None

    @property
    def rules(self) -> Rules:
        return Rules(
            self.source,
            self.target,
            self.batches,
            self.batch_rows_max,
            self.message_bytes_max,
            self.call_timeout_s,
        )


def sink_options(wanted: Transform) -> dict[str, str]:
    """What the sink is told beside where to write."""
    if wanted.dead_max is None:
        return {}
    return {DEAD_TOPIC: dead_topic(wanted.source), DEAD_MAX: str(wanted.dead_max)}


def timed(messages: DataFrame, wanted: Transform, *, is_forgiving: bool = False) -> DataFrame:
    """With the time of each message, and how late one may come.

    Where `event_time` raises for a message, so does this; a forgiving one leaves the message out (`untimed` has it).
    """
    own = f.col("timestamp")
    if wanted.event_time is None:
        rows = messages.withColumn(EVENT_TIME, own)
    else:
        try:
            time = f.expr(wanted.event_time).cast("timestamp")
            if is_forgiving:
                tried = _tried(messages, wanted)
                messages, time = messages.where(tried.isNotNull()), tried[EVENT_TIME]
            rows = messages.withColumn(EVENT_TIME, f.coalesce(time, own))
        except (AnalysisException, ParseException) as error:
            raise BadPipelineSetting(f"event_time is no time of a message: {first_line(str(error))}") from error
    return rows if wanted.watermark_s is None else rows.withWatermark(EVENT_TIME, _interval(wanted.watermark_s))


def with_untimed(made: DataFrame, messages: DataFrame, wanted: Transform) -> DataFrame:
    """What is made, and dead letters of messages for which `event_time` raises."""
    if wanted.event_time is None:
        return made
    rules, error = wanted.rules, f"EventTimeRaised: for this message the event time raises: {wanted.event_time}"

    def bury(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in range(batch.num_rows):
                yield from dead_letter(pa.Table.from_batches([batch.slice(row, 1)]), error, rules).to_batches()

    untimed = messages.where(_tried(messages, wanted).isNull())
    return made.unionByName(untimed.mapInArrow(bury, MADE_DDL))


def _tried(messages: DataFrame, wanted: Transform) -> Column:
    """A struct of the event time alone, or null where the expression raises: Spark has that, and no name for it."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    assert wanted.event_time is not None
    jvm: Any = messages.sparkSession._jvm
    columns = jvm.org.apache.spark.sql.classic.ExpressionUtils
    whole: Any = f.struct(f.expr(wanted.event_time).cast("timestamp").alias(EVENT_TIME))
    return ClassicColumn(
        columns.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(columns.expression(whole._jc)))
    )


def mapped(messages: DataFrame, wanted: Transform) -> DataFrame:
    """Through a function over batches."""
    assert wanted.function is not None
    run = over_batches(wanted.function.function, wanted.rules)
    return messages.mapInArrow(run, MADE_DDL)


def folded(messages: DataFrame, wanted: Transform) -> DataFrame:
    """Through a function with a state for each key, or each key and window."""
    from holdfast.pipelines.transform_state import Folding

    assert wanted.function is not None
    rows = timed(messages, wanted, is_forgiving=True)
    keys = ["key"]
    if wanted.window_s is not None:
        window = f.window(EVENT_TIME, _interval(wanted.window_s))
        rows = rows.withColumns({"window_start": window["start"], "window_end": window["end"]})
        keys += ["window_start", "window_end"]
    ttl_ms = None if wanted.state_ttl_s is None else round(wanted.state_ttl_s * 1000)
    folding = Folding(
        wanted.function.function, wanted.rules, has_windows=wanted.window_s is not None, state_ttl_ms=ttl_ms
    )
    mode = "EventTime" if wanted.window_s is not None else "ProcessingTime" if ttl_ms is not None else "None"
    made = rows.groupBy(*keys).transformWithState(folding, MADE_DDL, "Append", mode)
    return with_untimed(made, messages, wanted)


def _interval(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


def counts(target: str) -> list[Column]:
    """How many rows are for the target, and how many are dead."""
    is_made = f.col("topic") == target
    return [f.count_if(is_made).alias("made"), f.count_if(~is_made).alias("dead")]


@contextlib.contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have Spark's settings so for a while; a query that starts meanwhile keeps them."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            if kept is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, kept)

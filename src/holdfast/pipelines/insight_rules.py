"""What a log says of itself, as DataFrame functions: rates, sizes, hot keys and errors.

`measured` makes a narrow row of each message; `counted` makes of these, for each topic, partition, window of time and
step of size, one row with sums. Rates and sizes of any group are added up from those (`summary`), so that messages are
looked at once however many groups there are. Keys are counted one by one, exactly (`keys`); only the hottest leave
Spark. docs/pipelines.md says what each number means; tests/spark/insight_by_hand.py has them in plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from holdfast.pipelines.steps import stepped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEAD_SUFFIX: Final = ".dead"
ERROR_HEADER: Final = "holdfast-dead-error"
# Where the message stands that a dead letter was made of.
PLACE_HEADERS: Final = ("holdfast-dead-topic", "holdfast-dead-partition", "holdfast-dead-offset")
# The kind of an error where the letter names none, as one that somebody has put there by hand.
NO_REASON: Final = "no reason given"
PERCENTILES: Final = {"p50_bytes": 50, "p99_bytes": 99}
_PLACE: Final = ("topic", "partition", "offset")
# How likely a topic without hot keys may be shown with one.
CHANCE_MAX: Final = 0.01
_SUMS: Final = ("messages", "bytes", "headers", "header_bytes", "keyed", "with_id")


def measured(messages: DataFrame) -> DataFrame:
    """Columns: `topic, partition, offset, time_ms, size_bytes, key, headers, header_bytes, has_id, error, dead_of`.

    A message is as large as its value, its key and its headers are together. `error` is what a dead letter tells of
    the reason, as text, and null where the message is none; `dead_of` is the place of the message that it was made of,
    as far as it tells one.
    """
    headers = f.coalesce("headers", f.expr("array()").cast("array<struct<key: string, value: binary>>"))
    each = f.transform(headers, lambda one: _bytes(one["key"]) + _bytes(one["value"]))
    header_bytes = f.aggregate(each, f.lit(0).cast("bigint"), lambda total, one: total + one)

    def told(name: str) -> Column:
        return f.get(f.filter(headers, lambda one: one["key"] == name), f.lit(0))["value"].cast("string")

    topic, partition, offset = map(told, PLACE_HEADERS)
    place = f.struct(
        topic.alias("topic"), partition.try_cast("int").alias("partition"), offset.try_cast("bigint").alias("offset")
    )
    is_letter = f.col("topic").endswith(DEAD_SUFFIX)
    return messages.select(
        "topic",
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("time_ms"),
        (_bytes(f.col("value")) + _bytes(f.col("key")) + header_bytes).alias("size_bytes"),
        "key",
        f.size(headers).alias("headers"),
        header_bytes.alias("header_bytes"),
        (f.col("id") != f.concat_ws("-", "partition", "offset")).alias("has_id"),
        f.when(is_letter, f.coalesce(told(ERROR_HEADER), f.lit(NO_REASON))).alias("error"),
        f.when(is_letter & (f.concat(topic, f.lit(DEAD_SUFFIX)) == f.col("topic")), place).alias("dead_of"),
    )


def _bytes(column: Column) -> Column:
    return f.coalesce(f.octet_length(column), f.lit(0)).cast("bigint")


def counted(rows: DataFrame, window_ms: int) -> DataFrame:
    """Sums for each topic, partition, window (`window_ms` is when it begins) and step of size."""
    size = stepped(f.col("size_bytes")).alias("size_step")
    return rows.groupBy("topic", "partition", window_of("time_ms", window_ms), size).agg(
        f.count("*").alias("messages"),
        f.sum("size_bytes").alias("bytes"),
        f.sum("headers").alias("headers"),
        f.sum("header_bytes").alias("header_bytes"),
        f.count("key").alias("keyed"),
        f.count_if("has_id").alias("with_id"),
        f.max("size_bytes").alias("max_bytes"),
    )


def window_of(time_ms: str, window_ms: int) -> Column:
    """When the window begins in which that moment lies: windows begin at multiples of their length since 1970."""
    return f.expr(f"{time_ms} - pmod({time_ms}, {window_ms}L)").alias("window_ms")


def summary(counts: DataFrame, *keys: str) -> DataFrame:
    """Of each group by these columns of `counted`: its sums, and the sizes that so many percent are not above."""
    group = Window.partitionBy(*keys)
    up_to = group.orderBy("size_step").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    in_steps = (
        counts.groupBy(*keys, "size_step")
        .agg(*(f.sum(name).alias(name) for name in _SUMS), f.max("max_bytes").alias("max_bytes"))
        .withColumn("up_to", f.sum("messages").over(up_to))
        .withColumn("all", f.sum("messages").over(group))
    )

    def percentile(percent: int) -> Column:
        return f.min(f.when(f.col("up_to") * 100 >= f.col("all") * percent, f.col("size_step")))

    return in_steps.groupBy(*keys).agg(
        *(f.sum(name).alias(name) for name in _SUMS),
        # A step may be above the largest message in it.
        *(f.least(percentile(percent), f.max("max_bytes")).alias(name) for name, percent in PERCENTILES.items()),
        f.max("max_bytes").alias("max_bytes"),
    )


def partition_loads(counts: DataFrame) -> DataFrame:
    """Of each topic, how many partitions have messages, and how many the `fullest` has."""
    loads = counts.groupBy("topic", "partition").agg(f.sum("messages").alias("messages"))
    return loads.groupBy("topic").agg(f.count("*").alias("partitions"), f.max("messages").alias("fullest"))


def busiest_windows(counts: DataFrame, over_by_ms: int, window_ms: int) -> DataFrame:
    """Of each topic, the `messages` of the fullest window that was over by then."""
    over = counts.where(f.col("window_ms") + window_ms <= over_by_ms)
    windows = over.groupBy("topic", "window_ms").agg(f.sum("messages").alias("messages"))
    return windows.groupBy("topic").agg(f.max("messages").alias("messages"))


# --- keys ---------------------------------------------------------------------------------------------------


def keys(rows: DataFrame) -> DataFrame:
    """How many messages and bytes each key of a topic has, and its largest message."""
    return (
        rows.where("key is not null")
        .groupBy("topic", "key")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size_bytes").alias("bytes"),
            f.max("size_bytes").alias("max_bytes"),
        )
    )


def hottest(key_rows: DataFrame, by: str, top: int) -> DataFrame:
    """The hot keys of each topic that have most `messages`, or `bytes`, with their `rank` from 1 on.

    A key is hot where it has at least twice as much as the others have on average, and more than any of that many keys
    would get by chance. The limit of chance is Chernoff's for sums of messages that are at most so large: x of what m
    are expected has a probability of at most exp(x - m - x ln(x / m)).
    """
    largest = f.lit(1) if by == "messages" else f.max("max_bytes")
    of_topic = key_rows.groupBy("topic").agg(
        f.count("*").alias("keys"),
        f.sum(by).alias("all"),
        f.greatest(largest, f.lit(1)).cast("double").alias("largest"),
    )
    others = (f.col("all") - f.col(by)) / f.greatest(f.col("keys") - 1, f.lit(1))
    x, m = f.col(by) / f.col("largest"), others / f.col("largest")
    is_no_chance = x * f.ln(x / m) - x + m > f.ln(f.col("keys") / CHANCE_MAX)
    # Nothing is hot that has one message, and whatever there is where no other key has anything.
    is_hot = (f.col("messages") > 1) & (f.col(by) >= 2 * others) & ((m == 0) | is_no_chance)
    best_first = Window.partitionBy("topic").orderBy(f.desc(by), "key")
    return (
        key_rows.join(f.broadcast(of_topic), "topic")
        .where(is_hot)
        .select("topic", "key", "messages", "bytes", f.row_number().over(best_first).alias("rank"))
        .where(f.col("rank") <= top)
    )


def key_spread(key_rows: DataFrame) -> DataFrame:
    """Of each topic, how many keys it has, how many equally hot ones would meet as often, and the most that one has.

    `even_keys` is what economists call the effective number: the square of all messages through the sum of each key's
    squares. It is `keys` where all have as many messages, and 1 where one has nearly all.
    """
    # A thousand million messages of one key, squared, are too much for 64 bits.
    count = f.col("messages").cast("decimal(19,0)")
    total = f.sum("messages").cast("double")
    return key_rows.groupBy("topic").agg(
        f.count("*").alias("keys"),
        (total * total / f.sum(count * count).cast("double")).alias("even_keys"),
        f.max("messages").alias("hottest"),
    )


# --- errors -------------------------------------------------------------------------------------------------


def dead_letters(rows: DataFrame, window_ms: int, named: Sequence[str]) -> DataFrame:
    """How many dead letters of a topic stand for messages of a window, by kind of error, with one of each to look at.

    The window is that of the message which a letter was made of, so that a pipeline which comes to it a day later finds
    the same share of it dead; of the letter itself where it tells no place, or one that is not among the rows. `named`
    are the topics that letters tell of: no others are searched.
    The kind is what stands before the first colon: `ValueError` of `ValueError: no price (pricing.py:12)`.
    """
    name = f.substring_index(f.col("error"), ":", 1)
    of_topic = f.expr(f"left(topic, length(topic) - {len(DEAD_SUFFIX)})")
    searched = rows.where(f.col("topic").isin(*named)) if named else rows.limit(0)
    messages = searched.select("topic", "partition", "offset", f.col("time_ms").alias("of_ms"))
    letters = rows.where("error is not null").select(of_topic.alias("topic"), "time_ms", "error", "dead_of")
    of_message = [f.col(f"letter.dead_of.{each}") == f.col(f"message.{each}") for each in _PLACE]
    return (
        letters.alias("letter")
        .join(messages.alias("message"), of_message, "left")
        .select("letter.topic", "error", f.coalesce("of_ms", "time_ms").alias("time_ms"))
        .groupBy("topic", window_of("time_ms", window_ms), name.alias("kind"))
        .agg(f.count("*").alias("dead"), f.min("error").alias("error"))
    )


def failed(rows: DataFrame, window_ms: int, named: Sequence[str]) -> DataFrame:
    """How many messages of a topic and a window have a dead letter or several; `named` as above."""
    searched = rows.where(f.col("topic").isin(*named)) if named else rows.limit(0)
    return (
        searched.join(rows.where("dead_of is not null").select("dead_of.*"), [*_PLACE], "left_semi")
        .groupBy("topic", window_of("time_ms", window_ms))
        .agg(f.count("*").alias("failed"))
    )


def dead_by_kind(letters: DataFrame) -> DataFrame:
    return letters.groupBy("topic", "kind").agg(f.sum("dead").alias("dead"), f.min("error").alias("error"))


def dead_by_topic(letters: DataFrame, failed: DataFrame) -> DataFrame:
    return _with_failed(letters, failed, "topic")


def dead_by_window(letters: DataFrame, failed: DataFrame) -> DataFrame:
    return _with_failed(letters, failed, "topic", "window_ms")


def _with_failed(letters: DataFrame, failed: DataFrame, *keys: str) -> DataFrame:
    dead = letters.groupBy(*keys).agg(f.sum("dead").alias("dead"))
    messages = failed.groupBy(*keys).agg(f.sum("failed").alias("failed"))
    return dead.join(messages, [*keys], "left").fillna(0, ["failed"])

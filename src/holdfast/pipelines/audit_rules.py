"""The audit's rules as DataFrame functions: which messages were lost, doubled, out of order or never sent.

A message is a topic and an id. `joined` has one row for each message and each receiver that got it, and one for each
message that nobody got; `late` has those that came after a later one of their producer. Everything else is counted
from these. docs/pipelines.md defines each rule; tests/spark/audit_by_hand.py has them a second time, in plain Python.

No step gathers a topic, a producer or a message's lines in one place in memory: rows are sorted and joined, and a long
stream is looked at stretch by stretch, with the highest number of all stretches before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from holdfast.pipelines.steps import stepped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Within which sequences must rise.
STREAM: Final = ("receiver", "topic", "producer", "partition")
_RUN: Final = (*STREAM, "stretch")
# So many runs are sent to everybody who looks at messages, some 10 MB; more are not.
RUNS_SENT_MAX: Final = 100_000
# Receptions closer to each other than this are no silence.
SILENCE_MS_MIN: Final = 10
# Sorting compares this number first, and nearly never anything else.
_HASH: Final = "message_hash"
_KEY: Final = (_HASH, "id", "topic")


def joined(sent: DataFrame, received: DataFrame, pieces: int) -> DataFrame:
    """Messages with what became of them at each receiver, in so many pieces.

    `copies` says how often the receiver got it, null where nobody did; `stretch`, `place`, `received_ms` are of the
    first copy. `number` counts a message's receivers from 1, so that 1, or null, picks one row of each message.
    `sent_lines` is null where nobody has sent it; `sent_ms` is of the first time it was.
    """
    # Both sides are cut in the same way, here, so that grouping, numbering and joining need no other exchange.
    first = f.min(f.struct("stretch", "place", f.col("time_ms").alias("received_ms"), "partition"))
    receptions = (
        _cut(received, pieces)
        .groupBy(*_KEY, "receiver")
        .agg(f.count("*").alias("copies"), first.alias("first"))
        .select(
            *_KEY,
            "receiver",
            "copies",
            "first.*",
            f.row_number().over(Window.partitionBy(*_KEY).orderBy("receiver")).alias("number"),
        )
    )
    messages = (
        _cut(sent, pieces)
        .groupBy(*_KEY)
        .agg(
            f.count("*").alias("sent_lines"),
            f.max("acknowledged").alias("acknowledged"),
            f.min("sequence").alias("sequence"),
            f.min("time_ms").alias("sent_ms"),
            f.min("producer").alias("producer"),
            f.max("partition").alias("sent_partition"),
        )
    )
    # What the receiver knows of the partition counts, and else what the sender does.
    known = f.when(f.col("partition") >= 0, f.col("partition"))
    partition = f.coalesce(known, "sent_partition", "partition")
    both = receptions.join(messages, [*_KEY], "full_outer")
    return both.withColumn("partition", partition).drop(_HASH, "sent_partition")


def _cut(rows: DataFrame, pieces: int) -> DataFrame:
    return rows.withColumn(_HASH, f.xxhash64("topic", "id")).repartition(pieces, _HASH)


def runs(rows: DataFrame) -> DataFrame:
    """Each stretch of each stream, with `head`, the highest sequence of all stretches before it, if any.

    `from_ms` and `until_ms` are the first and the last time that anybody has noted in it.
    """
    before = Window.partitionBy(*STREAM).orderBy("stretch").rowsBetween(Window.unboundedPreceding, -1)
    stretches = (
        _received(rows)
        .groupBy(*_RUN)
        .agg(
            f.max("sequence").alias("highest"),
            f.least(f.min("received_ms"), f.min("sent_ms")).alias("from_ms"),
            f.greatest(f.max("received_ms"), f.max("sent_ms")).alias("until_ms"),
        )
    )
    return stretches.select("*", f.max("highest").over(before).alias("head")).drop("highest")


def late(rows: DataFrame, runs: DataFrame, count: int) -> DataFrame:
    """What was received after a later one of the same producer; `count` says how many runs there are.

    Only first copies are here: a second one is doubled, never late, and its number was counted with the first. What
    nobody sent has no sequence, is not late and makes nobody late.
    """
    ordered = _received(rows).where("sequence is not null")
    if count > RUNS_SENT_MAX:
        # Millions of short streams: they go where their messages are sorted, and nobody has all of them.
        heads = runs.select(*_RUN, "head").hint("shuffle_merge")
        return _behind(ordered.join(heads, [*_RUN]), _RUN, STREAM)
    # Every message is sorted by its place in its run, so the names of its stream stay behind, and a number goes. It is
    # given by what they are, so that a run that is counted again, on another machine, has its number again.
    numbered = runs.select(*_RUN, "head", f.row_number().over(Window.orderBy(*_RUN)).alias("run"))
    placed = ordered.join(f.broadcast(numbered), [*_RUN])
    found = _behind(placed, ("run",), ("run",))
    return found.join(f.broadcast(numbered.select(*STREAM, "run")), "run").drop("run")


def _behind(placed: DataFrame, run: Sequence[str], kept: Sequence[str]) -> DataFrame:
    """Rows with a lower number than one before them in their run, or in those before it."""
    before = Window.partitionBy(*run).orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    columns = dict.fromkeys((*run, *kept, "place", "sequence", "head", "id", "received_ms"))
    return (
        placed.select(*columns)
        .withColumn("highest", f.max("sequence").over(before))
        .where(f.col("sequence") < f.greatest("highest", "head"))
        .select(*kept, "sequence", "id", "received_ms")
    )


def _received(rows: DataFrame) -> DataFrame:
    return rows.where("copies is not null").withColumn("producer", f.coalesce("producer", f.lit("")))


# --- counts -------------------------------------------------------------------------------------------------


def sent_facts(rows: DataFrame, from_ms: int, bin_ms: int) -> DataFrame:
    """How many messages were sent, acknowledged and lost, by topic, partition and time of sending."""
    once = rows.where("sent_lines is not null and (number is null or number = 1)")
    is_lost = f.col("acknowledged") & f.col("copies").isNull()
    return once.groupBy("topic", "partition", _bin("sent_ms", from_ms, bin_ms)).agg(
        f.count("*").alias("sent"),
        f.sum(f.col("sent_lines") - 1).alias("resent"),
        f.count_if("acknowledged").alias("acknowledged"),
        f.count_if(is_lost).alias("lost"),
    )


def received_facts(rows: DataFrame, from_ms: int, bin_ms: int) -> DataFrame:
    """How many came, and how, by topic, partition, receiver, time of arrival and latency."""
    is_phantom = f.col("sent_lines").isNull()
    latency = f.col("received_ms") - f.col("sent_ms")
    keys = (
        "topic",
        "partition",
        "receiver",
        _bin("received_ms", from_ms, bin_ms),
        stepped(latency).alias("latency_ms"),
    )
    return (
        _received(rows)
        .groupBy(*keys)
        .agg(
            f.sum("copies").alias("received"),
            f.sum(f.col("copies") - 1).alias("duplicated"),
            f.count_if(is_phantom).alias("phantom"),
            f.count_if(~is_phantom).alias("delivered"),
            f.count_if(f.coalesce("acknowledged", f.lit(False))).alias("acknowledged_delivered"),
            f.max(latency).alias("latency_max"),
            f.min(latency).alias("latency_min"),
        )
    )


def late_facts(late_rows: DataFrame, from_ms: int, bin_ms: int) -> DataFrame:
    """How many came out of order, by topic, partition, receiver and time of arrival."""
    keys = ("topic", "partition", "receiver", _bin("received_ms", from_ms, bin_ms))
    return late_rows.groupBy(*keys).agg(f.count("*").alias("out_of_order"))


def _bin(time_ms: str, from_ms: int, bin_ms: int) -> Column:
    return f.expr(f"({time_ms} - {from_ms}) div {bin_ms}").alias("bin")


def silences(rows: DataFrame) -> DataFrame:
    """Of each topic and receiver, the longest time in which nothing came, by the receiver's clock."""
    moments = (
        rows.where("copies is not null and received_ms is not null")
        .groupBy("topic", "receiver", f.expr(f"received_ms div {SILENCE_MS_MIN}").alias("moment"))
        .agg(f.min("received_ms").alias("begins_ms"), f.max("received_ms").alias("ends_ms"))
    )
    following = f.lead("begins_ms").over(Window.partitionBy("topic", "receiver").orderBy("moment"))
    length = f.coalesce(following - f.col("ends_ms"), f.lit(0))
    return (
        moments.select("topic", "receiver", f.struct(length.alias("length_ms"), "ends_ms").alias("silence"))
        .groupBy("topic", "receiver")
        .agg(f.max("silence").alias("silence"))
        .selectExpr("topic", "receiver", "silence.length_ms as silence_ms", "silence.ends_ms as silent_from_ms")
    )


def gaps(rows: DataFrame) -> DataFrame:
    """Runs of sequences that are lost without one in between that is not: `first`, `last`, `messages`."""
    of_producer = Window.partitionBy("topic", "producer").orderBy("sequence")
    # In a run, a sequence and its rank rise together.
    run = (f.col("sequence") - f.dense_rank().over(of_producer)).alias("run")
    return (
        lost(rows)
        .select("topic", "producer", "sequence", run)
        .groupBy("topic", "producer", "run")
        .agg(f.min("sequence").alias("first"), f.max("sequence").alias("last"), f.count("*").alias("messages"))
        .drop("run")
    )


# --- which ones ---------------------------------------------------------------------------------------------


def lost(rows: DataFrame) -> DataFrame:
    """Messages that were acknowledged and came to nobody."""
    return rows.where("copies is null and acknowledged")


def missed(rows: DataFrame) -> DataFrame:
    """Messages that were acknowledged, with each `receiver` of their topic that did not get them."""
    receivers = rows.where("copies is not null").select("topic", "receiver").distinct()
    acknowledged = rows.where("acknowledged and (number is null or number = 1)")
    wanted = acknowledged.drop("receiver").join(f.broadcast(receivers), "topic")
    return wanted.join(rows.select("topic", "id", "receiver"), ["topic", "id", "receiver"], "left_anti")


def duplicated(rows: DataFrame) -> DataFrame:
    return rows.where("copies > 1")


def phantom(rows: DataFrame) -> DataFrame:
    return rows.where("sent_lines is null")

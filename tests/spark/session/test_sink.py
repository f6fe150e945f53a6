"""Writing from Spark: every row once, whole batches or nothing, whatever is repeated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.client import BlockingClient


def values(broker: BlockingClient, topic: str) -> list[str]:
    found: list[str] = []
    for partition in range(len(broker.describe(topic).partitions)):
        offset = 0
        while messages := broker.read(topic, partition, offset, messages_max=50_000):
            found += [message.text for message in messages]
            offset = messages[-1].offset + 1
    return found


def rows(spark: SparkSession, start: int, end: int, tasks: int = 3) -> DataFrame:
    return spark.range(start, end, numPartitions=tasks).select(F.col("id").cast("string").alias("value"))


def test_job_writes_all_of_its_rows_at_once(
    spark: SparkSession, broker: BlockingClient, servers: str, topic: str
) -> None:
    broker.create_topic(topic, partitions=4)
    frame = spark.range(0, 20_000, numPartitions=5).select(
        F.concat(F.lit("v"), "id").alias("value"),
        (F.col("id") % 97).cast("string").alias("key"),
        F.concat(F.lit("id-"), "id").alias("id"),
        F.array(F.struct(F.lit("h").alias("key"), F.lit(b"x").alias("value"))).alias("headers"),
    )
    before = [each.writer for each in broker.writers()]
    frame.write.format("holdfast").option("servers", servers).option("topic", topic).mode("append").save()
    found = values(broker, topic)
    assert sorted(found) == sorted(f"v{i}" for i in range(20_000))
    placed = broker.publish(topic, b"same key", key="7")
    read = broker.read(topic, placed.partition, messages_max=50_000)
    of_key = [message for message in read if message.key == b"7"]
    assert len(of_key) == 1 + len(range(7, 20_000, 97)), "a key has one partition, for Spark as for others"
    assert of_key[0].headers == {"h": "x"} and of_key[0].id.startswith("id-")
    assert [each.writer for each in broker.writers()] == before, "the job's writer is forgotten afterwards"


def test_job_that_fails_shows_nothing(spark: SparkSession, broker: BlockingClient, servers: str, topic: str) -> None:
    broker.create_topic(topic)
    frame = rows(spark, 0, 1000).select(
        F.when(F.col("value") == "999", F.raise_error(F.lit("on purpose"))).otherwise(F.col("value")).alias("value")
    )
    with pytest.raises(Exception, match="on purpose"):
        frame.write.format("holdfast").options(servers=servers, topic=topic).mode("append").save()
    assert values(broker, topic) == []


def test_topics_and_partitions_may_be_columns(
    spark: SparkSession, broker: BlockingClient, servers: str, topic: str
) -> None:
    broker.create_topic(topic, partitions=2)
    frame = spark.createDataFrame(
        [("a", topic, 1), ("b", f"{topic}-made", 0), ("c", topic, 0)], "value string, topic string, partition int"
    )
    frame.write.format("holdfast").option("servers", servers).mode("append").save()
    assert [message.text for message in broker.read(topic, 1)] == ["a"]
    assert [message.text for message in broker.read(topic, 0)] == ["c"]
    assert values(broker, f"{topic}-made") == ["b"]


def test_what_cannot_be_written_is_said_before_it_begins(spark: SparkSession, servers: str) -> None:
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("1 AS value", {}, "bad_schema"),
        ("'a' AS text", {}, "bad_schema"),
        ("'a' AS value, 1.5 AS key", {}, "bad_schema"),
        ("'a' AS value", {"topic": ""}, "bad_option"),
        ("'a' AS value", {"topik": "x"}, "bad_option"),
        ("'a' AS value", {"writer": "a/b"}, "bad_option"),
        ("'a' AS value", {"writerBatch": "1"}, "bad_option"),
        ("'a' AS value", {"writer": "a", "writerBatch": "-1"}, "bad_option"),
    ]
    for columns, options, code in wrong:
        writer = spark.sql(f"SELECT {columns}").write.format("holdfast").mode("append")
        with pytest.raises((AnalysisException, PythonException), match=code):
            writer.options(**{"servers": servers, "topic": "unused", **options}).save()


def test_query_writes_each_row_once_although_its_checkpoint_is_set_back(
    spark: SparkSession, broker: BlockingClient, servers: str, topic: str, tmp_path: Path
) -> None:
    """The driver died after the commit and before Spark noted it: the same batch comes again."""
    source, target = f"{topic}-in", f"{topic}-out"
    broker.create_topic(source, partitions=3)
    broker.create_topic(target, partitions=2)
    first = tmp_path / "checkpoint"

    def run(checkpoint: Path = first) -> None:
        query = (
            spark.readStream.format("holdfast")
            .options(servers=servers, subscribePattern=f"{source}.*", startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", "400")
            .load()
            .select("value", "key")
            .writeStream.format("holdfast")
            .options(servers=servers, topic=target, writer=f"named-{topic}", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    sent = [f"r{i}" for i in range(1000)]
    broker.publish_many(source, sent)
    run()
    assert sorted(values(broker, target)) == sorted(sent)
    last = max((first / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (first / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run()
    assert Counter(values(broker, target)) == Counter(sent), "the last batch was written twice"
    with pytest.raises(StreamingQueryException, match=r"\[writer_ahead\] somebody else has committed under the writer"):
        run(tmp_path / "another")
    broker.create_topic(f"{source}-later")
    run()  # there is news, and not one row of it
    broker.publish_many(f"{source}-later", ["more"])
    run()
    assert sorted(values(broker, target)) == sorted([*sent, "more"])

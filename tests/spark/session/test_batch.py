"""`spark.read.format("holdfast")` shows what is stored, from where to where the options say."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from holdfast import BlockingClient, NewMessage
from tests.spark.session.conftest import Reading


def test_every_column_is_what_was_published(reading: Reading, broker: BlockingClient) -> None:
    before = datetime.now(UTC)
    messages = [
        NewMessage(value=b"\xff\x00", key=b"k", id="order-1", headers=[("trace", b"abc"), ("empty", b"")]),
        NewMessage(value=b"plain"),
    ]
    broker.publish_many(reading.topic, messages, partition=0)
    first, second = reading.batch(includeHeaders=True).orderBy("offset").collect()
    assert first.key == b"k" and first.value == b"\xff\x00" and first.id == "order-1"
    assert [(header.key, header.value) for header in first.headers] == [("trace", b"abc"), ("empty", b"")]
    assert (first.topic, first.partition, first.offset) == (reading.topic, 0, 0)
    assert abs(first.timestamp.astimezone(UTC) - before).total_seconds() < 60
    assert second.key is None and second.value == b"plain" and second.headers == []
    assert reading.batch().columns == ["key", "value", "topic", "partition", "offset", "timestamp", "id"]


def test_large_partition_is_split_over_tasks_and_read_once(reading: Reading, broker: BlockingClient) -> None:
    values = [b"%d" % number for number in range(30_000)]
    broker.publish_many(reading.topic, values, partition=0)
    rows = reading.batch("value binary, offset bigint", minPartitions=5)
    assert rows.rdd.getNumPartitions() == 5
    found = rows.orderBy("offset").toArrow()
    assert found["value"].to_pylist() == values and found["offset"].to_pylist() == list(range(30_000))


def test_offsets_and_times_say_where_to_begin_and_end(reading: Reading, broker: BlockingClient) -> None:
    broker.create_topic(reading.topic, partitions=2)
    broker.publish_many(reading.topic, [b"%d" % number for number in range(10)], partition=0)
    time.sleep(0.01)  # the next messages have another millisecond
    between_ms = int(time.time() * 1000)
    broker.publish_many(reading.topic, [b"late"] * 3, partition=1)

    def places(**options: object) -> list[tuple[int, int]]:
        rows = reading.batch("partition int, offset bigint", **options).collect()
        return sorted((row.partition, row.offset) for row in rows)

    starting = json.dumps({reading.topic: {"0": 7, "1": -1}})
    assert places(startingOffsets=starting) == [(0, 7), (0, 8), (0, 9)]
    ending = json.dumps({reading.topic: {"0": 2, "1": -1}})
    assert places(endingOffsets=ending) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert places(startingTimestamp=between_ms) == [(1, 0), (1, 1), (1, 2)]
    assert len(places(endingTimestamp=between_ms)) == 10
    assert len(places(startingTimestamp="-10m", assign=json.dumps({reading.topic: [1]}))) == 3
    pattern = reading.topic[:-1] + "[" + reading.topic[-1] + "]"
    assert len(places(subscribePattern=pattern)) == 13


def test_filters_choose_what_is_read(reading: Reading, broker: BlockingClient) -> None:
    broker.create_topic(reading.topic, partitions=2)
    for partition in (0, 1):
        broker.publish_many(reading.topic, [b"x"] * 100, partition=partition)
    # A new DataFrame each time: Spark 4.3.0 keeps the first filter for all queries of one.
    few = reading.batch(pushFilters=True).where((col("partition") == 1) & (col("offset") >= 10) & (col("offset") < 15))
    assert sorted((row.partition, row.offset) for row in few.collect()) == [(1, offset) for offset in range(10, 15)]
    assert few.rdd.getNumPartitions() == 1
    assert reading.batch(pushFilters=True).where(col("timestamp") > datetime.now(UTC)).count() == 0
    either = (col("topic") == "another") | (col("offset") == 3)
    assert reading.batch(pushFilters=True).where(either).count() == 2


def test_json_values_come_with_their_fields(reading: Reading, broker: BlockingClient) -> None:
    values = [b'{"item": "tea", "count": 2, "when": "2026-01-02T03:04:05Z"}', b"no json", b'{"count": "many"}']
    broker.publish_many(reading.topic, values, partition=0)
    rows = reading.batch(valueSchema="item STRING, count INT").orderBy("offset").select("value.*").collect()
    assert [tuple(row) for row in rows] == [("tea", 2), (None, None), (None, None)]
    times = reading.batch(valueSchema="when TIMESTAMP").orderBy("offset").select("value.when").collect()
    assert times[0].when.astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        ("value string", {}, "[bad_schema] the column value is binary"),
        ("values binary", {}, "[bad_schema] there is no column values"),
        (None, {"subscribe": "no-such-topic"}, "[topic_not_found]"),
        (None, {"subscribes": "orders"}, "[bad_option] there is no option subscribes; did you mean subscribe?"),
    ],
)
def test_mistakes_are_told_as_such(reading: Reading, schema: str | None, options: dict[str, str], told: str) -> None:
    with pytest.raises(PySparkException) as raised:
        reading.batch(schema, **options).collect()
    assert told in str(raised.value)


def test_table_of_a_catalog_is_refused_with_what_to_do_instead(spark: SparkSession, reading: Reading) -> None:
    """Spark keeps a table's options, and passes none of them to a source that is written in Python."""
    given = f"USING holdfast OPTIONS (servers '{reading.servers}', subscribe '{reading.topic}')"
    spark.sql(f"CREATE TABLE told (value STRING) {given}")
    try:
        for statement in (
            f"CREATE TABLE a_topic {given}",
            f"CREATE TABLE made {given} AS SELECT 'v' AS value",
            "SELECT * FROM told",
            "INSERT INTO told SELECT 'v'",
        ):
            with pytest.raises(PySparkException) as raised:
                spark.sql(statement).collect()
            assert "[bad_option]" in str(raised.value) and "CREATE TEMPORARY VIEW" in str(raised.value), statement
    finally:
        spark.sql("DROP TABLE told")


def test_view_in_sql_reads_a_topic(spark: SparkSession, reading: Reading, broker: BlockingClient) -> None:
    broker.publish_many(reading.topic, [b"1", b"2"])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING holdfast "
        f"OPTIONS (servers '{reading.servers}', subscribe '{reading.topic}')"
    )
    assert [row[0] for row in spark.sql("SELECT CAST(value AS STRING) FROM orders").collect()] == ["1", "2"]
    spark.catalog.dropTempView("orders")

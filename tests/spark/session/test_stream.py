"""`spark.readStream.format("holdfast")`: every message in exactly one batch, through restarts, as far as limits let."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from testkit.wait import wait_until

from holdfast import BlockingClient
from holdfast.spark import class_archive
from holdfast.testing import LocalCluster
from tests.spark.session.conftest import Reading


def places(spark: SparkSession, directory: Path) -> list[tuple[int, int]]:
    return sorted(
        tuple(row) for row in spark.read.parquet(str(directory / "rows")).select("partition", "offset").collect()
    )


def test_restart_goes_on_where_the_checkpoint_is(
    reading: Reading, broker: BlockingClient, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create_topic(reading.topic, partitions=2)
    for partition in (0, 1):
        broker.publish_many(reading.topic, [b"x"] * 50, partition=partition)
    options: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40, "groupId": "billing"}
    progress = reading.to_parquet(tmp_path, **options)
    assert [each["numInputRows"] for each in progress] == [40, 40, 20]
    [source] = progress[0]["sources"]
    reached, known = (json.loads(source[name])["offsets"][reading.topic] for name in ("endOffset", "latestOffset"))
    assert sum(reached.values()) == 40 and known == {"0": 50, "1": 50}, "the lag can be seen"
    # The last batch is told of, too, though Spark never tells its source.
    wait_until(lambda: broker.cursor(reading.topic, "billing").lag == 0, "the cursor stands at the end")
    broker.publish_many(reading.topic, [b"y"] * 10, partition=1)
    progress = reading.to_parquet(tmp_path, **options)
    assert [each["numInputRows"] for each in progress] == [10]
    assert places(spark, tmp_path) == [(0, n) for n in range(50)] + [(1, n) for n in range(60)]


@pytest.mark.night
def test_cursor_is_at_the_end_where_a_script_ends_without_stopping_spark(
    servers: str, broker: BlockingClient, topic: str, tmp_path: Path
) -> None:
    """Spark calls the listener of a query's progress later, in a Python that has ended."""
    broker.publish_many(topic, [b"x"] * 63)
    script = f"""
import holdfast.spark

spark = holdfast.spark.session("local[2]")
rows = spark.readStream.format("holdfast").options(
    servers="{servers}", subscribe="{topic}", startingOffsets="earliest", groupId="billing"
)
query = rows.load().writeStream.format("parquet").option("path", "rows").option("checkpointLocation", "checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
"""
    environment = {**os.environ, class_archive.SWITCH: "use"}
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()[-4000:]
    assert broker.cursor(topic, "billing").lag == 0
    assert "Py4JException" not in ended.stderr.decode()


def test_stream_follows_new_messages_and_new_topics(
    reading: Reading, broker: BlockingClient, spark: SparkSession
) -> None:
    seen: list[tuple[str, int]] = []

    def note(rows: DataFrame, _: int) -> None:
        seen.extend((row.topic, row.offset) for row in rows.select("topic", "offset").collect())

    broker.publish(f"{reading.topic}-a", "before")
    query = (
        reading.stream(subscribePattern=f"{reading.topic}-.*", startingOffsets="latest")
        .writeStream.foreachBatch(note)
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress is not None, "the query runs")
        broker.publish(f"{reading.topic}-a", "after")
        broker.publish(f"{reading.topic}-b", "new")
        wait_until(lambda: len(seen) >= 2, "both messages arrive")
    finally:
        query.stop()
    assert sorted(seen) == [(f"{reading.topic}-a", 1), (f"{reading.topic}-b", 0)]


def test_topic_made_anew_is_data_loss(reading: Reading, broker: BlockingClient, tmp_path: Path) -> None:
    broker.publish_many(reading.topic, [b"old"] * 5, partition=0)
    reading.to_parquet(tmp_path, startingOffsets="earliest")
    broker.delete_topic(reading.topic)
    time.sleep(0.002)  # topics are told apart by the millisecond of their making
    broker.publish_many(reading.topic, [b"new"] * 2, partition=0)
    with pytest.raises(StreamingQueryException, match="was deleted and made anew"):
        reading.to_parquet(tmp_path, startingOffsets="earliest")


def test_broker_that_is_away_for_a_while_is_waited_for(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    with LocalCluster(nodes=1, data=tmp_path / "broker") as cluster:
        reading = Reading(spark, cluster.url, topic)
        with cluster.connect_blocking() as broker:
            broker.publish_many(topic, [b"x"] * 10, partition=0)
        reading.to_parquet(tmp_path, startingOffsets="earliest")
        cluster.kill("n1")

        def come_back() -> None:
            wait_until(lambda: bool(spark.streams.active), "the query is planned while nobody answers")
            cluster.start("n1")

        back = threading.Thread(target=come_back)
        back.start()
        reading.to_parquet(tmp_path, startingOffsets="earliest")
        back.join()
        with cluster.connect_blocking() as broker:
            broker.publish_many(topic, [b"y"] * 5, partition=0)
        reading.to_parquet(tmp_path, startingOffsets="earliest")
        cluster.kill("n1")
        with pytest.raises(StreamingQueryException, match="did not get through within 1 s"):
            reading.to_parquet(tmp_path, startingOffsets="earliest", brokerTimeout="1s")
    assert places(spark, tmp_path) == [(0, n) for n in range(15)]

"""A streaming pipeline ends where it is told to, goes on where it was, and says how far it is."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from testkit.wait import wait_until

import holdfast
from holdfast.model.errors import HoldfastError
from holdfast.pipelines import frame, streams

OFFSETS = {"orders": {"0": 7, "1": 4}}


def test_stream_is_run_once_then_continuously_and_stopped_in_order(
    spark: SparkSession, broker: holdfast.BlockingClient, servers: str, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, partitions=2)
    for partition in (0, 1):
        broker.publish_many(topic, [b"x"] * 50, partition=partition)
    taken: dict[int, int] = {}

    def take(rows: DataFrame, batch: int) -> None:
        taken[batch] = rows.count()

    def run(**options: Any) -> streams.StreamRun:
        rows = streams.source(spark, servers=servers, group="taker", subscribe=topic, maxOffsetsPerTrigger=60)
        query = rows.writeStream.foreachBatch(take)
        return streams.run(query, name="take", checkpoint=str(tmp_path), **options)

    lines: list[str] = []
    reports = streams.Reports(servers, f"{topic}-reports")
    done = run(once=True, tell=lines.append, reports=reports)
    assert (done.batches, done.rows, done.lag, done.is_stopped, taken) == (2, 100, 0, False, {0: 60, 1: 40})
    assert "batch 0 done" in lines[0] and lines[0].endswith("lag 40 messages") and "rows/s" in lines[0]
    reported = [message.json() for message in broker.read(f"{topic}-reports", messages_max=10)]
    assert [(each["pipeline"], each["batch"], each["rows"], each["lag"]) for each in reported] == [
        ("take", 0, 60, 40),
        ("take", 1, 40, 0),
    ]
    assert reported[1]["offsets"] == {topic: {"0": 50, "1": 50}}
    wait_until(lambda: broker.cursor(topic, "taker").lag == 0, "the cursor stands at the end")

    stop = threading.Event()
    ended: list[streams.StreamRun] = []
    thread = threading.Thread(target=lambda: ended.append(run(interval_s=0.1, stop=stop)))
    thread.start()
    broker.publish_many(topic, [b"y"] * 10, partition=1)
    wait_until(lambda: sum(taken.values()) == 110, "what came since is taken")
    stop.set()
    thread.join(60)
    assert not thread.is_alive() and ended[0].is_stopped and ended[0].rows == 10
    assert run(once=True).rows == 0, "it goes on behind what it has done"


def test_what_ends_a_stream_has_the_connectors_code(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    rows = streams.source(spark, servers=servers, group="taker", subscribe="nobody-made-this")
    with pytest.raises(HoldfastError) as failed:
        query = rows.writeStream.format("noop")
        streams.run(query, name="take", checkpoint=str(tmp_path), once=True)
    assert failed.value.code == "topic_not_found"


def test_line_of_progress_says_how_many_rows_were_read_and_how_fast(spark: SparkSession) -> None:
    """Without the page of Spark's own, which no pipeline has."""

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(0.1)
            yield batch

    progress = frame.Progress(spark, "audit")
    progress.line()
    progress.tell("batch 1 done, 5 rows/s")
    progress.tell("reading")
    rows = spark.range(0, 8000, 1, 16).mapInArrow(slowly, "id long")
    working = threading.Thread(target=rows.count)
    working.start()
    lines: list[str] = []
    while working.is_alive():
        time.sleep(0.02)
        lines.append(progress.line())
    working.join()
    line = re.compile(r"audit: reading: \d+ of 16 tasks, [\d,]+ rows, [\d,]+ rows/s, \d+ s")
    assert any(map(line.fullmatch, lines)), lines[-1]

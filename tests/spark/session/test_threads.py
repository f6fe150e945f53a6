"""Writing from any thread: an executor, a web service, a pipeline that another thread stops."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import holdfast.spark
from holdfast import BlockingClient, pipelines


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"value": batch["value"]})


def in_a_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result()


def append(rows: DataFrame, servers: str, topic: str) -> None:
    rows.write.format("holdfast").options(servers=servers, topic=topic).mode("append").save()


def read(broker: BlockingClient, topic: str) -> list[str]:
    return sorted(message.text for message in broker.read(topic, messages_max=1000))


def test_rows_are_written_from_an_executor(
    spark: SparkSession, broker: BlockingClient, servers: str, topic: str
) -> None:
    broker.create_topic(topic)
    frames = [spark.sql(f"SELECT '{number}' AS value") for number in range(4)]

    def job(rows: DataFrame) -> None:
        with holdfast.spark.active(spark):
            append(rows, servers, topic)

    with ThreadPoolExecutor(2) as executor:
        list(executor.map(job, frames))
    assert read(broker, topic) == ["0", "1", "2", "3"]


def test_query_is_started_from_a_thread(
    spark: SparkSession, broker: BlockingClient, servers: str, topic: str, tmp_path: Path
) -> None:
    broker.publish_many(topic, ["a", "b"])
    broker.create_topic(f"{topic}-out")
    rows = spark.readStream.format("holdfast").options(servers=servers, subscribe=topic, startingOffsets="earliest")
    query = rows.load().select("value").writeStream.format("holdfast").trigger(availableNow=True)
    query = query.options(servers=servers, topic=f"{topic}-out", checkpointLocation=str(tmp_path))

    def run() -> None:
        with holdfast.spark.active(spark):
            assert query.start().awaitTermination(200)

    in_a_thread(run)
    assert read(broker, f"{topic}-out") == ["a", "b"]


def test_thread_has_its_session_back_afterwards(spark: SparkSession) -> None:
    other, java = spark.newSession(), cast(Any, spark)
    sessions = java._get_j_spark_session_class(java._jvm)

    def name_of() -> str | None:
        # As Spark sees it; Python's own is that of the process.
        found = sessions.getActiveSession()
        return str(found.get().conf().get("test.name", "none")) if found.isDefined() else None

    def look() -> None:
        assert name_of() is None
        for session, name in ((spark, "one"), (other, "other")):
            session.conf.set("test.name", name)
        with holdfast.spark.active(spark):
            assert name_of() == "one"
            with pytest.raises(PySparkException), holdfast.spark.active(other):
                assert name_of() == "other"
                other.sql("SELECT * FROM nowhere")
            assert name_of() == "one"
        assert name_of() is None
        assert holdfast.spark.session().conf.get("test.name") == "one" == name_of(), (
            "it is active where it is asked for"
        )

    in_a_thread(look)
    spark.conf.unset("test.name")


def test_pipeline_runs_in_a_thread_that_has_no_session(
    spark: SparkSession, broker: BlockingClient, servers: str, topic: str, tmp_path: Path
) -> None:
    broker.publish_many(topic, ["a", "b"])
    checkpoint, target = str(tmp_path / "checkpoint"), f"{topic}-out"
    options: dict[str, Any] = {"checkpoint": checkpoint, "servers": servers, "function": unchanged}
    in_a_thread(lambda: pipelines.transform(spark, source=topic, target=target, **options))
    assert read(broker, target) == ["a", "b"]

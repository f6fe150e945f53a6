"""One small session and one broker for all Spark tests; `tests/conftest.py` gives these tests to one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from testkit.spark import SMALL_SESSION

import holdfast.spark
from holdfast.spark import class_archive


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # The first test pays for the session; and a timeout in the middle of a call to Java would spoil the rest.
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as users get it; it uses a class archive if the machine has one, and makes none."""
    os.environ[class_archive.SWITCH] = "use"
    session = holdfast.spark.session("local[2]", config=SMALL_SESSION)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Reading:
    """Short ways to read a topic in a test."""

    def __init__(self, spark: SparkSession, servers: str, topic: str) -> None:
        self.spark = spark
        self.servers = servers
        self.topic = topic

    def batch(self, schema: str | None = None, **options: object) -> DataFrame:
        reader = self.spark.read.format("holdfast").options(**self._options(options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, **options: object) -> DataFrame:
        return self.spark.readStream.format("holdfast").options(**self._options(options)).load()

    def to_parquet(self, directory: Path, timeout_s: float = 200, **options: object) -> list[dict[str, Any]]:
        """Run a streaming query over all that is there; returns its progress."""
        query = (
            self.stream(**options)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .option("path", str(directory / "rows"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(timeout_s)), "the query did not end"
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def _options(self, options: dict[str, object]) -> dict[str, Any]:
        chosen = {} if {"assign", "subscribePattern", "subscribe"} & options.keys() else {"subscribe": self.topic}
        return {"servers": self.servers, **chosen, **options}


@pytest.fixture
def reading(spark: SparkSession, servers: str, topic: str) -> Reading:
    return Reading(spark, servers, topic)

"""Spark at work, in a process with a session of its own: as a user's driver, with this machine's cores as executors."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
VALUE_BYTES = 200
PARTITIONS = 2
PUBLISH_MESSAGES = 50_000
# The first run of a query loads classes and starts Python workers, the second compiles: neither is the speed.
WARM_UP_RUNS = 2
MICRO_BATCH_MESSAGES = 100
MICRO_BATCH_PAUSE_S = 0.05
# Java compiles what a batch takes while the first ones run.
WARM_UP_BATCHES = 40
BATCH_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class SparkLoad:
    """What is to be read, where results may go, and how often it is done."""

    port: int
    topic: str
    messages: int
    directory: str
    runs: int

    @property
    def url(self) -> str:
        return f"holdfast://127.0.0.1:{self.port}"


def fill(load: SparkLoad) -> int:
    """Publish messages whose values all differ, so that no file format has it easier than the log."""
    import random

    import holdfast

    dice = random.Random(load.messages)
    with holdfast.connect_blocking(load.url, timeout_s=120) as broker:
        broker.create_topic(load.topic, partitions=PARTITIONS, exist_ok=True)
        left = load.messages
        while left > 0:
            count = min(left, PUBLISH_MESSAGES)
            text = dice.randbytes(count * VALUE_BYTES // 2).hex().encode()
            broker.publish_many(
                load.topic, [text[at : at + VALUE_BYTES] for at in range(0, count * VALUE_BYTES, VALUE_BYTES)]
            )
            left -= count
    return load.messages


def count_source(load: SparkLoad) -> float:
    """Rows a second of counting the topic."""
    spark = session()
    return _rate(load, lambda: _rows(spark, load).count())


def count_parquet(load: SparkLoad) -> float:
    """Rows a second of counting the same rows in Parquet files. Every column is read, as the source reads it."""
    spark = session()
    path = str(Path(load.directory) / "rows")
    _rows(spark, load).write.option("compression", "snappy").parquet(path)
    # A plain count would look at nothing but the files' footers.
    counts = ["count(*)", *(f"count({name})" for name in ("key", "value", "topic", "offset", "timestamp", "id"))]
    return _rate(load, lambda: int(spark.read.parquet(path).selectExpr("count(partition)", *counts).collect()[0][0]))


def to_parquet(load: SparkLoad) -> float:
    """Rows a second of a stream that writes all that is there to Parquet files."""
    spark = session()

    def write() -> int:
        path = Path(load.directory) / "written"
        shutil.rmtree(path, ignore_errors=True)
        stream = spark.readStream.format("holdfast").options(servers=load.url, subscribe=load.topic)
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("parquet")
            .option("compression", "snappy")
            .option("checkpointLocation", str(path / "checkpoint"))
            .option("path", str(path / "rows"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    return _rate(load, write)


def to_topic(load: SparkLoad) -> float:
    """Rows a second of a job that writes rows to a topic: all of them visible, once, at its end."""
    import holdfast

    spark = session()
    rows = spark.range(0, load.messages, 1, PARTITIONS)
    values = rows.selectExpr(f"CAST(rpad(CAST(id AS STRING), {VALUE_BYTES}, 'x') AS BINARY) AS value")
    runs = iter(range(WARM_UP_RUNS + load.runs))

    def write() -> int:
        topic = f"written-{next(runs)}"
        with holdfast.connect_blocking(load.url) as broker:
            broker.create_topic(topic, partitions=PARTITIONS)
            values.write.format("holdfast").options(servers=load.url, topic=topic).mode("append").save()
            found = broker.describe(topic).messages
            broker.delete_topic(topic)
        return found

    return _rate(load, write)


def micro_batches(load: SparkLoad) -> float:
    """Milliseconds of a micro-batch, from its trigger to its commit: the median over `runs` batches with messages."""
    import holdfast

    spark = session()
    stream = spark.readStream.format("holdfast").options(servers=load.url, subscribe=load.topic)
    directory = str(Path(load.directory) / "checkpoint")
    query = stream.load().writeStream.format("noop").option("checkpointLocation", directory).start()
    took_ms: dict[int, int] = {}
    with holdfast.connect_blocking(load.url) as broker:
        deadline = time.monotonic() + BATCH_WAIT_S
        while len(took_ms) < load.runs + WARM_UP_BATCHES and time.monotonic() < deadline:
            broker.publish_many(load.topic, [b"x" * VALUE_BYTES] * MICRO_BATCH_MESSAGES)
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    took_ms[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
            time.sleep(MICRO_BATCH_PAUSE_S)
    query.stop()
    spark.stop()
    return median([took_ms[number] for number in sorted(took_ms)][WARM_UP_BATCHES:])


def first_row(load: SparkLoad) -> float:
    """Seconds from the start of a driver to its first row; imports included."""
    begun = time.monotonic()
    spark = session()
    _rows(spark, load).limit(1).collect()
    took_s = time.monotonic() - begun
    spark.stop()
    return took_s


def session(memory: str = "1g") -> "SparkSession":
    import holdfast.spark

    config = {"spark.driver.memory": memory, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = holdfast.spark.session(MASTER, "bench", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _rows(spark: "SparkSession", load: SparkLoad) -> Any:
    return spark.read.format("holdfast").options(servers=load.url, subscribe=load.topic).load()


def _rate(load: SparkLoad, run: Callable[[], int]) -> float:
    """The median rate of some runs, each of which has to find every message."""
    rates = []
    for number in range(WARM_UP_RUNS + load.runs):
        begun = time.monotonic()
        found = run()
        if found != load.messages:
            raise ValueError(f"{found} rows are not the {load.messages} messages")
        if number >= WARM_UP_RUNS:
            rates.append(found / (time.monotonic() - begun))
    return median(rates)

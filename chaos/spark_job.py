"""A driver as users write it, in a process of its own so that it can be killed: `python -m chaos.spark_job`.

It says what it does on its standard output, one JSON line each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import holdfast.spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# What a slow task waits for another try of it: longer than Spark takes to begin one.
_BEATEN_S_MAX: Final = 60.0


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def summary(rows: DataFrame) -> dict[str, int]:
    """What tells whether every message is there once: how many, how many different ones, and the sum of all values."""
    found = rows.selectExpr(
        "count(*) rows",
        "count(distinct topic, partition, offset) places",
        "count(distinct value) values",
        "coalesce(sum(crc32(value)), 0) checksum",
    ).collect()[0]
    return {name: int(found[name]) for name in ("rows", "places", "values", "checksum")}


def write_stream(spark: SparkSession, options: argparse.Namespace) -> None:
    """Write the topic to files, for ever or until all that is there is written."""
    stream = _source(spark.readStream, options)
    stream = stream.option("startingOffsets", "earliest").option("groupId", "chaos")
    if options.offsets_per_trigger:
        stream = stream.option("maxOffsetsPerTrigger", str(options.offsets_per_trigger))
    writer = (
        stream.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(options.directory / "checkpoint"))
        .option("path", str(options.directory / "rows"))
    )
    if options.work == "drain":
        writer.trigger(availableNow=True).start().awaitTermination()
        say(summary=summary(spark.read.parquet(str(options.directory / "rows"))))
        return
    _tell_of_batches(writer.start())


def _tell_of_batches(query: Any) -> None:
    batch = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != batch:
            batch = progress["batchId"]
            say(batch=batch, rows=progress["numInputRows"])
        query.awaitTermination(1)


def copy_stream(spark: SparkSession, options: argparse.Namespace) -> None:
    """Write the topic to another one, for ever or until all that is there is written.

    Tasks take their time, and some of them wait for others: so there is a while in which a batch is staged in part.
    """

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(options.pause_s)
            yield batch
        if options.straggles is not None:
            _straggle(options.straggles)

    stream = _source(spark.readStream, options).options(startingOffsets="earliest", groupId="chaos", minPartitions="6")
    if options.offsets_per_trigger:
        stream = stream.option("maxOffsetsPerTrigger", str(options.offsets_per_trigger))
    rows = stream.load().select("value")
    writer = (
        rows.mapInArrow(slowly, rows.schema)
        .writeStream.format("holdfast")
        .options(servers=options.servers, topic=options.to_topic)
        .option("checkpointLocation", str(options.directory / "checkpoint"))
    )
    if options.work == "copy-drain":
        writer.trigger(availableNow=True).start().awaitTermination()
        read = spark.read.format("holdfast").options(servers=options.servers)
        sides = {side: read.option("subscribe", topic).load() for side, topic in _sides(options)}
        say(summary={side: summary(rows) for side, rows in sides.items()})
        return
    _tell_of_batches(writer.start())


def _straggle(beaten: Path) -> None:
    """Have the first try of a task wait, with all of its rows in hand, until another try of it has them as well."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    if context.partitionId() == 0 and context.attemptNumber() > 0:
        beaten.touch()
    deadline = time.monotonic() + _BEATEN_S_MAX
    while context.partitionId() == 0 and not beaten.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _sides(options: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    return ("read", options.topic), ("written", options.to_topic)


def _source(reader: Any, options: argparse.Namespace) -> Any:
    return reader.format("holdfast").options(servers=options.servers, subscribe=options.topic)


WORKS = {
    "stream": write_stream,
    "drain": write_stream,
    "copy": copy_stream,
    "copy-drain": copy_stream,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.spark_job", description=__doc__)
    parser.add_argument("work", choices=tuple(WORKS))
    parser.add_argument("--master", required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--to-topic", help="where a copy goes")
    parser.add_argument("--directory", type=Path, help="where a stream keeps its checkpoint and its rows")
    parser.add_argument("--config", type=json.loads, default={}, help="settings of the session, as JSON")
    parser.add_argument("--python", help="the interpreter of the executors")
    parser.add_argument("--pause-s", type=float, default=0.0, help="of each task, behind each Arrow batch")
    parser.add_argument("--straggles", type=Path, help="a file that is made once a slow task was tried again")
    parser.add_argument("--offsets-per-trigger", type=int)
    options = parser.parse_args()
    spark = holdfast.spark.session(options.master, "chaos", config=options.config, python=options.python)
    spark.sparkContext.setLogLevel("ERROR")
    say(started=True)
    WORKS[options.work](spark, options)
    spark.stop()


if __name__ == "__main__":
    main()

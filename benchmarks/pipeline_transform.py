"""Transforms of many messages, timed: `python -m benchmarks.pipeline_transform`, or `make bench-transform`.

Publishes numbers to a broker on this machine and takes them to another topic in each way: through a function over Arrow
batches, one over pandas, a statement, and the first and the last with messages that raise. One session does all; a
first transform, of few messages, is not counted, and neither is the start of Java. Says what came out, and how much of
a core each message took, with the broker: that depends little on what else a machine does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import holdfast.pipelines
import holdfast.spark
from benchmarks.pipeline_audit import LOOK_S, Watch
from holdfast.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.client import BlockingClient

# One message in so many raises where some are to.
RAISES_EVERY: Final = 100
_PUBLISH_MESSAGES: Final = 10_000
_WARM_MESSAGES: Final = 1_000
_VALUE_BYTES: Final = 100
_CONFIG: Final = {"spark.driver.memory": "2g", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def doubled(batch: pa.RecordBatch) -> pa.Table:
    numbers = pc.cast(pc.cast(batch["value"], pa.string()), pa.int64())
    return pa.table({"key": batch["key"], "value": pc.cast(pc.multiply(numbers, 2), pa.string())})


def doubled_frame(frame: Any) -> Any:
    return frame[["key"]].assign(value=(frame["value"].astype("int64") * 2).astype(str))


SQL: Final = "SELECT key, CAST(2 * CAST(CAST(value AS STRING) AS BIGINT) AS STRING) AS value FROM messages"
# What it is called, which topic it reads, and what the transform is told.
WAYS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("function over Arrow", "numbers", {"function": doubled}),
    ("function over pandas", "numbers", {"function": doubled_frame, "batches": "pandas"}),
    ("SQL", "numbers", {"sql": SQL}),
    ("function over Arrow, 1 % raise", "some-raise", {"function": doubled}),
    ("SQL, 1 % raise", "some-raise", {"sql": SQL}),
)


def publish(broker: BlockingClient, topic: str, messages: int, raises_every: int | None = None) -> None:
    broker.create_topic(topic, partitions=2)
    for first in range(0, messages, _PUBLISH_MESSAGES):
        numbers = range(first, min(first + _PUBLISH_MESSAGES, messages))
        values = [b"%0*d" % (_VALUE_BYTES, number) for number in numbers]
        if raises_every is not None:
            values[raises_every // 2 :: raises_every] = [b"x" * _VALUE_BYTES] * len(
                values[raises_every // 2 :: raises_every]
            )
        broker.publish_many(topic, values)


def measure(spark: SparkSession, servers: str, directory: Path, messages: int) -> bool:
    is_right, watch = True, Watch(os.getpid())
    for number, (name, source, told) in enumerate(WAYS):
        for kind, of in (("warm", "few"), ("made", source)):
            began, used_s = time.monotonic(), watch.cpu_s
            done = holdfast.pipelines.transform(
                spark,
                source=of,
                target=f"{kind}-{number}",
                checkpoint=str(directory / f"{kind}-{number}"),
                servers=servers,
                **told,
            )
            seconds = time.monotonic() - began
            time.sleep(LOOK_S)
        dead = messages // RAISES_EVERY if source == "some-raise" else 0
        is_right &= done.counts == {"made": messages - dead, "dead": dead}
        core_us = (watch.cpu_s - used_s) / messages * 1e6
        rates = f"{messages / seconds:>8,.0f} messages/s, {core_us:>4.0f} µs of a core each"
        print(f"{name:31} {rates}; {done.counts['made']:,} made, {done.counts['dead']:,} dead", flush=True)
    watch.stop()
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_transform", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-transform-") as temporary,
        LocalCluster(nodes=1) as cluster,
        cluster.connect_blocking() as broker,
    ):
        publish(broker, "few", _WARM_MESSAGES)
        publish(broker, "numbers", options.messages)
        publish(broker, "some-raise", options.messages, RAISES_EVERY)
        spark = holdfast.spark.session(options.master, "bench", config=_CONFIG)
        spark.sparkContext.setLogLevel("OFF")
        is_right = measure(spark, cluster.url.removeprefix("holdfast://"), Path(temporary), options.messages)
        spark.stop()
    print("all is as planted" if is_right else "NOT as planted")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())

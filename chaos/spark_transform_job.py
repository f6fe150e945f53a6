"""A driver with transforms of every kind, in a process of its own so that it can be killed.

`python -m chaos.spark_transform_job SERVERS DIRECTORY [--once]`
"""

from __future__ import annotations

import argparse
import os
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import holdfast.pipelines
import holdfast.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One batch takes about a second, so that kills meet all that happens in one.
BATCH_MESSAGES: Final = 30
# What a driver takes at once that is not to be killed.
_ALL_MESSAGES: Final = 10_000
_CONFIG: Final = {
    "spark.driver.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def doubled(batch: pa.RecordBatch) -> pa.Table:
    numbers = [int(value) for value in batch["value"].to_pylist()]
    time.sleep(0.005 * len(numbers))
    return pa.table({"value": [str(2 * number) for number in numbers]})


def summed(state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.Table]:
    """Each message becomes the sum of all of its key up to it: one that came twice, or not, is seen in all others."""
    total, sums = state or 0, []
    for value in batch["value"].to_pylist():
        total += int(value)
        sums.append(str(total))
    return total, pa.table({"value": sums})


# What `holdfast.pipelines.transform` is told for each.
WAYS: Final[dict[str, dict[str, Any]]] = {
    "function": {"function": doubled, "batch_rows_max": 10},
    "sql": {"sql": "SELECT CAST(2 * CAST(CAST(value AS STRING) AS INT) AS STRING) AS value FROM messages"},
    "state": {"function": summed, "is_stateful": True, "batch_rows_max": 10},
}


def source_of(way: str) -> str:
    return f"numbers-{way}"


def target_of(way: str) -> str:
    return f"made-{way}"


def _run(spark: SparkSession, way: str, servers: str, directory: Path, once: bool) -> None:
    try:
        holdfast.pipelines.transform(
            spark,
            source=source_of(way),
            target=target_of(way),
            checkpoint=str(directory / way),
            servers=servers,
            once=once,
            interval_s=0.001,
            batch_messages_max=_ALL_MESSAGES if once else BATCH_MESSAGES,
            **WAYS[way],
        )
    except BaseException:  # noqa: BLE001 - whatever it was, the others must not go on alone
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.spark_transform_job", description=__doc__)
    parser.add_argument("servers")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    spark = holdfast.spark.session("local[2, 3]", "chaos", config=_CONFIG)
    spark.sparkContext.setLogLevel("OFF")
    threads = [
        threading.Thread(target=_run, args=(spark, way, options.servers, options.directory, options.once))
        for way in WAYS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spark.stop()


if __name__ == "__main__":
    main()

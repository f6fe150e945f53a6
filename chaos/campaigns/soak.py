"""Memory of a driver and its executors under a long stream.

A query copies a topic to another one for the whole time, batch after batch, on this machine's cores. The memory of
each kind of process (the driver's Python, Java, and the Python workers that plan, read and write) is looked at all the
time; what the most was in the last quarter may be little more than what it was in the second one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from testkit.history import History
from testkit.processes import family
from testkit.wait import wait_until

from chaos import report
from chaos.campaigns.spark import COPY, PARTITIONS, TOPIC, Driver, Publisher
from chaos.report import Report
from chaos.run import Outcome
from holdfast.testing import LocalCluster

_LOOK_S: Final = 1.0
_START_S: Final = 240.0
_MIB: Final = 1024 * 1024
# What a process may take more without growing: a buffer that was once larger than before.
_MORE_BYTES: Final = 24 * _MIB
_MORE_SHARE: Final = 0.1


class Local:
    """This machine instead of a cluster, for `Driver`."""

    master = "local[2]"
    config: Final = {
        "spark.driver.memory": "512m",
        # All of the heap is taken at the start, so what grows later is not garbage that nobody collected yet.
        "spark.driver.extraJavaOptions": "-Xms512m -XX:+AlwaysPreTouch -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
    }


def memory_bytes(root: int) -> dict[str, int]:
    """Bytes that the processes of each kind hold, without what they share."""
    found: dict[str, int] = {"driver": 0, "java": 0, "workers": 0}
    for pid in family(root):
        with contextlib.suppress(OSError, ValueError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            sizes = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
            )
            kind = "driver" if pid == root else "java" if command[0].endswith(b"java") else "workers"
            found[kind] += int(sizes["Pss"].split()[0]) * 1024
    return found


def run(seconds: float, seed: int, directory: Path) -> Outcome:
    """What is copied is deleted after a minute, so that only its publishing is in the history."""
    replay = f"{sys.executable} -m chaos soak --seconds {seconds:g} --seed {seed}"
    outcome = Outcome(seed, replay, History(), began=time.monotonic())
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking(timeout_s=120) as broker:
        for topic in (TOPIC, COPY):
            broker.create_topic(topic, partitions=PARTITIONS, retention_ms=60_000)
        driver = Driver(Local(), cluster, directory, "copy", is_bare=False)
        quarters: list[dict[str, int]] = [{}, {}, {}, {}]
        try:
            with Publisher(broker, random.Random(seed), outcome.history):
                process = driver.start()
                wait_until(lambda: driver.batches > 1, "the query runs", _START_S)
                begun, before = time.monotonic(), driver.batches
                while (passed_s := time.monotonic() - begun) < seconds:
                    most = quarters[int(4 * passed_s / seconds)]
                    for kind, size in memory_bytes(process.pid).items():
                        most[kind] = max(most.get(kind, 0), size)
                    time.sleep(_LOOK_S)
                    # One that has ended holds no memory, and one that does nothing needs no more.
                    assert process.poll() is None, f"the driver ended with {process.returncode}"
        finally:
            driver.close()
    assert all(quarters), f"{seconds:g} s are too short to look at the memory in each quarter"
    assert driver.batches > before, "no batch was written"
    outcome.totals["batches"] = driver.batches - before
    for number, most in enumerate(quarters, 1):
        outcome.totals.update({f"MiB of {kind}, quarter {number}": size // _MIB for kind, size in most.items()})
    outcome.verdict.add("memory grows", grown(quarters))
    outcome.seconds = time.monotonic() - outcome.began
    return outcome


def grown(quarters: list[dict[str, int]]) -> Iterator[str]:
    """Kinds of processes that took more in the last quarter than in the second one; the first is for warming up."""
    for kind, size in quarters[1].items():
        if quarters[3][kind] > size * (1 + _MORE_SHARE) + _MORE_BYTES:
            yield f"{kind}: {quarters[3][kind] // _MIB} MiB in the last quarter, {size // _MIB} MiB in the second one"


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long")


def main(options: argparse.Namespace) -> int:
    made = Report("soak", options)
    with made.attempt(), tempfile.TemporaryDirectory() as directory:
        made.add(run(options.seconds, options.seed, Path(directory)))
    return made.finish()

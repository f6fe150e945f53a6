"""Streaming queries on a standalone cluster while everything under them dies.

Executors, the driver (restarted from its checkpoint) and the leader of the broker's partitions are killed in turn,
while messages are published. One query writes files, and another one a topic: there the driver is also killed when a
batch is staged and not committed. At the end the files, and the topic, hold every message once, by number and content.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.parquet as pq
from testkit.checker import check
from testkit.history import History, Place
from testkit.spark import SparkCluster, bare_python
from testkit.wait import wait_until

from chaos import report
from chaos.report import Report
from chaos.run import Outcome
from holdfast import BlockingClient, NewMessage
from holdfast.testing import LocalCluster

TOPIC: Final = "chaos"
COPY: Final = "chaos-copy"
PARTITIONS: Final = 3
BATCH: Final = 500
# A fault has to be over, and a batch written behind it, within this time.
RECOVERY_S: Final = 240.0
_PUBLISH_PAUSE_S: Final = 0.1
# Of each task of a copy: long enough to kill a driver whose batch is staged in part.
_TASK_PAUSE_S: Final = 0.5
# How often a driver is killed that may have committed a moment before.
_TRIES: Final = 5
# What each query does all the time, and what a last driver does in the end.
QUERIES: Final = {"files": ("stream", "drain"), "copy": ("copy", "copy-drain")}


class Publisher:
    """Publishes numbered messages from a thread of its own, and sums up what was acknowledged."""

    def __init__(self, broker: BlockingClient, dice: random.Random, history: History) -> None:
        self.count = 0
        self.checksum = 0
        self._broker = broker
        self._dice = dice
        self._history = history
        self._book = history.producer("m", TOPIC)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher")
        self._failure: BaseException | None = None

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopped.wait(_PUBLISH_PAUSE_S):
                sequences = self._book.send(BATCH, time.monotonic())
                values = [f"m/{sequence} {self._dice.randbytes(20).hex()}".encode() for sequence in sequences]
                # With ids, so that what is sent again when a leader dies is stored once.
                messages = [NewMessage(value=value, id=value.split()[0].decode()) for value in values]
                for sequence, one in zip(sequences, self._broker.publish_many(TOPIC, messages), strict=True):
                    place = self._history.place(TOPIC, one.partition)
                    self._book.acknowledge(sequence, time.monotonic(), place, one.offset)
                self.count += BATCH
                self.checksum += sum(map(zlib.crc32, values))
        except BaseException as error:  # noqa: BLE001 - it is raised where the publisher is waited for
            self._failure = error


class ClusterOfSpark(Protocol):
    """Where a driver finds its executors."""

    @property
    def master(self) -> str: ...

    @property
    def config(self) -> dict[str, str]: ...


# Spark tries a task again as soon as half of the others are done.
_SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.interval": "100ms",
}


class Driver:
    """The driver of the query; started again it goes on from its checkpoint."""

    def __init__(
        self,
        spark: ClusterOfSpark,
        cluster: LocalCluster,
        directory: Path,
        query: str = "files",
        *,
        is_bare: bool = True,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._work, self._last_work = QUERIES[query]
        # Executors whose Python does not have Holdfast.
        self._is_bare = is_bare
        self._directory = directory
        self._log = open(directory / "driver.log", "ab")  # noqa: SIM115 - it is open as long as the driver
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None
        self.batches = 0
        self.starts = 0

    def start(self, work: str | None = None, straggles: Path | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "chaos.spark_job", work or self._work, "--master", self._spark.master]
        command += ["--topic", TOPIC, "--to-topic", COPY, "--pause-s", str(_TASK_PAUSE_S)]
        command += ["--servers", self._cluster.url, "--directory", str(self._directory / "query")]
        command += ["--config", json.dumps(self._spark.config | (_SPECULATION if straggles else {}))]
        if straggles is not None:
            command += ["--straggles", str(straggles)]
        if self._is_bare:
            command += ["--python", str(self._directory / "bare" / "python")]
        self.starts += 1
        # A group of its own: Python, Java and all their children are killed at once.
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True)
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()
        return self._process

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._listener is not None:
            self._listener.join()

    def close(self) -> None:
        self.kill()
        self._log.close()

    def drain(self, straggles: Path | None = None) -> dict[str, Any]:
        """Let a last driver write the rest; what it found in the files.

        With `straggles` a task of each batch is slow until Spark tries it again beside itself; then that file is made.
        """
        self.kill()
        self.told: dict[str, Any] = {}
        process = self.start(self._last_work, straggles)
        assert process.wait(RECOVERY_S) == 0, f"the last driver failed; see {self._log.name}"
        wait_until(lambda: "summary" in self.told, "the summary", 10)
        return self.told["summary"]  # type: ignore[no-any-return]

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    return  # it was killed in the middle of a word
                told = json.loads(line)
                self.batches += "batch" in told
                if "summary" in told:
                    self.told = told


def counted(cluster: LocalCluster) -> dict[str, int]:
    """Messages that were staged, and transactions that were committed, through all nodes since they started."""
    found = {"staged_messages": 0, "committed": 0}
    for address in cluster.http_addresses:
        with urllib.request.urlopen(f"http://{address}/metrics?format=prometheus", timeout=10) as answer:
            text = answer.read().decode()
        for name in found:
            found[name] += int(float(re.findall(rf"^holdfast_transactions_{name}_total ([0-9.e+]+)$", text, re.M)[0]))
    return found


def kill_between_stage_and_commit(driver: Driver, cluster: LocalCluster) -> None:
    """Kill a driver whose batch is staged, at least in part, and not committed."""
    for _ in range(_TRIES):
        before = counted(cluster)["committed"]
        wait_until(lambda: counted(cluster)["committed"] > before, "a batch is committed", RECOVERY_S)  # noqa: B023
        begun = counted(cluster)
        wait_until(lambda: counted(cluster)["staged_messages"] > begun["staged_messages"], "some is staged", RECOVERY_S)  # noqa: B023
        driver.kill()
        # What the driver asked for before it died has been done by then.
        time.sleep(1)
        if counted(cluster)["committed"] == begun["committed"]:
            return
        driver.start()
    raise AssertionError(f"the driver had committed {_TRIES} times before it could be killed")


def faults(
    spark: SparkCluster, cluster: LocalCluster, driver: Driver, dice: random.Random, query: str
) -> Iterator[str]:
    """One fault after the other, each brought about when the next name is asked for."""
    while True:
        if query == "copy":
            kill_between_stage_and_commit(driver, cluster)
            driver.start()
            yield "the driver was killed between stage and commit, and restarted"
        wait_until(lambda: bool(spark.executors()), "there is an executor", RECOVERY_S)
        os.kill(dice.choice(spark.executors()), signal.SIGKILL)
        yield "an executor was killed"
        driver.kill()
        driver.start()
        yield "the driver was killed and restarted"
        leader = cluster.leader(TOPIC)
        cluster.kill(leader)
        yield "the broker's leader was killed"
        cluster.start(leader)
        for pid in spark.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        yield "it came back, and all executors were killed"


def committed_files(rows: Path) -> list[Path]:
    """The files that a query has committed; those of batches that were not committed lie beside them."""
    log = rows / "_spark_metadata"
    batches = sorted((path for path in log.iterdir() if path.name[0].isdigit()), key=lambda path: int(path.stem))
    compact = max((number for number, path in enumerate(batches) if path.suffix), default=0)
    entries = [json.loads(line) for path in batches[compact:] for line in path.read_text("utf-8").splitlines()[1:]]
    return [rows / Path(entry["path"]).name for entry in entries if entry["action"] == "add"]


def collect(history: History, query: str, directory: Path, broker: BlockingClient) -> None:
    """What the files hold, or the topic that was copied to."""
    if query == "files":
        found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
        for path in committed_files(directory / "query" / "rows"):
            with pq.ParquetFile(path) as file:
                columns = file.read(columns=["partition", "offset", "value"]).to_pydict()
            for partition, offset, value in zip(*columns.values(), strict=True):
                found[partition].append((offset, value))
        for partition, rows in found.items():
            history.add_rows(query, Place(TOPIC, partition), sorted(rows))
        return
    for described in broker.describe(COPY).partitions:
        values: list[bytes] = []
        while messages := broker.read(COPY, described.partition, len(values), messages_max=5000):
            values += [message.value for message in messages]
        history.add_values(query, Place(TOPIC, described.partition), values)


# Where messages stand in another topic is that topic's own.
PROMISED: Final = {"files": None, "copy": ("acknowledged and lost", "never sent", "stored twice", "did not go on")}


def run(query: str, rounds: int, seed: int, directory: Path, say: Callable[[str], object] = len) -> Outcome:
    replay = f"{sys.executable} -m chaos spark --query {query} --rounds {rounds} --seed {seed}"
    outcome = Outcome(seed, replay, History(members=(query,)), began=time.monotonic())
    history, dice = outcome.history, random.Random(seed)
    bare_python(directory / "bare")
    with LocalCluster(nodes=3) as cluster, cluster.connect_blocking(timeout_s=120) as broker:
        broker.create_topic(TOPIC, partitions=PARTITIONS)
        broker.create_topic(COPY, partitions=2)
        with SparkCluster(directory / "spark") as spark:
            driver = Driver(spark, cluster, directory, query)
            try:
                with Publisher(broker, dice, history) as publisher:
                    driver.start()
                    wait_until(lambda: driver.batches > 1, "the query runs", RECOVERY_S)
                    for _, fault in zip(range(rounds), faults(spark, cluster, driver, dice, query), strict=False):
                        outcome.faults[fault] += 1
                        before, begun = driver.batches, time.monotonic()
                        wait_until(lambda: driver.batches > before + 1, f"batches go on after {fault}", RECOVERY_S)  # noqa: B023
                        say(f"{fault}; batches go on after {time.monotonic() - begun:.1f} s")
                found = driver.drain()
                lag = broker.cursor(TOPIC, "chaos").lag
            finally:
                driver.close()
        collect(history, query, directory, broker)
    count = publisher.count
    whole = {"rows": count, "places": count, "values": count, "checksum": publisher.checksum}
    expected = {"read": whole, "written": whole} if query == "copy" else whole
    if found != expected or lag:
        history.stalls.append(f"Spark found {found}, {expected} was published, and the cursor lags {lag} behind")
    outcome.verdict = check(history, PROMISED[query])
    outcome.seconds = time.monotonic() - outcome.began
    return outcome


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--rounds", type=int, default=8, help="faults to bring about under each query")
    parser.add_argument("--query", choices=tuple(QUERIES), help="only this one (default: both, one after the other)")
    parser.add_argument("--directory", type=Path, help="where files and logs stay (default: a temporary one)")


def main(options: argparse.Namespace) -> int:
    made = Report("spark", options)
    with contextlib.ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, query in enumerate(QUERIES if options.query is None else (options.query,)):
            made.say(f"a query that writes {'another topic' if query == 'copy' else query}")
            (directory / query).mkdir(parents=True)
            with made.attempt():
                made.add(run(query, options.rounds, options.seed + number, directory / query, made.say))
    return made.finish()

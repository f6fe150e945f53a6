"""On a standalone cluster of real processes: executors get the connector by themselves, and anybody may die."""

from __future__ import annotations

import os
import random
import signal
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from chaos.campaigns import recover as chaos_recover
from chaos.campaigns import spark as chaos
from testkit.postgres import Server
from testkit.spark import IMPATIENT, WORK_S, DriverProcess, SparkCluster, bare_python
from testkit.wait import wait_until

from holdfast import NewMessage
from holdfast.spark.archive_files import ArchiveReader
from holdfast.testing import LocalCluster
from tests.spark import audit_by_hand
from tests.spark.audit_by_hand import COUNTS, random_log, write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MESSAGES = 20_000
VALUES = [b"%d of many" % number for number in range(MESSAGES)]
FUNCTION = """
import pathlib
import time

import pyarrow as pa


def doubled(batch):
    pathlib.Path(__file__).with_name("begun").touch()
    time.sleep(0.05 * batch.num_rows)
    return pa.table({"value": [str(2 * int(value)) for value in batch["value"].to_pylist()]})
"""
SPILLED = 40_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the cluster is; commands that run Python on executors find one there that does not have Holdfast."""
    directory = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_SPARK_CLASS_ARCHIVE", "use")
        patch.setenv("PYSPARK_PYTHON", str(bare_python(directory / "bare")))
        patch.chdir(Path(__file__).parents[2])
        yield directory


@pytest.fixture(scope="module")
def started(place: Path) -> Iterator[SparkCluster]:
    with SparkCluster(place / "spark") as spark:
        yield spark


@pytest.fixture
def spark(started: SparkCluster) -> SparkCluster:
    """With two workers that have nothing to do, whatever the test before has done to them."""
    started.wait_for_workers()
    return started


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1) as started:
        yield started


@pytest.mark.night
def test_audit_and_insight_find_the_same_when_they_lose_a_worker(
    spark: SparkCluster, cluster: LocalCluster, tmp_path: Path
) -> None:
    dice = random.Random(17)
    logs = [random_log(dice, f"case-{number}") for number in range(2000)]
    sent, received = ([line for log in logs for line in log[side]] for side in (0, 1))
    with cluster.connect_blocking() as broker:
        broker.create_topic("looked-at", partitions=2)
        for _ in range(20):
            broker.publish_many("looked-at", VALUES)
    files = ["--sent", write(tmp_path / "sent.ndjson", sent), "--received", write(tmp_path / "got.ndjson", received)]
    topic = ["--topic", "looked-at", "--server", cluster.http_addresses[0], "--once"]
    found = {}
    for name, given, code in (("audit", files, 1), ("insight", topic, 0)):
        spark.wait_for_workers()
        driver = DriverProcess(
            name, *given, "--json", log=tmp_path / name, master=spark.master, config=spark.config | IMPATIENT
        )
        with driver:
            spark.wait_until_at_work()
            spark.lose_worker()
            assert driver.is_running, "it has not ended before"
            found[name] = driver.ended(code)
    expected = audit_by_hand.verdict(sent, received)
    assert {count: found["audit"][count] for count in COUNTS} == {count: expected[count] for count in COUNTS}
    [counted] = found["insight"]["topics"]
    assert (counted["topic"], counted["messages"]) == ("looked-at", 20 * MESSAGES)


@pytest.mark.night
async def test_recovery_that_loses_a_worker_stores_everything_once(spark: SparkCluster, tmp_path: Path) -> None:
    """A worker is killed as soon as something is stored."""
    server = Server(tmp_path / "postgres", "fsync=off", "autovacuum=off")
    await server.start()
    try:
        spills = tmp_path / "spills"
        expected = chaos_recover.write_spills(spills, random.Random(16), SPILLED)
        # What a recovery needs there beside Holdfast itself.
        more = {"spark.executorEnv.PYTHONPATH": sysconfig.get_path("purelib")}
        recovery = chaos_recover.Recovery(server.url, spills, spark.master, {**spark.config, **IMPATIENT, **more})
        verdict = await recovery.ended(1, spark.lose_worker)
        assert await recovery.stored() == expected
        assert verdict["stored"] + verdict["already_stored"] == SPILLED and verdict["set_aside"] == 0
    finally:
        server.kill()


@pytest.mark.night
def test_archive_that_loses_a_worker_has_every_offset_once(
    spark: SparkCluster, cluster: LocalCluster, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    with cluster.connect_blocking() as broker:
        broker.create_topic("archived", partitions=2)
        broker.publish_many("archived", VALUES)
    options = ["--to", str(archive), "--server", cluster.url, "--once", "--json"]
    options += ["--batch-size", "256KiB", "--compact-files", "3"]
    with DriverProcess(
        "archive", "archived", *options, log=tmp_path / "log", master=spark.master, config=spark.config
    ) as driver:
        driver.wait_until(lambda: list(archive.glob("_archive/commits/*.json")), "a batch is archived")
        spark.lose_worker()
        driver.ended()
    reader = ArchiveReader(archive)
    places, values = set(), []
    for path in reader.load().files:
        # Not as a dataset: of a path it would make columns.
        with pq.ParquetFile(reader.files / path) as file:
            read = file.read(columns=["partition", "offset", "value"]).to_pydict()
        places |= set(zip(read["partition"], read["offset"], strict=True))
        values += read["value"]
    assert len(places) == MESSAGES and sorted(values) == sorted(VALUES)


@pytest.mark.night
def test_transform_that_loses_a_worker_makes_each_message_once(
    spark: SparkCluster, cluster: LocalCluster, tmp_path: Path
) -> None:
    """A function of a file, on executors that have nothing of ours, one of whose workers is killed in the middle."""
    (tmp_path / "shop.py").write_text(FUNCTION)
    values = [b"x%d" % number if number % 25 == 3 else b"%d" % number for number in range(200)]
    with cluster.connect_blocking() as broker:
        broker.create_topic("numbers", partitions=2)
        broker.publish_many("numbers", [NewMessage(value=value, key=value) for value in values])
        options = ["--source", "numbers", "--target", "doubled", "--function", f"{tmp_path / 'shop.py'}:doubled"]
        options += ["--checkpoint", str(tmp_path / "transform"), "--batch-rows", "20", "--once", "--json"]
        options += ["--server", cluster.http_addresses[0]]
        staged = chaos.counted(cluster)["staged_messages"]
        with DriverProcess(
            "transform", *options, log=tmp_path / "log", master=spark.master, config=spark.config
        ) as driver:
            driver.wait_until((tmp_path / "begun").exists, "the function is called on an executor")
            spark.lose_worker()
            assert driver.ended()["dead"] == 8
        assert chaos.counted(cluster)["staged_messages"] > staged
        found = {
            topic: sorted(
                message.value
                for partition in (0, 1)
                for message in broker.read(topic, partition=partition, offset=0, messages_max=1000)
            )
            for topic in ("doubled", "numbers.dead")
        }
    assert found["doubled"] == sorted(b"%d" % (2 * int(value)) for value in values if value.isdigit())
    assert found["numbers.dead"] == sorted(value for value in values if not value.isdigit())


def await_more(cluster: LocalCluster, name: str, before: dict[str, int]) -> None:
    wait_until(lambda: chaos.counted(cluster)[name] > before[name], f"there is more that is {name}", WORK_S)


def test_killed_executors_and_drivers_lose_and_double_nothing(
    spark: SparkCluster, cluster: LocalCluster, place: Path, tmp_path: Path
) -> None:
    """The short form of `make chaos-spark`: a query copies a topic to another one.

    The last driver speculates: of a task that is slow both tries have all of its rows, and one of them counts.
    """
    with cluster.connect_blocking() as broker:
        for topic in (chaos.TOPIC, chaos.COPY):
            broker.create_topic(topic, partitions=2)
        broker.publish_many(chaos.TOPIC, VALUES[: MESSAGES // 2])
        driver = chaos.Driver(spark, cluster, place, "copy")
        try:
            before = chaos.counted(cluster)
            driver.start()
            await_more(cluster, "staged_messages", before)
            os.kill(spark.executors()[0], signal.SIGKILL)
            # The batch is committed all the same.
            await_more(cluster, "committed", before)
            before = chaos.counted(cluster)
            broker.publish_many(chaos.TOPIC, VALUES[MESSAGES // 2 :])
            await_more(cluster, "staged_messages", before)
            driver.kill()
            found = driver.drain(straggles=tmp_path / "straggled")
            assert (tmp_path / "straggled").exists(), "a task was tried twice at the same time"
        finally:
            driver.close()
    exact = {"rows": MESSAGES, "places": MESSAGES, "values": MESSAGES, "checksum": sum(map(zlib.crc32, VALUES))}
    assert found == {"read": exact, "written": exact}

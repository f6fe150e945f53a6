"""On a standalone cluster of real processes: executors get the connector by themselves, and anybody may die."""

from __future__ import annotations

import os
import signal
import zlib
from pathlib import Path

import pytest
from chaos import spark as chaos
from chaos.spark_cluster import SparkCluster, bare_python, wait_for

from holdfast.testing import LocalCluster

MESSAGES = 20_000


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_killed_executors_and_drivers_lose_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of `make chaos-spark`: a query copies a topic to another one.

    The last driver speculates: of a task that is slow both tries have all of its rows, and one of them counts.
    """
    monkeypatch.setenv("HOLDFAST_SPARK_CLASS_ARCHIVE", "use")
    monkeypatch.chdir(Path(__file__).parents[2])
    values = [b"%d of many" % number for number in range(MESSAGES)]
    bare_python(tmp_path / "bare")
    with (
        LocalCluster(nodes=1) as cluster,
        cluster.connect_blocking() as broker,
        SparkCluster(tmp_path / "spark") as spark,
    ):
        for topic in (chaos.TOPIC, chaos.COPY):
            broker.create_topic(topic, partitions=2)
        broker.publish_many(chaos.TOPIC, values[: MESSAGES // 2])
        driver = chaos.Driver(spark, cluster, tmp_path, "copy")
        try:
            driver.start()
            wait_for(lambda: chaos.counted(cluster)["staged_messages"] > 0, "some is staged", chaos.RECOVERY_S)
            os.kill(spark.executors()[0], signal.SIGKILL)
            wait_for(
                lambda: chaos.counted(cluster)["committed"] > 0, "the batch is committed all the same", chaos.RECOVERY_S
            )
            staged = chaos.counted(cluster)["staged_messages"]
            broker.publish_many(chaos.TOPIC, values[MESSAGES // 2 :])
            wait_for(lambda: chaos.counted(cluster)["staged_messages"] > staged, "more is staged", chaos.RECOVERY_S)
            driver.kill()
            found = driver.drain(straggles=tmp_path / "straggled")
            assert (tmp_path / "straggled").exists(), "a task was tried twice at the same time"
        finally:
            driver.close()
    exact = {"rows": MESSAGES, "places": MESSAGES, "values": MESSAGES, "checksum": sum(map(zlib.crc32, values))}
    assert found == {"read": exact, "written": exact}

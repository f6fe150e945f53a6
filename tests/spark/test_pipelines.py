"""A declarative pipeline that reads and writes Holdfast, run as people run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testkit.spark import SMALL_SESSION, conf_options

from holdfast.spark.java import find_java
from holdfast.testing import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline"


@pytest.mark.spark
@pytest.mark.night
@pytest.mark.timeout(600)
def test_pipeline_reads_a_topic_and_writes_another_one_and_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    spec = (EXAMPLE / "spark-pipeline.yml").read_text("utf-8")
    assert "file:///tmp/holdfast-orders-pipeline" in spec
    (tmp_path / "spark-pipeline.yml").write_text(
        spec.replace("file:///tmp/holdfast-orders-pipeline", (tmp_path / "storage").as_uri()), "utf-8"
    )
    (tmp_path / "transformations").symlink_to(EXAMPLE / "transformations")
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        broker.create_topic("pipeline-orders", partitions=2)
        items = ("tea", "coffee", "cake")
        orders: list[dict[str, Any]] = [{"item": items[number % 3], "count": number % 5 + 1} for number in range(600)]
        environment = os.environ | {
            "HOLDFAST_SERVER": cluster.http_addresses[0],
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
        # Spark gives a Python worker ten seconds to start, which a busy machine may need.
        command += conf_options(SMALL_SESSION | {"spark.sql.pipelines.maxFlowRetryAttempts": "20"})
        # The second run fails where the first has left a table.
        for some in (orders[:500], orders[500:]):
            broker.publish_many("pipeline-orders", some)
            ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250)
            assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
            assert not list(tmp_path.glob("spark-warehouse/*")), "a table's files, which the next run would fail at"
        told = [(message.key, message.json()) for message in broker.read("pipeline-large-orders", messages_max=1000)]
    large = [order for order in orders if order["count"] >= 4]
    assert sorted(map(str, told)) == sorted(str((str(order["item"]).encode(), order)) for order in large)

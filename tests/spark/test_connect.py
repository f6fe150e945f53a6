"""Pipelines on a client of Spark Connect: refused before they ask for anything or leave anything behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import BlockingClient, pipelines
from holdfast.pipelines.errors import BadPipelineSetting
from holdfast.spark.java import find_java
from holdfast.testing import LocalCluster

PROGRAM = """
import sys

from pyspark.sql import SparkSession

from holdfast import pipelines
from holdfast.pipelines.errors import BadPipelineSetting

servers, path = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
try:
    for pipeline in (
        lambda: pipelines.archive(spark, ["orders"], to=path, servers=servers),
        lambda: pipelines.audit(spark, sent=[path], received=[path]),
        lambda: pipelines.insight(spark, topics=["orders"], servers=servers),
        lambda: pipelines.recover(spark, [path], servers=servers),
        lambda: pipelines.transform(
            spark, source="orders", target="out", checkpoint=path, sql="SELECT value FROM messages", servers=servers
        ),
    ):
        try:
            pipeline()
        except BadPipelineSetting as refused:
            assert "Spark Connect" in refused.message, refused
            print("refused")
finally:
    spark.stop()
"""


def told_of(broker: BlockingClient) -> tuple[list[str], list[str]]:
    return [str(each.topic) for each in broker.topics()], [cursor.name for cursor in broker.cursors("orders")]


def test_pipeline_that_is_given_a_client_of_spark_connect_is_refused_before_it_does_anything(tmp_path: Path) -> None:
    client: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    path, servers = str(tmp_path / "path"), "127.0.0.1:1"
    how: dict[str, Any] = {"checkpoint": path, "sql": "SELECT value FROM messages"}
    for pipeline in (
        lambda: pipelines.archive(client, ["orders"], to=path, servers=servers),
        lambda: pipelines.audit(client, sent=[path], received=[path]),
        lambda: pipelines.insight(client, topics=["orders"], servers=servers),
        lambda: pipelines.recover(client, [path], servers=servers),
        lambda: pipelines.transform(client, source="orders", target="out", servers=servers, **how),
    ):
        with pytest.raises(BadPipelineSetting, match="Spark Connect"):
            pipeline()
    assert not (tmp_path / "path").exists()


@pytest.mark.spark
@pytest.mark.night
@pytest.mark.timeout(300)
def test_pipeline_on_spark_connect_is_refused_and_leaves_no_cursor_behind(tmp_path: Path) -> None:
    with LocalCluster(nodes=1) as cluster, cluster.connect_blocking() as broker:
        broker.publish_many("orders", ["a", "b"])
        before = told_of(broker)
        path = tmp_path / "path"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.url.removeprefix("holdfast://"), str(path)],
            env={**os.environ, "JAVA_HOME": str(find_java().home)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == ["refused"] * 5, done.stderr
        assert told_of(broker) == before and not path.exists()

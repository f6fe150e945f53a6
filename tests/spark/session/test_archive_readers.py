"""An archive read by everybody whom its page names: each row once, as the archive's own reader has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import holdfast
import holdfast.spark
from holdfast import pipelines
from holdfast.spark.archive_files import ArchiveReader

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text("utf-8")
Places = list[tuple[str, int, int]]


def places(rows: Iterable[Any]) -> Places:
    return sorted((topic, int(partition), int(offset)) for topic, partition, offset in rows)


@pytest.fixture
def archive(
    spark: SparkSession, broker: holdfast.BlockingClient, servers: str, topic: str, tmp_path: Path
) -> tuple[Path, Places]:
    """Two topics in several batches, some of them compacted: with files that are replaced and still there."""
    directory, names = tmp_path / "archive", [topic, f"{topic}-other"]
    for name in names:
        broker.create_topic(name, partitions=2)
    for start in (0, 20, 40):
        for name in names:
            broker.publish_many(name, [f"{name} {number}" for number in range(start, start + 20)])
        pipelines.archive(spark, names, to=str(directory), servers=servers, compact_files=2 if start else 8)
    assert ArchiveReader(str(directory)).load().retired, "there are replaced files"
    expected = [
        place
        for name in names
        for place in holdfast.spark.history(name, archive=str(directory), servers=None, spark=spark)
        .select("topic", "partition", "offset")
        .collect()
    ]
    assert len(expected) == 120
    return directory, places(expected)


def test_readers_named_in_the_documentation_find_every_row_once(
    archive: tuple[Path, Places], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, expected = archive
    [example] = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "duckdb" in each]
    monkeypatch.chdir(directory.parent)
    found: dict[str, Any] = {}
    exec(compile(example, "docs/pipelines.md", "exec"), found)
    columns = ["topic", "partition", "offset"]
    assert places(row[:3] for row in found["rows"]) == expected, "DuckDB"
    assert {(len(str(row[3])), int(row[4]) < 24) for row in found["rows"]} == {(10, True)}
    assert places(found["frame"].select(columns).rows()) == expected, "Polars"
    assert places(found["table"][columns].itertuples(index=False)) == expected, "pandas"
    assert places(spark.read.parquet(str(directory)).select(*columns).collect()) == expected, "Spark"
    # Other ways to name it find no row twice.
    everything = f"{directory}/**/*.parquet"
    rows = duckdb.execute(f"""SELECT topic, "partition", "offset" FROM '{everything}'""").fetchall()
    assert places(rows) == expected
    assert places(pl.scan_parquet(everything).select(columns).collect().rows()) == expected
    hive = pl.scan_parquet(f"{directory}/topic=*/**/*.parquet", hive_partitioning=True)
    assert {"date", "hour"} <= set(hive.collect_schema().names())
    assert places(hive.select(columns).collect().rows()) == expected
    table = ds.dataset(directory).to_table(columns)
    assert places(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected
    for name in {topic for topic, _, _ in expected}:
        one = pd.read_parquet(directory / f"topic={name}")
        assert {"date", "hour"} <= set(one.columns)
        assert places(one[columns].itertuples(index=False)) == [place for place in expected if place[0] == name]

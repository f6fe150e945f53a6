"""What docs/spark.md, the README and the example tell people to type, typed."""

from __future__ import annotations

import re
import runpy
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.client import BlockingClient

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "spark.md").read_text("utf-8")


def run(script: str, servers: str) -> None:
    code = compile(script.replace("127.0.0.1:8090", servers), "docs/spark.md", "exec")
    exec(code, {"__name__": "__main__"})


def test_examples_of_the_documentation_run_one_after_the_other(
    spark: SparkSession,
    servers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL):
        run(example.replace('"orders-', f'"{tmp_path}/orders-'), servers)
    for example in re.findall(r"```py\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL):
        run(example, servers)
    printed = capsys.readouterr().out
    assert "count(1)=1000, max(offset)=999" in printed
    assert "sum(count)=499500" in printed


@pytest.mark.parametrize(
    ("example", "told"),
    [
        ("spark_orders.py", "('cake', 3000), ('coffee', 3000), ('tea', 3000)"),
        pytest.param(
            "spark_alarms.py",
            "198 alarms of 198 hot readings, each once\n['m0', 'm1', 'm2', 'm3', 'm4', 'm5', 'm6']",
            marks=pytest.mark.night,
        ),
    ],
)
def test_example_runs(
    example: str,
    told: str,
    spark: SparkSession,
    servers: str,
    broker: BlockingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setattr(sys, "argv", [example, servers])
    topics = {each.topic for each in broker.topics()}
    runpy.run_path(str(ROOT / "examples" / example))
    assert told in capsys.readouterr().out
    assert list(directory.iterdir()) == []
    assert {each.topic for each in broker.topics()} == topics, "the next run would count them, too"

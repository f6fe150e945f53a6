"""What docs/cluster.md tells people to type and to test with, typed and tested."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from holdfast.node import config
from holdfast.testing import LocalCluster
from tests.docs.console import DOCS, check_cluster_tour

CLUSTER = (DOCS / "cluster.md").read_text("utf-8")


def test_tour_prints_what_it_shows() -> None:
    assert check_cluster_tour(CLUSTER, "runs in CI") >= 7


def test_fixture_for_ones_own_tests_works(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", CLUSTER, re.DOTALL)
    (tmp_path / "test_orders.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_settings_of_a_real_machine_are_good_ones(tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(.*?)```", CLUSTER, re.DOTALL)
    (tmp_path / "holdfast.toml").write_text(example)
    loaded = config.load(tmp_path / "holdfast.toml", {}, {})
    assert {name: getattr(loaded, name) for name in tomllib.loads(example)} == tomllib.loads(example)


def test_every_method_is_documented() -> None:
    # `open` and `close` are what the block does, and `spawn` is for those who watch processes themselves.
    methods = {name for name in vars(LocalCluster) if not name.startswith("_")} - {
        "open",
        "close",
        "spawn",
        "base_port",
    }
    assert [method for method in methods if not re.search(rf"`[^`]*\b{method}\b", CLUSTER)] == []

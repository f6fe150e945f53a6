"""What docs/cluster.md tells people to type and to test with, typed and tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from testkit.commands import environment

from holdfast.node import config
from holdfast.testing import LocalCluster

CLUSTER = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
_STEP = re.compile(
    r"<!-- the leader of orders is (killed) here -->|<!-- runs in CI -->\n```console\n(.*?)```", re.DOTALL
)
_HTTP = re.compile(r"127\.0\.0\.1:809([0-2])")


def test_tour_prints_what_it_shows() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with LocalCluster(nodes=3) as cluster:
        env = environment(PATH=path)
        ran = 0
        for step in _STEP.finditer(CLUSTER):
            if step[1]:
                cluster.kill(cluster.leader("orders"))
                continue
            block = _HTTP.sub(lambda port: cluster.http_addresses[int(port[1])], step[2])
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
                if command.startswith("export "):
                    name, _, value = command.removeprefix("export ").partition("=")
                    env[name] = value
                    continue
                if "curl" in command:  # to whom it asks may be the one that was killed
                    command = _any_living(command, cluster)
                done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, f"{command}: {done.stderr}"
                assert not shown or done.stdout == shown, command
                assert done.stdout
                ran += 1
    assert ran >= 7


def _any_living(command: str, cluster: LocalCluster) -> str:
    for node in cluster.nodes:
        if not node.is_running:
            command = command.replace(node.http, next(other.http for other in cluster.nodes if other.is_running))
    return command


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

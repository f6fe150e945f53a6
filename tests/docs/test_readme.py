"""What the README tells a newcomer to type, typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess

from holdfast.backends.postgres.server import programs
from holdfast.testing import LocalCluster


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


README = Path(__file__).parents[2] / "README.md"
DEFAULT_HTTP = re.compile(r"(localhost|127\.0\.0\.1):8090")
CLUSTER_HTTP = re.compile(r"127\.0\.0\.1:809([0-2])")
CLUSTER_STEP = re.compile(
    r"<!-- the leader of orders is (killed) here -->|<!-- runs in CI with three nodes -->\n```console\n(.*?)```",
    re.DOTALL,
)


def console_blocks() -> list[list[tuple[str, list[str]]]]:
    """Commands and what they print, of the blocks that are marked to run."""
    blocks = re.findall(r"<!-- runs in CI -->\n```console\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    return [commands_of(block) for block in blocks]


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    commands: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def http_of(broker: BrokerProcess) -> str:
    return f"{broker.http_address[0]}:{broker.http_address[1]}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README talks to the broker with curl")
def test_commands_of_the_readme_print_what_it_shows(broker: BrokerProcess) -> None:
    blocks = console_blocks()
    assert len(blocks) >= 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOLDFAST_SERVER": http_of(broker)}
    for command, shown in [pair for block in blocks for pair in block]:
        typed = DEFAULT_HTTP.sub(http_of(broker), command)
        ran = subprocess.run(["bash", "-c", typed], env=environment, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        if shown:
            assert ran.stdout.splitlines() == shown, command


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Not as deep as a test's own directory: a socket's path may have some hundred characters."""
    with tempfile.TemporaryDirectory(prefix="readme-") as path:
        yield Path(path)


def test_database_of_the_readme_shows_its_messages(short_path: Path) -> None:
    """Its broker, its publish, and its query, with the `psql` that comes with the server."""
    [block] = re.findall(
        r"<!-- runs in CI with a database -->\n```console\n(.*?)```", README.read_text("utf-8"), re.DOTALL
    )
    (serve, _), *commands = commands_of(block)
    with BrokerProcess(short_path / "holdfast-data", *serve.split()[2:]) as broker:
        newest = programs()[max(programs())]
        path = f"{Path(sys.executable).parent}{os.pathsep}{newest}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HOLDFAST_SERVER": http_of(broker)}
        for command, shown in commands:
            ran = subprocess.run(
                ["bash", "-c", command], cwd=short_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert ran.returncode == 0, f"{command}: {ran.stderr}"
            assert ran.stdout.splitlines() == shown, command
        broker.terminate()


def test_python_of_the_readme_prints_an_order(broker: BrokerProcess) -> None:
    [program, _] = python_blocks()
    typed = DEFAULT_HTTP.sub(http_of(broker), program)
    ran = subprocess.run([sys.executable, "-c", typed], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, '0 0 {"total":42}\n'), ran.stderr


def test_three_nodes_do_what_the_readme_shows_also_without_their_leader() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran: list[str] = []
    ran_before_kill = 0
    with LocalCluster(nodes=3) as cluster:
        environment = {**os.environ, "PATH": path}
        for step in CLUSTER_STEP.finditer(README.read_text("utf-8")):
            if step[1]:
                cluster.kill(cluster.leader("orders"))
                ran_before_kill = len(ran)
                continue
            block = CLUSTER_HTTP.sub(lambda port: cluster.http_addresses[int(port[1])], step[2])
            for command, shown in commands_of(block):
                if command.startswith("export "):
                    name, _, value = command.removeprefix("export ").partition("=")
                    environment[name] = value
                    continue
                done = subprocess.run(
                    ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60
                )
                assert done.returncode == 0, f"{command}: {done.stderr}"
                assert not shown or done.stdout.splitlines() == shown, command
                assert done.stdout
                ran.append(command)
    assert 0 < ran_before_kill < len(ran)


def test_cluster_for_ones_own_tests_outlives_its_leader() -> None:
    [_, program] = python_blocks()
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout) == (0, "['one', 'two']\n"), ran.stderr

"""What the README tells a newcomer to type, typed."""

from __future__ import annotations

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
from tests.docs.console import DOCS, check_block, check_cluster_tour, commands_of, console_blocks

README = (DOCS.parent / "README.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README talks to the broker with curl")
def test_commands_and_python_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    blocks = console_blocks(README)
    assert len(blocks) >= 2
    with BrokerProcess(tmp_path / "data") as broker:
        for block in blocks:
            check_block(block, broker, shows_all=False)
    with BrokerProcess(tmp_path / "other") as broker:
        typed = PROGRAMS[0].replace("127.0.0.1:8090", broker.server).replace("localhost:8090", broker.server)
        ran = subprocess.run([sys.executable, "-c", typed], capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout) == (0, '0 0 {"total":42}\n'), ran.stderr


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Not as deep as a test's own directory: a socket's path may have some hundred characters."""
    with tempfile.TemporaryDirectory(prefix="readme-") as path:
        yield Path(path)


def test_database_of_the_readme_shows_its_messages(short_path: Path) -> None:
    """Its broker, its publish, and its query, with the `psql` that comes with the server."""
    [block] = console_blocks(README, "runs in CI with a database")
    serve, rest = block.split("\n", 1)
    [(started, _)] = commands_of(serve)
    with BrokerProcess(short_path / "holdfast-data", *started.split()[2:]) as broker:
        check_block(rest, broker, cwd=short_path, path=str(programs()[max(programs())]))
        broker.terminate()


def test_three_nodes_do_what_the_readme_shows_also_without_their_leader() -> None:
    check_cluster_tour(README, "runs in CI with three nodes")


def test_cluster_for_ones_own_tests_outlives_its_leader() -> None:
    [_, program] = PROGRAMS
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout) == (0, "['one', 'two']\n"), ran.stderr

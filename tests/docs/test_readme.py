"""What the README tells a newcomer to type, typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


README = Path(__file__).parents[2] / "README.md"
DEFAULT_HTTP = re.compile(r"(localhost|127\.0\.0\.1):8090")


def console_blocks() -> list[list[tuple[str, list[str]]]]:
    """Commands and what they print, of the blocks that are marked to run."""
    blocks = re.findall(r"<!-- runs in CI -->\n```console\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    found = []
    for block in blocks:
        commands: list[tuple[str, list[str]]] = []
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line)
        found.append(commands)
    return found


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


def test_python_of_the_readme_prints_an_order(broker: BrokerProcess) -> None:
    [program] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    typed = DEFAULT_HTTP.sub(http_of(broker), program)
    ran = subprocess.run([sys.executable, "-c", typed], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, '0 0 {"total":42}\n'), ran.stderr

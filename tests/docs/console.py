"""Commands that documents show, typed in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from testkit.commands import environment
from testkit.processes import BrokerProcess

from holdfast.testing import LocalCluster

DOCS = Path(__file__).parents[2] / "docs"
_DEFAULT_HTTP = re.compile(r"(localhost|127\.0\.0\.1):8090")
_CLUSTER_HTTP = re.compile(r"127\.0\.0\.1:809([0-2])")


def console_blocks(document: str, mark: str = "runs in CI") -> list[str]:
    return re.findall(rf"<!-- {mark} -->\n```console\n(.*?)```", document, re.DOTALL)


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """Commands and the lines that they print."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def type_in(command: str, variables: Mapping[str, str], *, cwd: Path | None = None, path: str = "") -> list[str]:
    """The lines that a command prints in a shell that finds `holdfast`."""
    found_in = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [path]), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=environment(PATH=found_in, **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.splitlines()


def check_block(
    block: str, broker: BrokerProcess, *, shows_all: bool = True, cwd: Path | None = None, path: str = ""
) -> None:
    """Type the commands of a block. Where it does not show all, a command without output may print something."""
    for command, shown in commands_of(block):
        typed = _DEFAULT_HTTP.sub(broker.server, command)
        printed = type_in(typed, {"HOLDFAST_SERVER": broker.server}, cwd=cwd, path=path)
        assert printed == shown or not (shown or shows_all), command


def check_cluster_tour(document: str, mark: str) -> int:
    """Type the commands of all blocks with three nodes, and kill a leader where the document says so; how many ran."""
    step = re.compile(
        rf"<!-- the leader of orders is (killed) here -->|<!-- {mark} -->\n```console\n(.*?)```", re.DOTALL
    )
    ran = ran_before_kill = 0
    variables: dict[str, str] = {}
    with LocalCluster(nodes=3) as cluster:
        for killed, block in step.findall(document):
            if killed:
                cluster.kill(cluster.leader("orders"))
                ran_before_kill = ran
                continue
            block = _CLUSTER_HTTP.sub(lambda port: cluster.http_addresses[int(port[1])], block)
            for command, shown in commands_of(block):
                if command.startswith("export "):
                    name, _, value = command.removeprefix("export ").partition("=")
                    variables[name] = value
                    continue
                printed = type_in(_at_a_living_node(command, cluster) if "curl" in command else command, variables)
                assert printed and (not shown or printed == shown), command
                ran += 1
    assert 0 < ran_before_kill < ran
    return ran


def _at_a_living_node(command: str, cluster: LocalCluster) -> str:
    living = next(node for node in cluster.nodes if node.is_running)
    for node in cluster.nodes:
        if not node.is_running:
            command = command.replace(node.http, living.http)
    return command

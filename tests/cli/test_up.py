"""`holdfast up`: a cluster in one command that stays up, says how it is, and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import socket
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from testkit.commands import Running, holdfast
from testkit.processes import is_alive
from testkit.wait import wait_until

from holdfast.client import connect_blocking
from holdfast.testing import ports as port_scheme


@pytest.fixture
def base_port() -> Iterator[int]:
    chosen, mark = port_scheme.choose(3)
    with mark:
        yield chosen


class Up:
    """A running `holdfast up` and what its ready file says."""

    def __init__(self, running: Running, ready_file: Path) -> None:
        self.running = running
        self.ready_file = ready_file

    def nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = json.loads(self.ready_file.read_bytes())["nodes"]
        return nodes

    def line_with(self, *words: str) -> str:
        """The next line that has all these words; the test's own timeout is the deadline."""
        while line := self.running.line().decode():
            if all(word in line for word in words):
                return line
        raise AssertionError(f"it ended without saying {words}: {self.running.ended()}")


@contextmanager
def up(directory: Path, base_port: int | None, *options: str, nodes: int = 3) -> Iterator[Up]:
    ready_file = directory / "ready.json"
    places = ["--data", str(directory / "cluster"), "--ready-file", str(ready_file), "--nodes", str(nodes)]
    if base_port is not None:
        places += ["--base-port", str(base_port)]
    with Running("up", *places, *options) as running:
        process = running.process
        wait_until(lambda: ready_file.exists() or process.poll() is not None, "it is ready")
        assert process.poll() is None, running.ended()
        yield Up(running, ready_file)


def test_cluster_serves_at_once_keeps_its_settings_and_goes_on_where_it_was(tmp_path: Path, base_port: int) -> None:
    options = ("--initial-leader", "n2", "--shrink-after-ms", "5000", "--heartbeat-ms", "200")
    with up(tmp_path, base_port, *options) as cluster:
        nodes = cluster.nodes()
        assert [list(node) for node in nodes] == [["id", "pid", "text", "http", "peer"]] * 3
        assert [node["id"] for node in nodes] == ["n1", "n2", "n3"]
        assert nodes[1]["text"] == f"127.0.0.1:{base_port + 1}"
        assert nodes[1]["http"] == f"127.0.0.1:{base_port + 11}"
        assert nodes[1]["peer"] == f"127.0.0.1:{base_port + 21}"
        checked = holdfast("check", "--json", "--server", nodes[0]["http"]).json
        assert (checked["cluster"]["leader"], checked["cluster"]["shrink_after_ms"]) == ("n2", 5000)
        with connect_blocking(nodes[1]["http"]) as broker:
            broker.publish("orders", b"kept")
        cluster.line_with("up", "leads 1 of 1")
        ended = cluster.running.end(signal.SIGTERM)
    assert ended.code == 0, ended
    assert not cluster.ready_file.exists()
    assert not any(is_alive(node["pid"]) for node in nodes)
    for node in nodes:
        kept = tomllib.loads((tmp_path / "cluster" / f"{node['id']}.toml").read_text())
        assert (kept["initial_leader"], kept["shrink_after_ms"], kept["heartbeat_ms"]) == ("n2", 5000, 200)

    with up(tmp_path, None) as cluster:
        assert [node["http"] for node in cluster.nodes()] == [node["http"] for node in nodes]
        with connect_blocking(nodes[2]["http"]) as broker:
            assert [message.value for message in broker.read("orders")] == [b"kept"]
        assert_dead_node_comes_back(cluster)
        nodes = cluster.nodes()
        cluster.running.process.send_signal(signal.SIGINT)
        cluster.line_with("stopping", "a second Ctrl-C means now")
        ended = cluster.running.end(signal.SIGINT)
    assert ended.code == 1 and "Traceback" not in ended.err, "a second signal ends it at once, and not in order"
    assert not any(is_alive(node["pid"]) for node in nodes)


def assert_dead_node_comes_back(cluster: Up) -> None:
    before = cluster.nodes()
    os.kill(before[0]["pid"], signal.SIGKILL)
    cluster.line_with("n1", "was killed (SIGKILL)", "starts again")
    wait_until(lambda: cluster.nodes()[0]["pid"] != before[0]["pid"], "the ready file has the new process")
    assert [node["pid"] for node in cluster.nodes()[1:]] == [node["pid"] for node in before[1:]]
    cluster.line_with("n1 up", f"process {cluster.nodes()[0]['pid']}")


def test_node_that_was_removed_stays_out_and_the_others_start_without_it(tmp_path: Path, base_port: int) -> None:
    with up(tmp_path, base_port) as cluster:
        nodes = cluster.nodes()
        servers = ",".join(node["http"] for node in nodes[1:])
        removed = holdfast("cluster", "remove", "n1", "--yes", "--server", servers)
        assert removed.code == 0, removed
        cluster.line_with("n1 removed")
        wait_until(lambda: [node["id"] for node in cluster.nodes()] == ["n2", "n3"], "the ready file has the others")
        os.kill(nodes[0]["pid"], signal.SIGKILL)
        wait_until(lambda: not is_alive(nodes[0]["pid"]), "it is gone")
        ended = cluster.running.end(signal.SIGINT)
    assert ended.code == 0 and "starts again" not in ended.text, ended

    with up(tmp_path, None) as cluster:
        assert [node["http"] for node in cluster.nodes()] == [node["http"] for node in nodes[1:]]
        cluster.line_with("n1 removed")
        assert cluster.running.end(signal.SIGTERM).code == 0


def test_without_restart_a_dead_node_stays_away(tmp_path: Path, base_port: int) -> None:
    with up(tmp_path, base_port, "--no-restart", "--json", nodes=1) as cluster:
        started = json.loads(cluster.line_with('"up"'))
        assert started["nodes"][0]["http"] == f"127.0.0.1:{base_port + 10}"
        os.kill(cluster.nodes()[0]["pid"], signal.SIGKILL)
        ended = cluster.running.ended()
    assert ended.code == 1 and "no node is left" in ended.err
    assert any("it stays away" in line.get("event", "") for line in ended.json_lines)
    assert not cluster.ready_file.exists()


def test_killed_supervisor_leaves_no_node_behind_and_its_cluster_keeps_its_size(tmp_path: Path, base_port: int) -> None:
    with up(tmp_path, base_port, "--quiet", nodes=1) as cluster:
        pid = cluster.nodes()[0]["pid"]
        assert cluster.running.end(signal.SIGKILL).out == b"", "it was told to be quiet"
    wait_until(lambda: not is_alive(pid), "the node is gone")
    ended = holdfast("up", "--data", str(tmp_path / "cluster"), "--nodes", "3")
    assert ended.code == 1 and "holds a cluster of 1 nodes, not 3" in ended.err


def test_port_in_use_is_named_with_what_to_do(tmp_path: Path, base_port: int) -> None:
    with socket.create_server(("127.0.0.1", base_port + 12)):
        ended = holdfast("up", "--data", str(tmp_path / "cluster"), "--base-port", str(base_port))
    assert ended.code == 1
    assert f"n3 http {base_port + 12}" in ended.err and "give another base port" in ended.err


@pytest.mark.parametrize(
    ("options", "environment", "why"),
    [
        (("--initial-leader", "n4"), {}, "not a node of this cluster; they are n1, n2, n3"),
        (("--election-timeout-ms", "150:500"), {}, "two heartbeats of 100 ms"),
        ((), {"HOLDFAST_ELECTION_TIMEOUT_MS": "nonsense"}, "election_timeout_ms is 'nonsense'"),
        ((), {"HOLDFAST_SHRINK_AFTER_MS": "1"}, "in the environment: shrink_after_ms is '1'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_a_node_starts(
    tmp_path: Path, options: tuple[str, ...], environment: dict[str, str], why: str
) -> None:
    ended = holdfast("up", "--data", str(tmp_path / "cluster"), *options, env=environment)
    assert ended.code == 1 and why in ended.err, ended
    assert not (tmp_path / "cluster").exists()


def test_even_number_of_nodes_is_warned_about(tmp_path: Path, base_port: int) -> None:
    with socket.create_server(("127.0.0.1", base_port)):
        ended = holdfast("up", "--nodes", "4", "--data", str(tmp_path / "four"), "--base-port", str(base_port))
    assert "4 nodes gain nothing over 3" in ended.err and "1 of them may fail" in ended.err

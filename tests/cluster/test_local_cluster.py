"""`LocalCluster`, which people test their own code with: it does what it says, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.wait import wait_until

from holdfast.testing import ClusterFailed, LocalCluster
from holdfast.testing import ports as port_scheme


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, settings={"log_level": "debug", "retention_check_ms": 60_000}) as made:
        yield made


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and waits for its parent to notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_publishes_go_on_while_nodes_are_killed_stopped_paused_and_started(cluster: LocalCluster) -> None:
    with cluster.connect_blocking() as broker:
        broker.publish("orders", b"1")
        first = cluster.leader("orders")
        cluster.kill(first)
        assert not cluster.node(first).is_running and cluster.node(first).exit_code == -signal.SIGKILL
        broker.publish("orders", b"2")
        second = cluster.wait_for_leader("orders", other_than=first)
        assert second != first
        cluster.start(first)

        cluster.wait_until_ready()
        cluster.pause(second)
        assert cluster.node(second).is_running and cluster.node(second).is_paused
        third = cluster.wait_for_leader("orders", other_than=second)
        with cluster.connect_blocking(third) as through:
            through.publish("orders", b"3")
        cluster.resume(second)

        cluster.restart(third)
        cluster.wait_until_ready()
        broker.publish("orders", b"4")
        assert [message.value for message in broker.read("orders")] == [b"1", b"2", b"3", b"4"]


def test_nodes_are_what_they_say(cluster: LocalCluster) -> None:
    cluster.wait_until_ready()
    assert [node.id for node in cluster.nodes] == ["n1", "n2", "n3"]
    assert cluster.url == "holdfast://" + ",".join(cluster.http_addresses)
    for index, node in enumerate(cluster.nodes):
        assert cluster.node(index) is cluster.node(node.id) is node
        assert node.text == cluster.text_addresses[index]
        assert max(port_scheme.of_node(cluster.base_port, index)) < 32_768
        with cluster.connect_blocking(node) as broker:
            told = broker.info()
        assert told.node == node.id
        assert told.addresses == {"text": node.text, "http": node.http, "peer": node.peer}
        assert node.pid is not None and is_alive(node.pid)
        assert cluster.log_of(node), "with log_level debug it says something"


def test_the_logs_say_who_asked_for_votes_who_gave_them_and_who_leads(cluster: LocalCluster) -> None:
    before = cluster.control_leader()
    cluster.kill(before)
    leader = cluster.control_leader(other_than=before)
    other = next(node for node in cluster.nodes if node.id not in (before, leader))
    with cluster.connect_blocking(leader) as broker:
        term = f"term={broker.cluster().term}"
    wait_until(lambda: says(cluster.log_of(leader), "asks_for_votes", term), "who asks for votes")
    wait_until(lambda: says(cluster.log_of(other), "voted", f"candidate={leader}", term), "who votes")
    wait_until(
        lambda: all(says(cluster.log_of(node), "new_leader", f"leader={leader}", term) for node in (leader, other)),
        "who leads",
    )
    cluster.start(before)
    cluster.wait_until_ready()


def says(log: str, event: str, *facts: str) -> bool:
    """Whether some line of a log tells of an event with these facts."""
    return any({event, *facts} <= set(line.split()) for line in log.splitlines())


async def test_works_beside_async_code(cluster: LocalCluster) -> None:
    async with cluster.connect() as broker:
        await broker.publish("async", b"1")
        leader = await asyncio.to_thread(cluster.leader, "async")
        await asyncio.to_thread(cluster.kill, leader)
        await broker.publish("async", b"2")
        # Started in a thread that may end: the node must not end with it.
        await asyncio.to_thread(cluster.start, leader)
        assert [message.value for message in await broker.read("async")] == [b"1", b"2"]


def test_node_outlives_the_thread_that_started_it(cluster: LocalCluster) -> None:
    async def restart() -> None:
        await asyncio.to_thread(cluster.restart, "n1")

    asyncio.run(restart())  # ends its threads
    cluster.wait_until_ready()
    assert cluster.node("n1").is_running


def test_what_is_asked_for_in_vain_says_why(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterFailed, match=r"there is no node n9; there are n1, n2, n3"):
        cluster.kill("n9")
    with pytest.raises(ClusterFailed, match=r"n1 runs already"):
        cluster.start("n1")
    with pytest.raises(
        ClusterFailed, match=r"missing/0 had no leader within 0.1 s.*topic_not_found(.|\n)*n3.log ends with"
    ):
        cluster.wait_for_leader("missing", timeout_s=0.1)


def test_data_and_ports_are_kept_where_a_directory_is_given(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, data=tmp_path / "kept") as cluster, cluster.connect_blocking() as broker:
        broker.publish("orders", b"1")
        before = cluster.url
    with LocalCluster(nodes=1, data=tmp_path / "kept") as cluster, cluster.connect_blocking() as broker:
        assert cluster.url == before
        assert [message.value for message in broker.read("orders")] == [b"1"]
    with pytest.raises(ClusterFailed, match="holds a cluster of 1 nodes, not 3"):
        LocalCluster(nodes=3, data=tmp_path / "kept").open()


def test_node_that_cannot_start_is_shown_with_its_log() -> None:
    with pytest.raises(ClusterFailed, match=r"n1 ended with code 1 while it started\n(.|\n)*no setting nonsense"):
        LocalCluster(nodes=1, settings={"nonsense": 1}).open()


def test_ports_in_use_are_named() -> None:
    base_port, mark = port_scheme.choose(3)
    with mark, socket.create_server(("127.0.0.1", base_port + 11)):
        with pytest.raises(ClusterFailed, match=f"ports are in use: n2 http {base_port + 11}; end what uses them"):
            LocalCluster(nodes=3, base_port=base_port).open()
        assert port_scheme.in_use(base_port, [0]) == []


def test_clusters_started_together_choose_different_ports() -> None:
    chosen = [port_scheme.choose(3) for _ in range(20)]
    assert len({base_port for base_port, _ in chosen}) == 20
    for _, mark in chosen:
        mark.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's leash")
def test_killed_test_run_leaves_no_process_and_no_file() -> None:
    program = (
        "from holdfast.testing import LocalCluster\n"
        "with LocalCluster(nodes=1) as cluster:\n"
        "    print(cluster.nodes[0].pid, cluster.data, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as testing:
        assert testing.stdout is not None
        pid_text, data = testing.stdout.readline().split()
        assert is_alive(int(pid_text)) and Path(data).is_dir()
        os.kill(testing.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(int(pid_text)), "the node is gone")
    wait_until(lambda: not Path(data).exists(), "its files are gone")


def test_single_port_is_given_to_nobody_else_while_its_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = port_scheme.free_port()
    with socket.create_server((port_scheme.HOST, ours)):
        pass  # it has ended, and will be started again
    asks_for_ours_only = (
        "from holdfast.testing import ports\n"
        f"ports._SINGLE = range({ours}, {ours + 1})\n"
        "try: print(ports.free_port())\n"
        "except ports.ClusterFailed as error: print(error)\n"
    )
    another = subprocess.run([sys.executable, "-c", asks_for_ours_only], capture_output=True, text=True, check=True)
    assert another.stdout.startswith("found no free port")
    monkeypatch.setattr(port_scheme, "_SINGLE", range(ours, ours + 1))
    with pytest.raises(ClusterFailed, match="no free port"):
        port_scheme.free_port()

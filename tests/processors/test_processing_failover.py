"""Three brokers as users run them: the one that processes is killed, stopped or left to leave in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster_members import NODES, Calls
from testkit.processes import BrokerProcess
from testkit.wait import wait_until

from holdfast.broker.processing import PROCESSOR_CURSOR
from holdfast.testing.ports import free_port

COUNT = 200
BUSY_MS = 15


class Brokers:
    """Three nodes over HTTP; `orders` has one partition, so one of them processes it."""

    def __init__(self, nodes: dict[str, BrokerProcess]) -> None:
        self.nodes = nodes
        # Process ids of those that do not run at the moment, and would not answer.
        self.stopped: set[int] = set()

    def running(self) -> BrokerProcess:
        """One that answers."""
        return next(node for node in self.nodes.values() if node.is_running and node.pid not in self.stopped)

    def leader(self, topic: str = "orders") -> str | None:
        (partition,) = self.running().json("GET", f"/v1/topics/{topic}")["partitions"]
        return partition["leader"]  # type: ignore[no-any-return]

    def processed(self) -> int:
        """Where the processor's cursor stands."""
        cursors: list[dict[str, Any]] = self.running().json("GET", "/v1/cursors")["cursors"]
        found = [cursor for cursor in cursors if (cursor["topic"], cursor["name"]) == ("orders", PROCESSOR_CURSOR)]
        return int(found[0]["partitions"][0]["offset"]) if found else 0

    def publish(self, first: int, last: int) -> None:
        values = [{"value": f"v{number}", "key": str(BUSY_MS)} for number in range(first, last)]
        self.running().json("POST", "/v1/topics/orders/messages", {"messages": values})


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    path = tmp_path / "calls"
    path.touch()
    return Calls(path)


@pytest.fixture
def brokers(tmp_path: Path, calls: Calls) -> Iterator[Brokers]:
    ports = {node: free_port() for node in NODES}
    peers = ",".join(f"{node}=127.0.0.1:{port}" for node, port in ports.items())
    nodes = {
        node: BrokerProcess(
            tmp_path / node,
            *("--node", node, "--peer", f"127.0.0.1:{ports[node]}", "--peers", peers),
            *("--processor", "sample_functions:counted", "--processor-workers", "2"),
            environment={"CALLS_FILE": str(calls.path)},
        )
        for node in NODES
    }
    with ExitStack() as undo:
        for node in nodes.values():
            undo.callback(node.kill)
        # A new cluster begins when all of them are there: none is ready before the last one is started.
        with ThreadPoolExecutor() as side_by_side:
            list(side_by_side.map(BrokerProcess.start, nodes.values()))
        yield Brokers(nodes)


def kill(node: BrokerProcess) -> None:
    node.kill()


def leave(node: BrokerProcess) -> None:
    node.terminate(wait=False)
    wait_until(lambda: not node.is_running, "a node that leaves is gone")


@pytest.mark.parametrize("end", [kill, leave])
def test_every_message_comes_out_once_and_in_order_when_the_node_that_processes_it_is_gone(
    end: Callable[[BrokerProcess], None], brokers: Brokers, calls: Calls
) -> None:
    brokers.publish(0, COUNT)
    wait_until(lambda: brokers.processed() > COUNT / 4, "some of it is processed")
    leader = brokers.leader()
    assert leader is not None
    end(brokers.nodes[leader])
    assert len(calls.each()) < COUNT, "too late: nothing is left to be processed elsewhere"
    brokers.publish(COUNT, COUNT + 20)
    check(brokers, calls, COUNT + 20)
    brokers.nodes[leader].kill()
    brokers.nodes[leader].restart()
    brokers.publish(COUNT + 20, COUNT + 40)
    check(brokers, calls, COUNT + 40)


def test_a_node_that_was_stopped_while_another_took_over_adds_nothing_when_it_wakes(
    brokers: Brokers, calls: Calls
) -> None:
    brokers.publish(0, COUNT)
    wait_until(lambda: brokers.processed() > COUNT / 4, "some of it is processed")
    leader = brokers.leader()
    assert leader is not None
    paused = brokers.nodes[leader]
    os.kill(paused.pid, signal.SIGSTOP)
    brokers.stopped.add(paused.pid)
    try:
        check(brokers, calls, COUNT)
    finally:
        os.kill(paused.pid, signal.SIGCONT)
        brokers.stopped.clear()
    time.sleep(1.0)
    brokers.publish(COUNT, COUNT + 20)
    check(brokers, calls, COUNT + 20)


def check(brokers: Brokers, calls: Calls, count: int) -> None:
    wait_until(lambda: brokers.processed() >= count, f"{count} messages are processed", 40)
    outputs = brokers.running().stored_values("orders.processed")
    assert outputs == [b"V%d" % number for number in range(count)]
    each = calls.each()
    assert set(each) == {(0, offset) for offset in range(count)}
    # What the last leader had in its workers, and perhaps what it had stored and nobody had heard of.
    again = sum(each.values()) - count
    assert again <= 3 * 16, f"{again} messages were processed again"

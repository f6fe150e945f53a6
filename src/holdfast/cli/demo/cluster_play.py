"""The play with a cluster: publishers and readers at every node, and a leader that is killed and comes back.

Everybody knows all nodes and begins with another one, so the death of the leader takes a publisher's and a reader's
node away, and the partition's leader from all of them. One reader has a name; it begins at the leader, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.cli.demo.cluster_score import ClusterScore, Reader
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Client, Message
    from holdfast.testing import LocalCluster

TOPIC: Final = "orders"
NAMED: Final = "auditor"
# Readers that have not caught up by then never will.
_CATCH_UP_S: Final = 30.0
_CLIENT_TIMEOUT_S: Final = 60.0
_NEW_LEADER_S: Final = 30.0


class Plan(NamedTuple):
    """What happens when, in seconds from the first message."""

    seconds: float
    rate: float
    kill_after_s: float
    back_after_s: float


async def perform(cluster: LocalCluster, plan: Plan, score: ClusterScore, tell: Callable[[str], None]) -> None:
    """The whole play. A plain kill, or a terminal that closes, ends it in order."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await ClusterPlay(cluster, plan, score, tell).run()
    except ExceptionGroup as failures:
        # The first thing that went wrong is the cause of the others.
        raise failures.exceptions[0] from failures


class ClusterPlay:
    """One performance."""

    def __init__(self, cluster: LocalCluster, plan: Plan, score: ClusterScore, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._plan = plan
        self._score = score
        self._tell = tell
        self._began = 0.0

    async def run(self) -> None:
        self._score.nodes = {node.id: "up" for node in self._cluster.nodes}
        async with contextlib.AsyncExitStack() as stack:
            publishers = [await stack.enter_async_context(self._client(node.id)) for node in self._cluster.nodes]
            await publishers[0].create_topic(TOPIC)
            leader = await asyncio.to_thread(self._cluster.leader, TOPIC)
            self._score.leader = leader
            self._tell(f"{len(publishers)} nodes are up; {leader} leads {TOPIC}")
            places = [(node.id, None) for node in self._cluster.nodes] + [(leader, NAMED)]
            readers = [(await stack.enter_async_context(self._client(node)), node, name) for node, name in places]
            await self._act(publishers, readers)

    def _client(self, first: str) -> Client:
        """Knows all nodes, and tries this one first."""
        from holdfast.client import connect

        addresses = sorted(self._cluster.nodes, key=lambda node: node.id != first)
        return connect(",".join(node.http for node in addresses), timeout_s=_CLIENT_TIMEOUT_S)

    async def _act(self, publishers: list[Client], readers: list[tuple[Client, str, str | None]]) -> None:
        async with asyncio.TaskGroup() as group:
            reading = []
            for client, node, name in readers:
                listening = asyncio.Event()
                reading.append(group.create_task(self._read(client, node, name, listening)))
                await listening.wait()
            self._began = time.monotonic()
            breaking = group.create_task(self._break_it())
            await asyncio.gather(*(self._publish(number, client) for number, client in enumerate(publishers)))
            await breaking
            self._tell(f"{self._score.sent:,} messages sent; waiting for the readers")
            await self._caught_up()
            for task in reading:
                task.cancel()

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    async def _publish(self, publisher: int, client: Client) -> None:
        """Messages leave when they are due, whether those before are answered or not; the client keeps their order."""
        rate = self._plan.rate / len(self._cluster.nodes)
        async with asyncio.TaskGroup() as group:
            for number in range(max(1, round(self._plan.seconds * rate))):
                due_s = (number + publisher / len(self._cluster.nodes)) / rate
                await asyncio.sleep(max(0.0, due_s - self._now_s()))
                group.create_task(self._publish_one(client, publisher, number))

    async def _publish_one(self, client: Client, publisher: int, number: int) -> None:
        sent_s = self._now_s()
        self._score.sent += 1
        line = self._score.ledger.send(TOPIC, publisher, number)
        try:
            await client.publish(TOPIC, b"%d:%d" % (publisher, number))
        except HoldfastError as error:
            # Nobody was promised anything; that it was not taken is part of the verdict.
            self._score.refused += 1
            self._tell(f"message {number} of publisher {publisher + 1} was refused: {error.message}")
        else:
            self._score.acknowledge(publisher, number, sent_s, self._now_s())
            self._score.ledger.acknowledge(line)

    async def _read(self, client: Client, node: str, name: str | None, listening: asyncio.Event) -> None:
        reader = Reader(f"live, from {node}" if name is None else f"{name} (named), from {node}")
        self._score.readers.append(reader)
        async with client.subscribe(TOPIC, name, start="earliest") as messages:
            listening.set()
            async for message in messages:
                publisher, number = _parsed(message)
                reader.take(publisher, number, self._now_s())
                self._score.ledger.receive(TOPIC, publisher, number, broker=node, receiver=reader.name)
                message.ack_soon()

    async def _break_it(self) -> None:
        score, cluster = self._score, self._cluster
        await asyncio.sleep(self._plan.kill_after_s)
        # It may have moved since the start.
        leader = await asyncio.to_thread(cluster.leader, TOPIC)
        pid = cluster.node(leader).pid
        score.leader, score.killed, score.kill_s = None, leader, self._now_s()
        score.nodes[leader] = "killed"
        await asyncio.to_thread(cluster.kill, leader)
        self._tell(f"{leader}, which leads {TOPIC}, is killed (SIGKILL to process {pid})")
        score.leader = await asyncio.to_thread(cluster.wait_for_leader, TOPIC, leader, _NEW_LEADER_S)
        self._tell(f"{score.leader} leads {TOPIC}, {(self._now_s() - score.kill_s) * 1000:.0f} ms after the kill")
        await asyncio.sleep(max(0.0, self._plan.back_after_s - self._now_s()))
        score.nodes[leader] = "starting"
        await asyncio.to_thread(cluster.start, leader)
        score.back_s = self._now_s()
        score.nodes[leader] = "up again"
        self._tell(f"{leader} is back (process {cluster.node(leader).pid})")

    async def _caught_up(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                while self._score.lost:
                    await asyncio.sleep(0.05)


def _parsed(message: Message) -> tuple[int, int]:
    publisher, _, number = message.value.partition(b":")
    return int(publisher), int(number)

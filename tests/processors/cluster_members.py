"""Three nodes in one process, each with a broker, workers and a stage of its own; and who was asked to process what."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.broker.broker import Broker
from holdfast.model.errors import WorldError
from holdfast.model.ids import PartitionId, TopicName
from holdfast.processors.pool import WorkerPool
from holdfast.processors.spec import ProcessorSettings, ProcessorSpec
from holdfast.processors.stage import ProcessingStage
from tests.processors.processor_helpers import ORDERS, Recorder


@dataclass
class Member:
    """One node."""

    node: str
    broker: Broker
    backend: ClusterBackend
    pool: WorkerPool
    stage: ProcessingStage
    log: Recorder


class Cluster:
    """All of them."""

    def __init__(self, nodes: Nodes, members: list[Member]) -> None:
        self._nodes = nodes
        self.members = {member.node: member for member in members}

    @property
    def any(self) -> Member:
        return self.members["n1"]

    async def leader(self, number: int = 0, topic: str = ORDERS) -> Member:
        """The one node that leads a partition, once there is one."""
        return self.members[await self._nodes.leader(topic, number)]

    async def spread_leaders(self, partitions: int) -> dict[int, Member]:
        """The leaders of a topic's partitions, once each node has its share: from then on they stay."""
        leaders: dict[int, Member] = {}

        async def are_spread() -> bool:
            leaders.update({number: await self.leader(number) for number in range(partitions)})
            return len({leader.node for leader in leaders.values()}) == min(partitions, len(self.members))

        await until(are_spread)
        return leaders

    async def keep_leaders(self) -> None:
        """From now on leaders change only when a test says so: nobody hands over to spread the work."""
        for member in self.members.values():
            await member.backend.upkeep.stop()

    async def hand_over(self, number: int = 0, topic: str = ORDERS) -> Member:
        """Let another node lead a partition; returns the one that led."""
        before = await self.leader(number, topic)
        others = [node for node in self.members if node != before.node]
        for attempt in range(20):
            try:
                await before.backend.transfer(PartitionId(TopicName(topic), number), others[attempt % 2])
                break
            except WorldError:
                await asyncio.sleep(0.1)
        assert (await self.leader(number, topic)) is not before
        return before


@asynccontextmanager
async def cluster_on(path: Path, function: str, **settings: int) -> AsyncIterator[Cluster]:
    spec = ProcessorSpec(function=f"sample_functions:{function}")
    async with running(path) as nodes, AsyncExitStack() as undo:

        async def start(node: str) -> Member:
            log, broker = Recorder(), nodes.brokers[node]
            pool = WorkerPool(spec, ProcessorSettings(**{"workers": 2, **settings}), log)
            await pool.start()
            undo.push_async_callback(pool.stop)
            stage = ProcessingStage(broker, pool, handles=lambda name: name.startswith("orders"), log=log)
            await stage.start()
            undo.push_async_callback(stage.stop, 1)
            return Member(node, broker, nodes.backends[node], pool, stage, log)

        yield Cluster(nodes, await asyncio.gather(*map(start, nodes.brokers)))


class Calls:
    """What `sample_functions.counted` has written down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def _lines(self) -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in self.path.read_text().splitlines()]

    def each(self) -> Counter[tuple[int, int]]:
        """How often each message, by partition and offset, was given to a worker."""
        return Counter((partition, offset) for partition, offset, _ in self._lines())

    def workers_of(self, partition: int) -> set[int]:
        return {pid for number, _, pid in self._lines() if number == partition}

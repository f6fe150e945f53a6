"""Three nodes in one event loop: real logs, real links, no processes to wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.broker.broker import Broker
from holdfast.consensus.partner import PairSettings
from holdfast.consensus.timing import DEFAULT_ELECTIONS, ElectionSettings
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import PartitionId, TimestampMs, TopicName
from holdfast.model.limits import SEGMENT_BYTES_DEFAULT
from holdfast.storage.directory import DataDirectory
from holdfast.testing.ports import free_port

PATIENCE_S = 20.0


def now_ms() -> TimestampMs:
    return TimestampMs(time.time_ns() // 1_000_000)


class Nodes:
    """Nodes by name; those that run have a backend and a broker."""

    def __init__(
        self,
        root: Path,
        count: int = 3,
        *,
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        is_pair: bool = False,
        elections: dict[str, ElectionSettings] | None = None,
    ) -> None:
        # By node, where they are not the default ones.
        self.elections = elections or {}
        # By node, how far its clock is ahead of the others'.
        self.ahead_ms: dict[str, int] = {}
        self.segment_bytes = segment_bytes
        self.is_pair = is_pair
        self.root = root
        names = [f"n{number + 1}" for number in range(count)]
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.backends: dict[str, ClusterBackend] = {}
        self.brokers: dict[str, Broker] = {}
        self.failed: list[str] = []
        # What the settings of a node say, where that is not all nodes, and through whom it joins.
        self.peers_of: dict[str, dict[str, str]] = {}
        self.join_of: dict[str, str] = {}

    def add(self, name: str, through: str) -> None:
        """One more node, which joins when it is started."""
        for each in self.addresses:
            self.peers_of.setdefault(each, dict(self.addresses))
        self.addresses[name] = f"127.0.0.1:{free_port()}"
        self.peers_of[name] = {}
        self.join_of[name] = self.addresses[through]

    async def start(self, *names: str) -> None:
        await asyncio.gather(*(self._start(name) for name in names or self.addresses))

    async def _start(self, name: str) -> None:
        host, _, port = self.addresses[name].partition(":")
        directory = DataDirectory.open(self.root / name, node=name, now_ms=now_ms())

        def clock() -> TimestampMs:
            return TimestampMs(now_ms() + self.ahead_ms.get(name, 0))

        backend = ClusterBackend(
            directory,
            sync=parse_sync_policy("group"),
            now_ms=clock,
            segment_bytes=self.segment_bytes,
            listen=(host, int(port)),
            peers=self.peers_of.get(name, self.addresses),
            join=self.join_of.get(name),
            elections=self.elections.get(name, DEFAULT_ELECTIONS),
            pair=PairSettings(heartbeat_s=0.2, founds=name == "n1") if self.is_pair else None,
            on_fatal=lambda error: self.failed.append(name),
        )
        try:
            await backend.start()
        except HoldfastError:
            await backend.neighbours.stop()
            directory.close()
            raise
        self.backends[name] = backend
        self.brokers[name] = Broker(backend, now_ms=clock, steady_ms=now_ms)

    async def stop(self, *names: str) -> None:
        for name in names or list(self.backends):
            del self.brokers[name]
            await self.backends.pop(name).stop()

    async def leader(self, topic: str, number: int = 0) -> str:
        """Who leads a partition, once its reign has begun in earnest."""
        partition = PartitionId(TopicName(topic), number)

        def found() -> str | None:
            return next((name for name, backend in self.backends.items() if backend.reign(partition) is not None), None)

        await until(lambda: found() is not None)
        leader = found()
        assert leader is not None
        return leader

    def another_than(self, *names: str) -> str:
        return next(name for name in self.backends if name not in names)


@asynccontextmanager
async def running(root: Path, *, segment_bytes: int = SEGMENT_BYTES_DEFAULT) -> AsyncIterator[Nodes]:
    nodes = Nodes(root, segment_bytes=segment_bytes)
    await nodes.start()
    try:
        yield nodes
    finally:
        await nodes.stop()

"""Brokers without front ends in this event loop: one over any store, or the nodes of a cluster.

The parts are put together by the product (`holdfast.node.stores`), from the settings that a user has. So a test cannot
build a broker that differs from what `holdfast serve` starts.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.pace import USUAL_PACE, Pace
from holdfast.backends.plain.backend import PlainBackend
from holdfast.broker.backend import Backend
from holdfast.broker.broker import Broker
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import PARTITIONS_MAX
from holdfast.model.messages import BatchPublished
from holdfast.model.topics import TopicConfig
from holdfast.node.config import Config
from holdfast.node.stores import ClusterStore, broker_over, store_for
from holdfast.node.stores import Store as ProductStore
from holdfast.testing.ports import free_port
from holdfast.wire import record_batch
from testkit.batches import values_batch, values_of
from testkit.wait import until

# What takes a node a second takes it a tenth in a test.
QUICK: Final = Pace(upkeep_s=0.1, change_s=0.05, steady_s=0.3, refused_retry_s=0.1)


def now_ms() -> TimestampMs:
    return TimestampMs(time.time_ns() // 1_000_000)


class Clock:
    """Stands still until a test moves it."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def __call__(self) -> TimestampMs:
        return TimestampMs(self.now)


class RunningClock(Clock):
    """The machine's clock, which a test may move as well."""

    def __init__(self, ahead_ms: Callable[[], int] = lambda: 0) -> None:
        self._ahead_ms = ahead_ms
        self._moved_ms = 0

    @property
    def now(self) -> int:
        return now_ms() + self._ahead_ms() + self._moved_ms

    @now.setter
    def now(self, wanted: int) -> None:
        self._moved_ms += wanted - self.now


class Store:
    """Where a test keeps messages: opened, stopped and opened again over the same data; short names for long calls."""

    # Of one topic.
    partitions_max = PARTITIONS_MAX
    # The broker that is asked.
    node = "n1"
    # Whether a batch that is appended is stored by this node, and not by another one.
    leads = True

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.clock = clock

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def restart(self) -> None:
        await self.stop()
        await self.open()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def broker(self) -> Broker:
        raise NotImplementedError

    @property
    def backend(self) -> Backend:
        return self.broker.backend

    def kept(self, value: bytes) -> bytes:
        """A value that this store can keep."""
        return value

    # --- asking it --------------------------------------------------------------------------------

    async def create(self, name: str = "t", partitions: int = 1, **config: Any) -> PartitionId:
        await self.backend.create_topic(TopicName(name), TopicConfig(partitions=partitions, **config))
        return PartitionId(TopicName(name), 0)

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        return self.backend.append(partition, batch)

    async def caught_up(self, partition: PartitionId) -> None:
        """Wait until what was acknowledged is visible here; where messages are stored here, it is already."""

    async def publish(self, partition: PartitionId, *values: bytes, timestamp_ms: int = 1_000) -> int:
        offset = await self.append(partition, values_batch(*values, timestamp_ms=timestamp_ms))
        await self.caught_up(partition)
        return offset

    async def read(self, partition: PartitionId, offset: int = 0, bytes_max: int = 1 << 30) -> list[bytes]:
        await self.caught_up(partition)
        return values_of(await self.backend.read(partition, Offset(offset), bytes_max))

    async def read_all(self, partition: PartitionId) -> dict[int, bytes]:
        """Every message with its offset, read in small pieces."""
        await self.caught_up(partition)
        found: dict[int, bytes] = {}
        offset = self.backend.start_offset(partition)
        while offset < self.backend.end_offset(partition):
            batches = await self.backend.read(partition, offset, 300)
            for batch in batches:
                base = record_batch.header(batch).base_offset
                found |= {base + i: value for i, value in enumerate(values_of([batch]))}
            offset = record_batch.header(batches[-1]).next_offset
        return found

    def cursor(self, topic: str, name: str) -> dict[int, int] | None:
        found = self.backend.cursor(TopicName(topic), CursorName(name))
        return None if found is None else dict(found)

    async def set_cursor(self, topic: str, name: str, positions: dict[int, int]) -> None:
        offsets = {number: Offset(offset) for number, offset in positions.items()}
        await self.backend.set_cursor(TopicName(topic), CursorName(name), offsets)


class OneNode(Store):
    """One broker; `settings` are those of `holdfast serve`, by their names in a settings file."""

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        *,
        steady_ms: Callable[[], int] | None = None,
        delivers_from: Callable[[TopicName], TopicName] = lambda name: name,
        on_fatal: Callable[[Exception], None] = lambda error: None,
        pace: Pace = USUAL_PACE,
        **settings: Any,
    ) -> None:
        super().__init__(path, clock or Clock())
        self.settings = settings
        self.skips: list[str] = []
        self._steady_ms = steady_ms
        self._delivers_from = delivers_from
        self._on_fatal = on_fatal
        self._pace = pace
        self._store: ProductStore | None = None
        self._broker: Broker | None = None

    @property
    def config(self) -> Config:
        return Config(data=str(self.path), **self.settings)

    async def open(self) -> None:
        store = store_for(
            self.config,
            now_ms=self.clock,
            files_max=5 * PARTITIONS_MAX,
            delivers_from=self._delivers_from,
            on_fatal=self._on_fatal,
            pace=self._pace,
        )
        try:
            await store.start()
        except BaseException:
            if isinstance(store, ClusterStore):
                await store.cluster_backend.neighbours.stop()
            raise
        self._store = store
        store.announce({})
        self.use()

    def use(self, *, steady_ms: Callable[[], int] | None = None, **settings: Any) -> None:
        """A new broker over the same store, with other settings of what the broker decides."""
        self.settings |= settings
        self._steady_ms = steady_ms or self._steady_ms
        self._broker = broker_over(
            self.store,
            self.config,
            now_ms=self.clock,
            steady_ms=self._steady_ms,
            delivers_from=self._delivers_from,
            on_skip=self.skips.append,
        )

    async def stop(self) -> None:
        store, self._store, self._broker = self._store, None, None
        if store is not None:
            await store.stop()

    async def kill(self) -> None:
        """As `kill -9`: what the files hold at this moment is all that the next `open` finds."""
        left = self.path.with_name(f"{self.path.name}-left")
        with _unwritten(self.path / "state.sqlite"):
            shutil.copytree(self.path, left)
        await self.stop()
        shutil.rmtree(self.path)
        left.rename(self.path)

    @property
    def store(self) -> ProductStore:
        assert self._store is not None, "open it first"
        return self._store

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "open it first"
        return self._broker

    @property
    def cluster_backend(self) -> ClusterBackend:
        assert isinstance(self.store, ClusterStore), "its messages are elsewhere"
        return self.store.cluster_backend


@contextmanager
def _unwritten(state: Path) -> Iterator[None]:
    """Nobody is in the middle of writing it: a copy made in two moments would be no state that ever was."""
    with closing(sqlite3.connect(state, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


class PlainNode(OneNode):
    """One of a plain pair whose partner never comes."""

    partitions_max = 1

    def __init__(self, path: Path, clock: Clock | None = None, **settings: Any) -> None:
        alone = {"pair": "primary", "plain_partner": "127.0.0.1:9", "heartbeat_ms": 10, "misses": 1}
        super().__init__(path, clock, **{**alone, **settings})

    async def open(self) -> None:
        await super().open()
        await until(lambda: self.plain_backend.pair.takes_publishes, "it goes on without its partner")

    def kept(self, value: bytes) -> bytes:
        """What fits in a line."""
        return value.replace(b"\n", b" ").rstrip(b"\r")

    @property
    def plain_backend(self) -> PlainBackend:
        assert isinstance(self.backend, PlainBackend)
        return self.backend


class Nodes:
    """The nodes of a cluster by name, with real logs and real links; those that run have a backend and a broker."""

    pace = QUICK

    def __init__(
        self, root: Path, count: int = 3, *, is_pair: bool = False, clock: Clock | None = None, **settings: Any
    ) -> None:
        self.root = root
        self.clock = clock
        self.is_pair = is_pair
        # Of all nodes, and of single ones, which win. A new cluster need not wait for an election.
        self.settings = settings if is_pair else {"initial_leader": "n1", **settings}
        self.settings_of: dict[str, dict[str, Any]] = {}
        # By node, how far its clock is ahead of the others'.
        self.ahead_ms: dict[str, int] = {}
        self.addresses = {f"n{number + 1}": f"127.0.0.1:{free_port()}" for number in range(count)}
        self.running: dict[str, OneNode] = {}
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
        node = OneNode(
            self.root / name,
            self.clock or RunningClock(lambda: self.ahead_ms.get(name, 0)),
            steady_ms=now_ms,
            on_fatal=lambda error: self.failed.append(name),
            pace=self.pace,
            **{**self._settings(name), **self.settings_of.get(name, {})},
        )
        await node.open()
        self.running[name] = node
        self.backends[name] = node.cluster_backend
        self.brokers[name] = node.broker

    def _settings(self, name: str) -> dict[str, Any]:
        peers = self.peers_of.get(name, self.addresses)
        found = {
            **self.settings,
            "node": name,
            "peer": self.addresses[name],
            "peers": [f"{node}={address}" for node, address in peers.items()],
            "join": self.join_of.get(name),
        }
        if self.is_pair:
            found |= {"pair": "primary" if name == "n1" else "backup", "heartbeat_ms": 200}
        return found

    async def __aenter__(self) -> Nodes:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, *names: str) -> None:
        for name in names or list(self.running):
            del self.brokers[name], self.backends[name]
            await self.running.pop(name).stop()

    async def leader(self, topic: str, number: int = 0) -> str:
        """Who leads a partition, once its reign has begun in earnest."""
        partition = PartitionId(TopicName(topic), number)

        def found() -> str | None:
            return next((name for name, backend in self.backends.items() if backend.reign(partition) is not None), None)

        await until(lambda: found() is not None, f"somebody leads {partition}")
        leader = found()
        assert leader is not None
        return leader

    def another_than(self, *names: str) -> str:
        return next(name for name in self.backends if name not in names)


def running(root: Path, count: int = 3, **settings: Any) -> Nodes:
    """Nodes that are started and stopped as a context."""
    return Nodes(root, count, **settings)


class ThroughNode(Store):
    """A cluster of three in which n1 leads everything, asked through one of its nodes as a broker asks it."""

    def __init__(self, path: Path, clock: Clock | None = None, *, asked: str, **settings: Any) -> None:
        super().__init__(path, clock or Clock())
        self.node = asked
        self.leads = asked == "n1"
        # Nobody but n1 stands for election in time.
        self.nodes = Nodes(path, clock=self.clock, heartbeat_ms=50, election_timeout_ms="5000:10000", **settings)
        self.nodes.settings_of["n1"] = {"election_timeout_ms": "400:450"}

    @property
    def broker(self) -> Broker:
        return self.nodes.brokers[self.node]

    async def open(self) -> None:
        await self.nodes.start()
        for backend in self.nodes.backends.values():
            backend.topics_here.favours = lambda: "n1"
        n1 = self.nodes.backends["n1"]
        await until(lambda: all(n1.reign(each) is not None for each in self._partitions()), "n1 leads")
        await self.backend.catch_up_cursors()

    def _partitions(self) -> list[PartitionId]:
        topics = self.backend.topics()
        return [PartitionId(topic.name, number) for topic in topics for number in range(topic.config.partitions)]

    async def stop(self) -> None:
        # The leader last: while it is there no other node can be elected and get ahead of it.
        await self.nodes.stop(*(name for name in ("n3", "n2", "n1") if name in self.nodes.running))

    async def create(self, name: str = "t", partitions: int = 1, **config: Any) -> PartitionId:
        partition = await super().create(name, partitions, **config)
        await self.nodes.leader(name)
        return partition

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        if self.leads:
            return super().append(partition, batch)
        forwarded = self.backend.forward(partition, batch, has_ids=False)
        offset: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()

        def done(published: asyncio.Future[BatchPublished]) -> None:
            if (error := published.exception()) is not None:
                offset.set_exception(error)
            else:
                offset.set_result(published.result().base_offset)

        forwarded.add_done_callback(done)
        return offset

    async def caught_up(self, partition: PartitionId) -> None:
        if not self.leads:
            await self.backend.catch_up(partition)

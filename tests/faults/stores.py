"""The stores that are published to, and how what is in them is read when all is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from testkit.inprocess import Clock, Nodes
from testkit.postgres import database_for
from testkit.wait import until

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.broker.broker import Broker
from holdfast.model.errors import Unavailable
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.topics import TopicConfig
from tests.contract.stores import KINDS, SEGMENT_BYTES
from tests.faults.requests import PARTITIONS, Sent, requests, untrue
from tests.faults.sites import FAULTS, Fault
from tests.postgres.relay import Relay, relayed

T = TopicName("t")
NOW_MS: Final = 1_790_000_000_000


# Beyond that an answer waits for the store to stop.
PATIENCE_S = 3.0


class Tried(NamedTuple):
    """What publishers were told and is untrue, how often each site was passed, and whether one failed."""

    untrue: list[str]
    turns: Counter[str]
    has_failed: bool


class Alone:
    """A new store for each try. It is stopped behind the publishes and opened again before it is read."""

    def __init__(self, place: Path, kind: str, partitions: int = PARTITIONS) -> None:
        self._place = place
        self._kind = KINDS[kind]
        self._partitions = partitions

    async def try_once(self, name: str, fault: Fault | None) -> Tried:
        """Publish while one site fails."""
        store = self._kind(self._place / name)
        store.clock.now = NOW_MS
        await store.open()
        await store.create(T, self._partitions)
        rounds = [Sent([store.broker], T, requests("before"))]
        await rounds[0].answered()
        FAULTS.arm(fault)
        for round_name in ("first", "second"):
            rounds.append(Sent([store.broker], T, requests(round_name)))
            await rounds[-1].answered(PATIENCE_S)
        with contextlib.suppress(Exception):
            await store.stop()
        turns = FAULTS.disarm()
        await store.open()
        await until(lambda: getattr(store.backend, "is_drained", True), "the spill is empty")
        stored = await values_in(store.broker, T)
        await store.stop()
        return Tried(untrue([each for sent in rounds for each in sent.told()], stored), turns, FAULTS.has_failed)

    async def stop(self) -> None:
        """Nothing is left running between tries."""


class Cluster:
    """Three nodes that live through all tries, with a topic for each; requests go to one node after the other."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._clusters = 0
        self._nodes: Nodes | None = None

    async def try_once(self, name: str, fault: Fault | None) -> Tried:
        nodes = self._nodes or await self._start()
        topic = TopicName(f"t{name}")
        await nodes.brokers["n1"].create_topic(topic, TopicConfig(partitions=PARTITIONS))
        brokers = list(nodes.brokers.values())
        for number in range(PARTITIONS):
            await nodes.leader(topic, number)
        rounds = [Sent(brokers, topic, requests("before"))]
        await rounds[0].answered()
        FAULTS.arm(fault)
        # Each kind of request reaches leaders and others.
        for number, round_name in enumerate(("first", "second")):
            rounds.append(Sent(brokers[number:] + brokers[:number], topic, requests(round_name)))
            await rounds[-1].answered(4 * PATIENCE_S)
        turns = FAULTS.disarm()
        for failed in set(nodes.failed):
            # Its process would have ended itself; whoever waits there is answered by the others.
            with contextlib.suppress(Exception):
                await nodes.stop(failed)
        stored = await self._stored(nodes, topic)
        told = [each for sent in rounds for each in sent.told()]
        if nodes.failed or any(isinstance(each.error, asyncio.CancelledError) for each in told):
            await self.stop()
        else:
            await nodes.brokers["n1"].delete_topic(topic)
        return Tried(untrue(told, stored), turns, FAULTS.has_failed)

    async def _start(self) -> Nodes:
        self._clusters += 1
        self._nodes = Nodes(self._place / str(self._clusters), segment_bytes=SEGMENT_BYTES)
        await self._nodes.start()
        return self._nodes

    async def _stored(self, nodes: Nodes, topic: TopicName) -> Counter[bytes]:
        (name, backend), *_ = nodes.backends.items()
        for number in range(PARTITIONS):
            caught_up = False
            while not caught_up:
                with contextlib.suppress(Unavailable):
                    await backend.catch_up(PartitionId(topic, number))
                    caught_up = True
        return await values_in(nodes.brokers[name], topic)

    async def stop(self) -> None:
        FAULTS.disarm()
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            with contextlib.suppress(Exception):
                await nodes.stop()


class Postgres:
    """A database, and for each try a broker with a topic of its own, whose connection is cut at one place."""

    def __init__(self, place: Path) -> None:
        self._url = database_for(place)
        self._reader: PostgresBackend | None = None

    async def try_once(self, name: str, fault: Fault | None) -> Tried:
        if self._reader is None:
            self._reader = await _open(self._url, "reader")
        topic = TopicName(f"t{name}")
        await self._reader.create_topic(topic, TopicConfig(partitions=PARTITIONS))
        async with relayed(self._url, Cutting) as (_, address):
            backend = await _open(address, "n1")
            broker = Broker(backend, now_ms=Clock(NOW_MS))
            rounds = [Sent([broker], topic, requests(f"{name} before"))]
            await rounds[0].answered()
            FAULTS.arm(fault)
            for round_name in ("first", "second"):
                rounds.append(Sent([broker], topic, requests(f"{name} {round_name}")))
                await rounds[-1].answered()
            turns = FAULTS.disarm()
            await backend.stop()
        await self._reader.catch_up_cursors()
        for number in range(PARTITIONS):
            await self._reader.catch_up(PartitionId(topic, number))
        stored = await values_in(Broker(self._reader, now_ms=Clock(NOW_MS)), topic)
        return Tried(untrue([each for sent in rounds for each in sent.told()], stored), turns, FAULTS.has_failed)

    async def stop(self) -> None:
        if self._reader is not None:
            await self._reader.stop()


class Cutting(Relay):
    """Cuts a connection before what is on its way there or back arrives."""

    def cuts(self, data: bytes, connection: object, *, is_answer: bool) -> bool:
        return FAULTS(f"postgres: {'an answer' if is_answer else 'a question'} is lost")


async def _open(url: str, node: str) -> PostgresBackend:
    backend = PostgresBackend(url, node=node, now_ms=Clock(NOW_MS), timeout_s=5.0, retry_s_max=0.1)
    await backend.start()
    return backend


async def values_in(broker: Broker, topic: TopicName) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    known = broker.backend.topic(topic)
    for number in range(known.config.partitions if known is not None else 0):
        offset, _ = broker.partition_range(topic, number)
        while True:
            messages, offset = await broker.read(topic, number, Offset(offset), 1000, 1 << 20)
            if not messages:
                break
            found.update(message.value for message in messages)
    return found


STORES: dict[str, Callable[[Path], Any]] = {
    "alone": lambda place: Alone(place, "alone"),
    "spill": lambda place: Alone(place, "alone-spill"),
    "cluster": Cluster,
    "postgres": Postgres,
    "plain": lambda place: Alone(place, "plain", partitions=1),
}

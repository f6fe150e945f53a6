"""The backends under contract. One that comes later joins with one line in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from testkit.batches import values_batch, values_of
from testkit.postgres import TIMEOUT_S, database_for

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.backends.plain.backend import PlainBackend
from holdfast.backends.plain.settings import PlainSettings
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.log_target import LogTarget
from holdfast.backends.spill.settings import SpillSettings
from holdfast.broker.backend import Backend
from holdfast.consensus.partner import PairSettings
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.topics import TopicConfig
from holdfast.storage.directory import DataDirectory
from holdfast.wire import record_batch


@dataclass
class Clock:
    """Time stands still until a test moves it."""

    now: int = 1_000_000

    def __call__(self) -> TimestampMs:
        return TimestampMs(self.now)


async def open_alone(path: Path, clock: Clock, *, sync: str) -> ClusterBackend:
    directory = DataDirectory.open(path, node="n1", now_ms=clock())
    backend = ClusterBackend(directory, sync=parse_sync_policy(sync), now_ms=clock, segment_bytes=4096)
    try:
        await backend.start()
    except BaseException:
        directory.close()
        raise
    return backend


async def open_plain(path: Path, clock: Clock) -> PlainBackend:
    """One of a plain pair whose partner never comes."""
    inner = await open_alone(path, clock, sync="group")
    pair = PairSettings(heartbeat_s=0.01, misses=1)
    settings = PlainSettings("127.0.0.1:9", ("127.0.0.1", 9), "primary", is_bare=False, pair=pair)
    backend = PlainBackend(
        inner,
        path,
        settings,
        is_synced=True,
        message_bytes_max=1 << 20,
        now_ms=clock,
        delivers_from=lambda topic: topic,
        on_fatal=lambda error: None,
    )
    stop_pair = backend.stop

    async def stop_both() -> None:
        await stop_pair()
        await inner.stop()

    backend.stop = stop_both  # type: ignore[method-assign]
    backend.start()
    while not backend.pair.takes_publishes:
        await asyncio.sleep(0.005)
    return backend


async def open_postgres(path: Path, clock: Clock) -> PostgresBackend:
    backend = PostgresBackend(database_for(path), node="n1", now_ms=clock, timeout_s=TIMEOUT_S)
    await backend.start()
    return backend


class Spilled(SpillBackend):
    """A backend with a spill around it, stopped together."""

    async def stop(self) -> None:
        await super().stop()
        await self.inner.stop()  # type: ignore[attr-defined]


async def open_spilled(path: Path, clock: Clock, *, open_inner: Open) -> Spilled:
    inner = await open_inner(path, clock)
    directory = path / "spill"
    target = inner.replaying if isinstance(inner, PostgresBackend) else LogTarget(inner, directory)
    spilled = Spilled(inner, target, SpillSettings(directory), now_ms=clock)
    await spilled.start()
    return spilled


Open = Callable[[Path, Clock], Awaitable[Any]]

ALONE: dict[str, Open] = {
    "alone-group": partial(open_alone, sync="group"),
    "alone-interval": partial(open_alone, sync="interval:20"),
    "alone-none": partial(open_alone, sync="none"),
}
BACKENDS: dict[str, Open] = {
    **ALONE,
    "plain": open_plain,
    "postgres": open_postgres,
    "alone-spill": partial(open_spilled, open_inner=partial(open_alone, sync="group")),
    "postgres-spill": partial(open_spilled, open_inner=open_postgres),
}


@dataclass
class Store:
    """A backend that can be stopped and opened again over the same data; short names for long calls."""

    open_backend: Open
    path: Path
    clock: Clock = field(default_factory=Clock)
    running: Any = None

    @property
    def backend(self) -> Backend:
        assert self.running is not None, "open it first"
        checked: Backend = self.running
        return checked

    async def open(self) -> None:
        self.running = await self.open_backend(self.path, self.clock)

    async def stop(self) -> None:
        if self.running is not None:
            running, self.running = self.running, None
            await running.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.open()

    def partitions_most(self, wanted: int) -> int:
        return 1 if isinstance(self.running, PlainBackend) else wanted

    def kept(self, value: bytes) -> bytes:
        """A value that this store can keep: in a plain pair, what fits in a line."""
        return value.replace(b"\n", b" ").rstrip(b"\r") if isinstance(self.running, PlainBackend) else value

    async def create(self, name: str = "t", partitions: int = 1, **config: Any) -> PartitionId:
        if partitions > self.partitions_most(partitions):
            pytest.skip("a plain pair has topics of one partition")
        await self.backend.create_topic(TopicName(name), TopicConfig(partitions=partitions, **config))
        return PartitionId(TopicName(name), 0)

    async def publish(self, partition: PartitionId, *values: bytes, timestamp_ms: int = 1_000) -> int:
        return await self.backend.append(partition, values_batch(*values, timestamp_ms=timestamp_ms))

    async def read(self, partition: PartitionId, offset: int = 0, bytes_max: int = 1 << 30) -> list[bytes]:
        return values_of(await self.backend.read(partition, Offset(offset), bytes_max))

    async def read_all(self, partition: PartitionId) -> dict[int, bytes]:
        """Every message with its offset, read in small pieces."""
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

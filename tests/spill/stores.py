"""A broker whose store may go away: a spill around a PostgreSQL, and short names for long calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from testkit.reading import values_in
from testkit.wait import until

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.holding import LEASE_S
from holdfast.backends.spill import files
from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.settings import SpillSettings
from holdfast.broker.broker import Broker
from holdfast.model.ids import PartitionId, TimestampMs, TopicName
from holdfast.model.messages import Published
from holdfast.model.topics import TopicConfig
from tests.postgres.stores import messages_of, now_ms

FAST: dict[str, Any] = {"flush_ms": 20, "retry_interval_s": 0.05, "free_bytes_min": 0}


@dataclass
class Spilling:
    database: PostgresBackend
    spill: SpillBackend
    broker: Broker

    @property
    def directory(self) -> Path:
        return self.spill.directory.path

    async def create(self, name: str = "t", partitions: int = 1) -> PartitionId:
        await self.spill.create_topic(TopicName(name), TopicConfig(partitions=partitions))
        return PartitionId(TopicName(name), 0)

    async def create_in_store(self, partitions: int = 1) -> None:
        """Topic t, without the spill, whose deadline a test may have made too short for it on a busy machine."""
        await self.database.create_topic(TopicName("t"), TopicConfig(partitions=partitions))

    async def push(
        self, *values: bytes, topic: str = "t", partition: int | None = None, ids: Sequence[str] = ()
    ) -> list[Published]:
        messages = messages_of(values, ids)
        return await self.broker.publish(topic, messages, partition)

    async def values(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        """Everything that is stored, in order."""
        return await values_in(self.broker, topic, partition)

    async def stop(self) -> None:
        await self.spill.stop()
        await self.database.stop()

    async def drained(self) -> None:
        """Until everything that was kept is stored."""
        await until(lambda: self.spill.is_healthy and not self.spill.pending and not self.spilled_files())

    def spilled_files(self) -> list[files.SpillFile]:
        return files.listed(self.directory)


async def open_spilling(
    url: str,
    directory: Path,
    node: str = "n1",
    *,
    timeout_s: float = 5.0,
    lease_s: float = LEASE_S,
    clock: Callable[[], TimestampMs] = now_ms,
    **settings: Any,
) -> Spilling:
    database = PostgresBackend(url, node=node, now_ms=now_ms, timeout_s=timeout_s, retry_s_max=0.1, lease_s=lease_s)
    await database.start()
    spill = SpillBackend(database, database.replaying, SpillSettings(directory, **{**FAST, **settings}), now_ms=clock)
    await spill.start()
    opened = Spilling(database, spill, Broker(spill, now_ms=now_ms))
    spill.create_with(partial(opened.broker.ensure_topic, is_promised=True))
    opened.broker.spill_with(spill.push_losable, spill.keep_pushed)
    return opened

"""A broker over a database, without front ends, and short names for long calls."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from testkit.reading import read_all

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.broker.broker import Broker
from holdfast.model.ids import PartitionId, TimestampMs, TopicName
from holdfast.model.messages import NewMessage, Published, StoredMessage
from holdfast.model.topics import TopicConfig


def now_ms() -> TimestampMs:
    return TimestampMs(time.time_ns() // 1_000_000)


def messages_of(values: Sequence[bytes], ids: Sequence[str] = ()) -> list[NewMessage]:
    given: Sequence[str | None] = ids or [None] * len(values)
    return [NewMessage(value=value, id=each) for value, each in zip(values, given, strict=True)]


@dataclass
class Opened:
    backend: PostgresBackend
    broker: Broker

    async def create(self, name: str = "t", partitions: int = 1, **config: Any) -> PartitionId:
        await self.backend.create_topic(TopicName(name), TopicConfig(partitions=partitions, **config))
        return PartitionId(TopicName(name), 0)

    async def publish(self, *values: bytes, topic: str = "t", ids: Sequence[str] = ()) -> list[Published]:
        return await self.broker.publish(topic, messages_of(values, ids))

    async def read(self, topic: str = "t", partition: int = 0) -> list[StoredMessage]:
        return await read_all(self.broker, topic, partition)


async def open_store(url: str, node: str = "n1", *, timeout_s: float = 5.0, **settings: Any) -> Opened:
    backend = PostgresBackend(url, node=node, now_ms=now_ms, timeout_s=timeout_s, **settings)
    await backend.start()
    return Opened(backend, Broker(backend, now_ms=now_ms))


@asynccontextmanager
async def stored(url: str, node: str) -> AsyncIterator[Opened]:
    opened = await open_store(url, node)
    yield opened
    await opened.backend.stop()


async def query(url: str, statement: str, *values: object) -> list[Any]:
    """What a person with SQL sees."""
    connection = await asyncpg.connect(url)
    try:
        rows: list[Any] = await connection.fetch(statement, *values)
        return rows
    finally:
        await connection.close()

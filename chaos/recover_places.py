"""Where recoveries that are killed go: a PostgreSQL, or brokers. What is there, and how to keep one from its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol
from uuid import uuid4

import asyncpg

import holdfast
from holdfast.backends.postgres.recovering import RecoveryDatabase

_TABLE: Final = """
SELECT t.name, m.partition, array_agg(m.value ORDER BY m."offset")
FROM holdfast.messages m JOIN holdfast.topics t USING (topic_id) GROUP BY 1, 2
"""
_COUNT: Final = "SELECT coalesce(sum(next_offset), 0) FROM holdfast.partitions"
_HOLD: Final = """
SELECT p.next_offset FROM holdfast.partitions p JOIN holdfast.topics t USING (topic_id)
WHERE t.name = $1 AND p.partition = $2 FOR UPDATE OF p
"""
_READ_MESSAGES: Final = 5_000

Place = tuple[str, int]
Values = dict[Place, list[bytes]]
Count = Callable[[], Awaitable[int]]


class Stored(Protocol):
    @property
    def options(self) -> list[str]:
        """How the command is told."""
        ...

    def counting(self) -> AbstractAsyncContextManager[Count]:
        """How many messages are stored, over one connection, as often as it is asked."""
        ...

    async def values(self) -> Values: ...

    def held(self, place: Place, partitions: int) -> Any:
        """A context in which nothing of one partition can be stored, so that no recovery ends."""
        ...


class InDatabase:
    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def options(self) -> list[str]:
        return ["--store", self._url]

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[Count]:
        connection = await asyncpg.connect(self._url)

        async def count() -> int:
            try:
                return int(await connection.fetchval(_COUNT))
            except asyncpg.UndefinedTableError:
                return 0

        try:
            yield count
        finally:
            await connection.close()

    async def values(self) -> Values:
        return {(row[0], row[1]): list(row[2]) for row in await self._asked(_TABLE)}

    @asynccontextmanager
    async def held(self, place: Place, partitions: int) -> AsyncIterator[None]:
        await asyncio.to_thread(self._make, place, partitions)
        connection = await asyncpg.connect(self._url)
        try:
            async with connection.transaction():
                await connection.fetch(_HOLD, *place)
                yield
        finally:
            await connection.close()

    def _make(self, place: Place, partitions: int) -> None:
        database = RecoveryDatabase(self._url, "holdfast-chaos")
        try:
            database.prepare_schema()
            database.reached(uuid4(), *place, partitions)
        finally:
            database.close()

    async def _asked(self, statement: str) -> list[Any]:
        connection = await asyncpg.connect(self._url)
        try:
            found: list[Any] = await connection.fetch(statement)
            return found
        finally:
            await connection.close()


class ThroughBrokers:
    def __init__(self, servers: str) -> None:
        self._servers = servers

    @property
    def options(self) -> list[str]:
        """Most messages have no ids, as those of brokers over a PostgreSQL: these were never stored anywhere."""
        return ["--server", self._servers, "--allow-duplicates"]

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[Count]:
        async with holdfast.connect(f"holdfast://{self._servers}") as broker:

            async def count() -> int:
                return sum(topic.messages for topic in await broker.topics())

            yield count

    async def values(self) -> Values:
        found: Values = {}
        async with holdfast.connect(f"holdfast://{self._servers}") as broker:
            for topic in await broker.topics():
                for partition in topic.partitions:
                    values: list[bytes] = []
                    while len(values) < partition.end_offset:
                        read = await broker.read(
                            topic.topic, partition.partition, len(values), messages_max=_READ_MESSAGES
                        )
                        values += [message.value for message in read]
                    if values:
                        found[topic.topic, partition.partition] = values
        return found

    @asynccontextmanager
    async def held(self, place: Place, partitions: int) -> AsyncIterator[None]:
        """Brokers cannot be told to wait: whoever kills looks whether there was something left."""
        yield


def stored_in(target: str) -> Stored:
    """By address: of a database, or of brokers."""
    return InDatabase(target) if "://" in target else ThroughBrokers(target)

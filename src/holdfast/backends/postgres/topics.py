"""Creating and deleting topics, and knowing those that other brokers created or deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import structlog
import uuid_utils
from asyncpg import Connection

from holdfast.backends.postgres.database import Database
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import KnownBefore, KnownTopics, topic_of
from holdfast.model.errors import TooManyTopics, TopicExists, TopicNotFound
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic, TopicConfig, topic_token

log = structlog.get_logger("holdfast.postgres")


class Topics:
    """The topics of a store. What is done here is known here when the call returns, and soon on all brokers."""

    def __init__(
        self,
        database: Database,
        known: KnownTopics,
        *,
        now_ms: Callable[[], TimestampMs],
        default_retention: TopicConfig,
        partitions_max: int,
    ) -> None:
        self._database = database
        self._known = known
        self._now_ms = now_ms
        self._default_retention = default_retention
        self._partitions_max = partitions_max

    @property
    def partitions_left(self) -> int:
        return self._partitions_max - len(self._known.partitions)

    async def create(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        """Raises `TopicExists`, `TooManyTopics`, `Unavailable`, `LeaderChanged`."""
        if name in self._known.by_name:
            raise TopicExists(f"topic {name} exists already")
        if config.retention_ms is None and config.retention_bytes is None and not is_internal(name):
            default = self._default_retention
            config = msgspec.structs.replace(
                config, retention_ms=default.retention_ms, retention_bytes=default.retention_bytes
            )
        if config.partitions > self.partitions_left:
            raise TooManyTopics(
                f"there are {len(self._known.partitions)} partitions, at most {self._partitions_max} may be; "
                "delete a topic, or ask for fewer partitions"
            )
        token, created_ms = topic_token(str(uuid_utils.uuid7()), maker), self._now_ms()
        created = await self._database.change(
            sql("create_topic"),
            name,
            token,
            config.partitions,
            config.retention_ms,
            config.retention_bytes,
            created_ms,
        )
        if not created:
            # Another broker was faster; whoever is told so finds it here.
            await self._load(await self._database.fetch(sql("topic_named"), name))
            raise TopicExists(f"topic {name} exists already")
        topic = Topic(name=name, config=config, created_ms=created_ms, id=created[0][0], token=token)
        self._known.add(topic, ())
        return topic

    async def delete(self, name: TopicName) -> None:
        """Its messages cannot be seen any more when this returns; their rows go in the background."""
        topic = self._known.by_name.get(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}")
        async with self._database.connection(changes=True) as connection, connection.transaction():
            await connection.fetch(sql("lock_topic"), topic.id)
            deleted = await connection.fetch(sql("delete_topic"), topic.id)
        self._known.deleted(topic.id)
        if not deleted:
            raise TopicNotFound(f"there is no topic {name}")

    async def load(self, topic_id: int) -> None:
        """Somebody created it."""
        await self._load(await self._database.fetch(sql("one_topic"), topic_id))

    async def _load(self, found: list[Any]) -> None:
        for row in found:
            topic = topic_of(row)
            self._known.add(topic, await self._database.fetch(sql("partitions_of"), topic.id))

    async def load_all(self, connection: Connection, before: KnownBefore) -> None:
        """Everything as the database has it, in the transaction of the connection.

        `before`: what was committed before it began. Less than that has a database that took the place of the one
        before without having all of it. What was created or deleted here since then, it does not tell of.
        """
        found = [topic_of(row) for row in await connection.fetch(sql("all_topics"))]
        partitions: dict[int, list[Any]] = {topic.id: [] for topic in found}
        for row in await connection.fetch(sql("all_partitions")):
            partitions[row[0]].append(row)
        self._known.no_longer_gone(before.gone)
        tokens = {topic.id: topic.token for topic in found}
        for topic in before.topics:
            if tokens.get(topic.id) != topic.token:
                self._known.forget(topic.id)
        for topic in sorted(found, key=lambda topic: topic.id):
            self._known.add(topic, partitions[topic.id])
            for row in partitions[topic.id]:
                state = self._known.state(topic.id, row[1])
                if state is not None and row[3] < before.ends.get(state, 0):
                    log.error("database_went_back", partition=str(state.id), end=row[3], end_was=before.ends[state])
                    state.went_back(*row[2:])
        self._known.is_loaded = True

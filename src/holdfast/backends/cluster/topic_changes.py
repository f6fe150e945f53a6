"""Creating and deleting topics through this node: checked and prepared here, decided by all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import msgspec
import uuid_utils

from holdfast.backends.cluster.commands import Command, CreateTopic, DeleteTopic
from holdfast.backends.cluster.topics import Topics
from holdfast.model.errors import DiskFull, HoldfastError, TooManyTopics, TopicExists, TopicNotFound
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.names import is_internal
from holdfast.model.topics import Topic, TopicConfig, topic_token
from holdfast.storage.directory import DataDirectory
from holdfast.storage.segment import as_write_error


class TopicChanges:
    """What users ask for. What `propose` has decided shows on this node, too."""

    def __init__(
        self,
        directory: DataDirectory,
        topics: Topics,
        *,
        propose: Callable[[Command], asyncio.Future[None]],
        now_ms: Callable[[], TimestampMs],
        default_retention: TopicConfig,
        partitions_max: int,
    ) -> None:
        self._directory = directory
        self._topics = topics
        self._propose = propose
        self._now_ms = now_ms
        self._default_retention = default_retention
        self._partitions_max = partitions_max
        # Topics that are being created or deleted through this node right now, and when that is done.
        self._changing: dict[TopicName, asyncio.Event] = {}

    async def create(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        """Raises `TopicExists`, `TooManyTopics`."""
        while name in self._changing:
            await self._changing[name].wait()
        if name in self._topics.known:
            raise TopicExists(f"topic {name} exists already")
        topic = self._new_topic(name, config, maker)
        with self._change(name):
            try:
                await self._topics.prepare(topic)
                await self._propose(self.creation(topic))
            except (OSError, HoldfastError) as error:
                await self._topics.give_up(topic)
                raise as_write_error(error) if isinstance(error, OSError) else error from error
        return self._topics.known[name]

    def _new_topic(self, name: TopicName, config: TopicConfig, maker: str) -> Topic:
        if config.retention_ms is None and config.retention_bytes is None and not is_internal(name):
            default = self._default_retention
            config = msgspec.structs.replace(
                config, retention_ms=default.retention_ms, retention_bytes=default.retention_bytes
            )
        open_partitions = len(self._topics.replicas)
        if open_partitions + config.partitions > self._partitions_max:
            raise TooManyTopics(
                f"{open_partitions} partitions are open, at most {self._partitions_max} may be; "
                "delete a topic, ask for fewer partitions, or allow more open files (ulimit -n)"
            )
        token = topic_token(str(uuid_utils.uuid7()), maker)
        return Topic(name=name, config=config, created_ms=self._now_ms(), token=token)

    def creation(self, topic: Topic) -> CreateTopic:
        """The command that makes a topic."""
        return CreateTopic(topic.name, topic.config, topic.created_ms, topic.token)

    async def delete(self, name: TopicName) -> None:
        """Raises `TopicNotFound` if there is none when this begins. This node has to be caught up."""
        while name in self._changing:
            await self._changing[name].wait()
        topic = self._topics.known.get(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}")
        with self._change(name):
            deletion = DeleteTopic(name, topic.token)
            try:
                await self._decided(deletion)
            except DiskFull:
                # Deleting is how people make room, so it must work on a full disk: the reserve is for this.
                if not self._directory.release_reserve():
                    raise
                await self._decided(deletion)
            self._directory.keep_reserve()

    async def _decided(self, deletion: DeleteTopic) -> None:
        """Have a topic deleted that there was. If it is gone by now, the first of two proposals was decided."""
        with contextlib.suppress(TopicNotFound):
            await self._propose(deletion)

    @contextlib.contextmanager
    def _change(self, name: TopicName) -> Iterator[None]:
        """Whoever wants to create a topic that is being created or deleted waits for that."""
        done = self._changing[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._changing[name]
            done.set()

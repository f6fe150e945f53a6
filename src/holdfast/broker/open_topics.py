"""Topics that are ready to be published to: there, with the ids that were seen lately, or being made so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from holdfast.broker.backend import Backend
from holdfast.broker.dedupe_windows import DedupeWindows
from holdfast.broker.gates import Gates
from holdfast.model import names
from holdfast.model.errors import OutcomeUnknown, ShuttingDown, TopicExists, TopicNotFound, Unavailable, WorldError
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.topics import Topic, TopicConfig


class OpenTopics:
    """What publishing knows of topics. Whoever comes while one is made ready waits behind its gate, in order."""

    def __init__(
        self,
        backend: Backend,
        windows: DedupeWindows,
        create_topic: Callable[[TopicName, TopicConfig], Awaitable[None]],
        *,
        auto_create: bool,
    ) -> None:
        self.gates = Gates()
        self._backend = backend
        self._windows = windows
        self._create_topic = create_topic
        self._auto_create = auto_create
        self._rotation: dict[TopicName, int] = {}
        # Of topics that have just one, so that it is not made anew for each message.
        self._only_partition: dict[TopicName, PartitionId] = {}
        self._still_taken: Callable[[TopicName], bool] | None = None

    @property
    def is_closed(self) -> bool:
        return self._still_taken is not None

    def close(self, but_for: Callable[[TopicName], bool]) -> None:
        """Refuse publishes from now on, but for those to topics that `but_for` says yes to."""
        self._still_taken = but_for

    def open(self, text: str, *, needs_windows: bool = False) -> Topic | None:
        """The topic, ready to be published to; `None` if the caller has to wait behind its gate."""
        if self._still_taken is not None and not self._still_taken(TopicName(text)):
            raise ShuttingDown("the broker is shutting down; publish to another or try again later")
        topic = self._backend.topic(TopicName(text))
        if topic is None or names.is_internal(text):
            name = names.topic_name(text)
            if not self.gates.is_closed(name):
                if not self._auto_create:
                    raise TopicNotFound(f"there is no topic {name}; create it first (auto-create is off)")
                self.gates.close_while(name, lambda: self._create(name))
            return None
        if self.gates.is_closed(topic.name):
            return None
        if needs_windows and self._windows.missing(topic):
            self.gates.close_while(topic.name, lambda: self._windows.load(topic))
            return None
        return topic

    def existing(self, name: TopicName) -> Topic:
        topic = self._backend.topic(name)
        if topic is None:
            raise TopicNotFound(f"topic {name} was deleted")
        return topic

    async def ensure(self, name: TopicName) -> None:
        """Create a topic that is about to be used."""
        if not self.gates.is_closed(name):
            self.gates.close_while(name, lambda: self._create(name))
        await self.behind_gate(name)

    async def behind_gate(self, name: TopicName) -> Topic:
        """The topic, once its gate is open."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready.set_result(None)
        await self.gates.behind(name, lambda: ready)
        return self.existing(name)

    async def _create(self, name: TopicName) -> None:
        try:
            with contextlib.suppress(TopicExists):  # somebody else was faster: just as good
                await self._create_topic(name, TopicConfig())
        except WorldError as error:
            # Where the store is away and pushes are kept until it is back, it makes the topic then.
            if self._backend.topic(name) is None:
                if isinstance(error, OutcomeUnknown):
                    # Of the messages that wait for the topic nothing is stored, whether or not it was created.
                    raise Unavailable(f"it is not known whether topic {name} was created: {error.message}") from error
                raise
        await self._windows.load(self.existing(name))

    def forget(self, name: TopicName) -> None:
        """A deleted topic's ids mean nothing to a new one of the same name."""
        self._rotation.pop(name, None)
        self._only_partition.pop(name, None)
        self._windows.forget(name)

    # --- messages that may go to any partition --------------------------------------------------------

    def partition_for_values(self, topic: Topic) -> PartitionId:
        # A topic that was taken to have one partition while its store was away may turn out to have more.
        partition = self._only_partition.get(topic.name) if topic.config.partitions == 1 else None
        return PartitionId(topic.name, self.any_partition(topic)) if partition is None else partition

    def any_partition(self, topic: Topic) -> int:
        if topic.config.partitions == 1:
            self._only_partition[topic.name] = PartitionId(topic.name, 0)
            return 0
        self._rotation[topic.name] = number = (self._rotation.get(topic.name, -1) + 1) % topic.config.partitions
        return number

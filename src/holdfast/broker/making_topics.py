"""Topics are made as many as there may be; for what is acknowledged already there may always be one more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from holdfast.broker.backend import Backend
from holdfast.model.errors import TooManyTopics, TopicExists
from holdfast.model.ids import TopicName
from holdfast.model.limits import TOPICS_MAX
from holdfast.model.topics import TopicConfig


class TopicMaking:
    """`delivers_from` names the topic whose messages subscribers of another one get."""

    def __init__(self, backend: Backend, delivers_from: Callable[[TopicName], TopicName]) -> None:
        self._backend = backend
        self._delivers_from = delivers_from
        # Those that are on their way count: one chunk of lines may name thousands.
        self._under_way = 0

    async def make(self, name: TopicName, config: TopicConfig, maker: str = "") -> None:
        """Raises `TopicExists`, `TooManyTopics`."""
        if len(self._backend.topics()) + self._under_way >= TOPICS_MAX and self._backend.topic(name) is None:
            raise TooManyTopics(f"there are {TOPICS_MAX} topics already; delete one first")
        await self._make(name, config, maker)

    async def make_promised(self, name: TopicName) -> None:
        """One that acknowledged messages wait for; done as well where somebody else was faster."""
        with contextlib.suppress(TopicExists):
            await self._make(name, TopicConfig())

    async def _make(self, name: TopicName, config: TopicConfig, maker: str = "") -> None:
        """What subscribers will read comes first, so that it is there as soon as the topic is."""
        self._under_way += 1
        try:
            delivered = self._delivers_from(name)
            if delivered != name:
                with contextlib.suppress(TopicExists):
                    await self._backend.create_topic(delivered, config)
            await self._backend.create_topic(name, config, maker)
        finally:
            self._under_way -= 1

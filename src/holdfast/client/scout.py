"""Watching a topic with more partitions than connections: one look at all ends instead of a poll for each."""

from __future__ import annotations

import asyncio

from holdfast.client.api import Api
from holdfast.client.limits import SCOUT_INTERVAL_S
from holdfast.model.ids import TopicName


class Scout:
    """Tells each reader when its partition has grown beyond what it has read."""

    def __init__(self, api: Api, topic: TopicName) -> None:
        self._api = api
        self._topic = topic
        self._ends: dict[int, int] = {}
        self._looked: asyncio.Task[None] | None = None

    async def news(self, partition: int, position: int) -> None:
        """Wait until the partition holds something at `position`, or is not what it was."""
        while self._ends.get(partition, -1) in (position, -1):
            if self._looked is None:
                self._looked = asyncio.create_task(self._look(), name=f"scout of {self._topic}")
            await asyncio.shield(self._looked)

    async def close(self) -> None:
        if self._looked is not None:
            self._looked.cancel()
            await asyncio.wait((self._looked,))

    async def _look(self) -> None:
        try:
            await asyncio.sleep(SCOUT_INTERVAL_S)
            description = await self._api.describe(self._topic)
            self._ends = {each.partition: each.end_offset for each in description.partitions}
        finally:
            self._looked = None

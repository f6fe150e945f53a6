"""The topics a store had when it was last there, for a broker that starts while it is away.

`topics.json` in the directory of the spill holds the number of partitions by name; it is put in place whole. Without
it a topic of several partitions would be taken for one that is yet to be made.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.topics import Topic, TopicConfig
from holdfast.storage.durable import replace_file, sync_directory


class TopicMemory:
    """What is added is on the disk after the next `write`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_changed = False
        self._writing = asyncio.Lock()
        try:
            content = (directory / "topics.json").read_bytes()
            self._partitions: dict[str, int] = msgspec.json.decode(content, type=dict[str, int])
        except (FileNotFoundError, msgspec.MsgspecError):
            self._partitions = {}

    def topic(self, name: TopicName) -> Topic | None:
        partitions = self._partitions.get(name)
        if partitions is None:
            return None
        return Topic(name=name, config=TopicConfig(partitions=partitions), created_ms=TimestampMs(0))

    def add(self, topic: Topic) -> None:
        if self._partitions.get(topic.name) != topic.config.partitions:
            self._partitions[topic.name] = topic.config.partitions
            self._is_changed = True

    def remove(self, name: TopicName) -> None:
        if self._partitions.pop(name, None) is not None:
            self._is_changed = True

    async def write(self) -> None:
        """Raises `OSError`."""
        async with self._writing:
            if not self._is_changed:
                return
            self._is_changed = False
            try:
                await asyncio.to_thread(self._write, msgspec.json.encode(self._partitions))
            except OSError:
                self._is_changed = True
                raise

    def _write(self, content: bytes) -> None:
        replace_file(self._directory / "topics.json", content)
        sync_directory(self._directory)

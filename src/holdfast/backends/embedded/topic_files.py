"""The directories of topics: made, opened, thrown away, and found again.

A topic's directory is made, with its `topic.json`, before the topic is known to the state, and moved to the
trash before the state forgets it; the crash cases stand in `state.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog
import uuid_utils

from holdfast.backends.embedded.partition import Partition
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.topics import Topic, TopicConfig
from holdfast.storage.directory import DataDirectory
from holdfast.storage.log import PartitionLog, sync_directory

log = structlog.get_logger("holdfast.storage")

_TOPIC_FILE = "topic.json"


class TopicFiles:
    """Everything below `topics/` and `trash/` of a data directory."""

    def __init__(self, directory: DataDirectory, segment_bytes: int, now_ms: Callable[[], TimestampMs]) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._now_ms = now_ms

    def make(self, topic: Topic) -> None:
        """The directories of a new topic, durable on return. What an earlier one left goes to the trash."""
        self.move_to_trash(topic.name)
        path = self._directory.topics / topic.name
        for number in range(topic.config.partitions):
            (path / str(number)).mkdir(parents=True, exist_ok=True)
        with (path / _TOPIC_FILE).open("wb") as file:
            file.write(msgspec.json.encode(topic) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path)
        sync_directory(self._directory.topics)

    def open(self, topic: Topic) -> list[Partition]:
        """All partitions of a topic, whole after a crash; on an error none of them stays open."""
        opened: list[Partition] = []
        try:
            for number in range(topic.config.partitions):
                opened.append(self._open_partition(PartitionId(topic.name, number)))
        except BaseException:
            for partition in opened:
                partition.log.close()
            raise
        return opened

    def _open_partition(self, partition_id: PartitionId) -> Partition:
        path = self._directory.topics / partition_id.topic / str(partition_id.number)
        partition_log, recovery = PartitionLog.open(path, segment_bytes=self._segment_bytes)
        if recovery.torn_bytes or recovery.deleted_segments:
            log.warning(
                "torn_tail_cut",
                partition=str(partition_id),
                bytes=recovery.torn_bytes,
                segments=recovery.deleted_segments,
                end_offset=partition_log.written_end,
            )
        for file, hole in recovery.holes:
            report_damage(partition_id, file, hole.first_offset, hole.next_offset)
        return Partition(partition_id, partition_log)

    def move_to_trash(self, name: TopicName) -> None:
        target = self._directory.trash / str(uuid_utils.uuid7())
        try:
            (self._directory.topics / name).rename(target)
        except FileNotFoundError:
            return
        # Before the row goes: a directory without a row is a topic to be found again.
        sync_directory(self._directory.topics)

    def empty_trash(self) -> None:
        """What cannot be removed now is removed at the next start."""
        shutil.rmtree(self._directory.trash, ignore_errors=True)
        self._directory.trash.mkdir(exist_ok=True)

    def unknown(self, known: set[TopicName], *, state_is_incomplete: bool) -> Iterator[Topic]:
        """Topics that the state does not know: what a damaged state lost. Empty leftovers are removed."""
        for path in sorted(self._directory.topics.iterdir()):
            name = TopicName(path.name)
            if name in known or not path.is_dir():
                continue
            is_empty = not any(segment.stat().st_size for segment in path.glob("*/*.log"))
            if is_empty and not (state_is_incomplete and (path / _TOPIC_FILE).exists()):
                shutil.rmtree(path)
                continue
            yield self._found_again(path, name)

    def _found_again(self, path: Path, name: TopicName) -> Topic:
        try:
            topic = msgspec.json.decode((path / _TOPIC_FILE).read_bytes(), type=Topic)
        except (OSError, msgspec.MsgspecError) as error:
            numbers = [int(child.name) for child in path.iterdir() if child.name.isdigit()]
            config = TopicConfig(partitions=max(numbers, default=0) + 1)
            topic = Topic(name=name, config=config, created_ms=self._now_ms())
            log.error("topic_settings_lost", topic=name, problem=str(error))
        log.error("topic_found_again", topic=name, partitions=topic.config.partitions)
        return topic


def report_damage(partition: PartitionId, file: str, first: Offset, next_offset: Offset) -> None:
    log.error(
        "damaged_batch",
        partition=str(partition),
        file=file,
        first_offset=first,
        next_offset=next_offset,
        hint="these offsets are not served; restore the file from a copy if there is one",
    )

"""The directories of topics: made, opened, thrown away, and found again.

A topic's directory is made, with its `topic.json`, before the topic is known to the state, and moved to the
trash before the state forgets it; both may be done again after a crash, and the token in `topic.json` tells
whether what is there belongs to the same topic. The crash cases stand in `state.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog
import uuid_utils

from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.names import of_path_part
from holdfast.model.topics import Topic, TopicConfig
from holdfast.storage.directory import DataDirectory
from holdfast.storage.durable import sync_directory, write_file
from holdfast.storage.frames import Hole
from holdfast.storage.log import PartitionLog

log = structlog.get_logger("holdfast.storage")

_TOPIC_FILE = "topic.json"


class TopicFiles:
    """Everything below `topics/` and `trash/` of a data directory."""

    def __init__(self, directory: DataDirectory, segment_bytes: int, now_ms: Callable[[], TimestampMs]) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._now_ms = now_ms

    def make(self, topic: Topic) -> None:
        """The directories of a topic, durable on return. What another one of its name left goes to the trash."""
        path = self._directory.topic(topic.name)
        token = self.token_of(topic.name)
        if token == topic.token:
            return
        if token is None and not _is_empty(path):
            # Its `topic.json` is damaged. Messages are not thrown away on a suspicion.
            self._write_topic_file(path, topic)
            return
        self.move_to_trash(topic.name)
        for number in range(topic.config.partitions):
            (path / str(number)).mkdir(parents=True, exist_ok=True)
        self._write_topic_file(path, topic)
        sync_directory(path)
        sync_directory(self._directory.topics)

    def _write_topic_file(self, path: Path, topic: Topic) -> None:
        write_file(path / _TOPIC_FILE, msgspec.json.encode(topic) + b"\n")

    def token_of(self, name: TopicName) -> str | None:
        """Which topic the directory of that name belongs to; `None` if there is none, or it does not say."""
        try:
            return msgspec.json.decode((self._directory.topic(name) / _TOPIC_FILE).read_bytes(), type=Topic).token
        except (OSError, msgspec.MsgspecError):
            return None

    def described(self) -> Iterator[Topic]:
        """Every topic whose directory says what it is."""
        for path in sorted(self._directory.topics.iterdir()):
            try:
                yield msgspec.json.decode((path / _TOPIC_FILE).read_bytes(), type=Topic)
            except (OSError, msgspec.MsgspecError):
                continue  # half made, or damaged: whoever opens it says so

    def has_directory(self, name: TopicName) -> bool:
        return self._directory.topic(name).exists()

    def open(self, name: TopicName, partitions: int) -> list[PartitionLog]:
        """The logs of all partitions of a topic, whole after a crash; on an error none of them stays open."""
        opened: list[PartitionLog] = []
        try:
            for number in range(partitions):
                opened.append(self.open_one(name, number))
        except BaseException:
            for partition_log in opened:
                partition_log.close()
            raise
        return opened

    def open_one(self, name: TopicName, number: int) -> PartitionLog:
        path = self._directory.topic(name) / str(number)
        partition_log, recovery = PartitionLog.open(path, segment_bytes=self._segment_bytes)
        if recovery.torn_bytes or recovery.deleted_segments:
            log.warning(
                "torn_tail_cut",
                partition=f"{name}/{number}",
                bytes=recovery.torn_bytes,
                segments=recovery.deleted_segments,
                end_offset=partition_log.written_end,
            )
        return partition_log

    def remove(self, topic: Topic) -> None:
        """Throw a topic's files away, unless another one of its name has taken their place."""
        if self.token_of(topic.name) in (topic.token, None):
            self.move_to_trash(topic.name)
        self.empty_trash()

    def move_to_trash(self, name: TopicName) -> None:
        if not self.has_directory(name):
            return
        self._directory.trash.mkdir(exist_ok=True)
        self._directory.topic(name).rename(self._directory.trash / str(uuid_utils.uuid7()))
        # Before the row goes: a directory without a row is a topic to be found again.
        sync_directory(self._directory.topics)

    def empty_trash(self) -> None:
        """What cannot be removed now is removed at the next start.

        The directory itself stays: other topics may be moved into it at the same time.
        """
        for topic in self._directory.trash.iterdir():
            shutil.rmtree(topic, ignore_errors=True)

    def unknown(self, known: set[TopicName], *, state_is_incomplete: bool) -> Iterator[Topic]:
        """Topics that the state does not know: what a damaged state lost. Empty leftovers are removed."""
        for path in sorted(self._directory.topics.iterdir()):
            name = of_path_part(path.name)
            if name is None or name in known or not path.is_dir():
                continue
            if _is_empty(path) and not (state_is_incomplete and (path / _TOPIC_FILE).exists()):
                shutil.rmtree(path)
                continue
            yield self._found_again(path, name)

    def _found_again(self, path: Path, name: TopicName) -> Topic:
        try:
            topic = msgspec.json.decode((path / _TOPIC_FILE).read_bytes(), type=Topic)
        except (OSError, msgspec.MsgspecError) as error:
            numbers = [int(child.name) for child in path.iterdir() if child.name.isdigit()]
            config = TopicConfig(partitions=max(numbers, default=0) + 1)
            topic = Topic(name=name, config=config, created_ms=self._now_ms(), token=str(uuid_utils.uuid7()))
            self._write_topic_file(path, topic)
            log.error("topic_settings_lost", topic=name, problem=str(error))
        log.error("topic_found_again", topic=name, partitions=topic.config.partitions)
        return topic


def _is_empty(path: Path) -> bool:
    return not any(segment.stat().st_size for segment in path.glob("*/*.log"))


def report_damage(topic: TopicName, number: int, file: str, hole: Hole) -> None:
    log.error(
        "damaged_batch",
        partition=f"{topic}/{number}",
        file=file,
        first_offset=hole.first_offset,
        next_offset=hole.next_offset,
        hint="these offsets are not served; restore the file from a copy if there is one",
    )

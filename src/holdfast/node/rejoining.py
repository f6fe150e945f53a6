"""One of a pair that went on alone while the other one did, too: what only it has is given to the other, then it
begins anew as its backup.

`replaced.json` in the data directory says that this is to be done, and how far it is::

    {"node": "b", "http": "10.0.0.2:8090", "is_given": false}

Crash cases. It is written to a temporary name, synced and renamed before anything else happens.

- *while messages are given*: they are given again at the next start; each has an id, so none is stored twice.
- *after `is_given` is true*: everything is with the other one. What is here is removed, again if need be, and the
  file last. `cluster.json` stays: this node belongs to the same pair, with another disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast.backends.cluster.hard_states import decode
from holdfast.backends.cluster.replica_names import replica_id
from holdfast.backends.cluster.state import StateStore
from holdfast.backends.cluster.topics import group_of
from holdfast.client.client import Client
from holdfast.model.entries import KIND_BATCH
from holdfast.model.ids import LogIndex, TimestampMs
from holdfast.model.limits import MIB
from holdfast.model.messages import NewMessage
from holdfast.model.topics import Topic
from holdfast.storage.directory import DataDirectory
from holdfast.storage.entries import DamagedEntries
from holdfast.storage.log import PartitionLog, sync_directory
from holdfast.storage.votes import VoteJournal
from holdfast.wire import record_batch

log = structlog.get_logger("holdfast.pair")

_FILE: Final = "replaced.json"
_READ_BYTES: Final = 4 * MIB


class Replaced(msgspec.Struct, frozen=True):
    """Who took over, where it serves, and whether it has everything from here."""

    node: str
    http: str
    is_given: bool = False


def note(directory: Path, replaced: Replaced) -> None:
    """Durable on return."""
    temporary = directory / f"{_FILE}.tmp"
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(replaced) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / _FILE)
    sync_directory(directory)


def found(directory: Path) -> Replaced | None:
    """Whether this directory is to be given up."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=Replaced)
    except FileNotFoundError:
        return None


async def give_up(path: Path, node: str, now_ms: TimestampMs) -> None:
    """Give what only this directory has to who took over, and make the directory a new one. Raises `HoldfastError`."""
    replaced = found(path)
    if replaced is None:
        return
    directory = DataDirectory.open(path, node=node, now_ms=now_ms)
    try:
        if not replaced.is_given:
            given = await _give(directory, replaced)
            log.warning("gave_to_partner", partner=replaced.node, messages=given)
            note(path, msgspec.structs.replace(replaced, is_given=True))
        _begin_anew(directory, now_ms)
    finally:
        directory.close()


async def _give(directory: DataDirectory, replaced: Replaced) -> int:
    given = 0
    async with Client(f"http://{replaced.http}") as client:
        for topic, since in _gone_on_alone(directory):
            config = topic.config
            for number, first in since.items():
                path = directory.topics / topic.name / str(number)
                for messages in _messages(path, number, first):
                    await client.create_topic(
                        topic.name,
                        partitions=config.partitions,
                        retention_ms=config.retention_ms,
                        retention_bytes=config.retention_bytes,
                        exist_ok=True,
                    )
                    await client.publish_many(topic.name, messages, partition=number)
                    given += len(messages)
    return given


def _gone_on_alone(directory: DataDirectory) -> Iterator[tuple[Topic, dict[int, LogIndex]]]:
    """Topics, and for each of their partitions the first entry that was written without the other one."""
    journal, states = VoteJournal.open(directory.votes_file)
    journal.close()
    store, loaded = StateStore.open(
        directory.state_file, damaged_suffix=".damaged", on_failure=lambda error: None, may_salvage=False
    )
    store.close_now()
    me = replica_id(directory.identity.node, directory.life)
    for path in sorted(directory.topics.glob("*/topic.json")):
        described = msgspec.json.decode(path.read_bytes(), type=Topic)
        topic = loaded.topics.get(described.name)
        since: dict[int, LogIndex] = {}
        for number in range(described.config.partitions):
            stored = None if topic is None else states.get(group_of(topic, number))
            if topic is None:
                # So new that the state has not heard of it: it was made alone.
                since[number] = LogIndex(0)
            elif stored is not None:
                last = decode(stored).members[-1]
                if last.members.voters == {me}:
                    since[number] = LogIndex(last.since + 1)
            elif topic.voters == (me,):
                since[number] = LogIndex(0)
        yield described, since


def _messages(path: Path, number: int, since: LogIndex) -> Iterator[list[NewMessage]]:
    """The messages of a log from an entry on, each with an id that says where it stood."""
    partition_log, _ = PartitionLog.open(path)
    try:
        index = max(since, partition_log.first_index)
        while index <= partition_log.last_index:
            try:
                entries = partition_log.read_entries(index, _READ_BYTES, partition_log.last_index)
            except DamagedEntries as damage:
                log.error("damaged_and_lost", path=str(path), problem=damage.message)
                index = damage.next_index
                continue
            for entry in entries:
                if entry.kind == KIND_BATCH:
                    yield [
                        NewMessage(value=message.value, key=message.key, id=message.id, headers=message.headers)
                        for message in record_batch.decode(entry.payload, number, is_epoch_told=True)
                    ]
            index = LogIndex(index + len(entries))
    finally:
        partition_log.close()


def _begin_anew(directory: DataDirectory, now_ms: TimestampMs) -> None:
    directory.begin_new_life(now_ms)
    for path in (directory.topics, directory.control, directory.trash):
        shutil.rmtree(path, ignore_errors=True)
    for path in (directory.votes_file, *directory.path.glob("state.sqlite*")):
        path.unlink(missing_ok=True)
    sync_directory(directory.path)
    (directory.path / _FILE).unlink()
    sync_directory(directory.path)

"""After a split, one of a pair gives way: it gives the other one the messages that only it has, then begins anew as
its backup.

The terms of a partition's two logs tell where they part: an entry of the same number and term is the same on both, and
so is everything before it. What stands behind the last common entry is given, with ids, in batches. Before each batch,
this node reads the ids that the other one has stored since that entry, and leaves those out. So the other one's log
says how far the giving has come: giving may be interrupted anywhere, and go on at any later time. The other one's
dedupe window is needed only for what publishers send there while one batch is on its way.

`replaced.json` in the data directory says that this is to be done, and how far it is::

    {"node": "b", "http": "10.0.0.2:8090", "is_given": false}

Crash cases. It is written to a temporary name, synced and renamed before anything else happens.

- *while messages are given*: the next start gives what the other one does not have by then. `replaced-ids.sqlite` holds
  the ids of one partition meanwhile; a file that a crash left is deleted before it is used.
- *after `is_given` is true*: everything is with the other one. What is here is moved into `given/`, again if need be,
  and the file removed last. `cluster.json` stays: this node belongs to the same pair, with another disk.

If the other one cannot take it, because it is gone again, the file is removed and this node goes on as it was.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from holdfast.backends.cluster.hard_states import decode
from holdfast.model.cluster import GroupDescription
from holdfast.model.entries import KIND_BATCH
from holdfast.model.errors import HoldfastError, RemoteError
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.model.limits import MIB
from holdfast.model.messages import NewMessage
from holdfast.model.names import is_internal
from holdfast.model.topics import PartitionDescription, Topic
from holdfast.node.known_ids import KnownIds
from holdfast.storage.directory import DataDirectory
from holdfast.storage.durable import replace_file, sync_directory
from holdfast.storage.entries import DamagedEntries, base_offset_of
from holdfast.storage.log import PartitionLog
from holdfast.storage.votes import VoteJournal
from holdfast.wire import record_batch

if TYPE_CHECKING:
    from holdfast.client.client import Client

log = structlog.get_logger("holdfast.pair")

_FILE: Final = "replaced.json"
_GIVEN: Final = "given"
_IDS: Final = "replaced-ids.sqlite"
# On a message that had no id and was given: the epoch in which it was stored first.
_GIVEN_HEADER: Final = "holdfast-given"
_MADE_ID: Final = re.compile(r"[0-9]+-([0-9]{1,18})-[0-9]+")
_READ_BYTES: Final = 4 * MIB
# One call for so many messages, or for what was read at once.
_MESSAGES_AT_ONCE: Final = 1000
_PAUSE_S: Final = 1.0

Runs = Sequence[tuple[int, int]]


class Replaced(msgspec.Struct, frozen=True):
    """Who took over, where it serves, and whether it has everything from here."""

    node: str
    http: str
    is_given: bool = False


def note(directory: Path, replaced: Replaced) -> None:
    """Durable on return."""
    replace_file(directory / _FILE, msgspec.json.encode(replaced) + b"\n")
    sync_directory(directory)


def found(directory: Path) -> Replaced | None:
    """Whether this directory is to be given up."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=Replaced)
    except (FileNotFoundError, NotADirectoryError):
        return None


async def give_up(path: Path, node: str, now_ms: TimestampMs, patience_s: float) -> None:
    """Give what only this directory has to who took over, and make the directory a new one.

    Where that one does not take it within `patience_s`, everything stays as it is.
    """
    replaced = found(path)
    if replaced is None:
        return
    directory = DataDirectory.open(path, node=node, now_ms=now_ms)
    try:
        if not replaced.is_given:
            if not await _was_given(directory, replaced, patience_s):
                (path / _FILE).unlink()
                sync_directory(path)
                return
            note(path, msgspec.structs.replace(replaced, is_given=True))
        _begin_anew(directory, now_ms)
    finally:
        directory.close()


async def _was_given(directory: DataDirectory, replaced: Replaced, patience_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            given = await _give(directory, replaced)
        except (HoldfastError, OSError, sqlite3.Error) as error:
            is_over = loop.time() > deadline
            hint = "going on alone, as before" if is_over else "trying again"
            log.error("cannot_give", partner=replaced.node, problem=str(error), hint=hint)
            if is_over:
                return False
            await asyncio.sleep(_PAUSE_S)
        else:
            log.warning("gave_to_partner", partner=replaced.node, messages=given)
            return True


async def _give(directory: DataDirectory, replaced: Replaced) -> int:
    given = 0
    # Only who comes back needs it, and it would be a twentieth of every start.
    from holdfast.client.client import Client

    async with Client(f"http://{replaced.http}", timeout_s=5.0) as client:
        for path in sorted(directory.topics.glob("*/topic.json")):
            topic = msgspec.json.decode(path.read_bytes(), type=Topic)
            if is_internal(topic.name):
                # What transactions stored is given with its topics; what was only staged is staged again.
                continue
            config = topic.config
            described = await client.create_topic(
                topic.name,
                partitions=config.partitions,
                retention_ms=config.retention_ms,
                retention_bytes=config.retention_bytes,
                exist_ok=True,
            )
            groups = {group.partition: group for group in await client.groups(topic.name)}
            for number in range(config.partitions):
                # The other one may have made the topic itself, with fewer partitions: then two share one.
                to = described.partitions[number % len(described.partitions)]
                partition_log, _ = PartitionLog.open(path.parent / str(number))
                try:
                    given += await _give_partition(client, topic, partition_log, number, to, groups.get(number))
                finally:
                    partition_log.close()
    return given


async def _give_partition(
    client: Client,
    topic: Topic,
    partition_log: PartitionLog,
    number: int,
    to: PartitionDescription,
    theirs: GroupDescription | None,
) -> int:
    """Give the messages of one partition that the other one does not have; returns how many that were."""
    terms, last = ([], 0) if theirs is None else (theirs.terms, theirs.last_index)
    common = last_common(partition_log.term_runs(), partition_log.last_index, terms, LogIndex(last))
    if common >= partition_log.last_index:
        return 0  # nothing was stored here alone
    given = 0
    start = to.start_offset if to.partition != number else _offset_behind(partition_log, common)
    position = Offset(max(start, to.start_offset))
    with KnownIds(partition_log.directory.parents[2] / _IDS) as known:
        for messages in _messages(partition_log, common, number, {term for _, term in terms}):
            position = await _read_ids(client, topic, to.partition, position, known)
            missing = [message for message in messages if message.id not in known]
            if missing:
                await client.publish_many(topic.name, missing, partition=to.partition)
                given += len(missing)
    return given


def _offset_behind(partition_log: PartitionLog, common: LogIndex) -> Offset:
    """The offset of the first message behind the last common entry, on both sides; 0 if that is gone here."""
    if common + 1 < partition_log.first_index:
        return Offset(0)
    try:
        entries = partition_log.read_entries(LogIndex(common + 1), 1, partition_log.last_index)
    except DamagedEntries as damage:
        return Offset(damage.next_offset)
    return base_offset_of(entries[0])


async def _read_ids(client: Client, topic: Topic, partition: int, position: Offset, known: KnownIds) -> Offset:
    """Note the id of every message there that did not come without one; returns up to where."""
    end = (await client.describe(topic.name)).partitions[partition].end_offset
    while position < end:
        try:
            messages = await client.read(topic.name, partition, position, messages_max=_MESSAGES_AT_ONCE)
        except RemoteError as error:
            if error.next_offset is None or error.next_offset <= position:
                raise
            hint = "what it may have had there already is given"
            log.warning("partner_has_damage", topic=topic.name, offset=position, problem=error.message, hint=hint)
            position = Offset(error.next_offset)
            continue
        if not messages:
            break
        own = (each for each in messages if each.id != record_batch.default_id(partition, each.offset, None))
        known.add(message.id for message in own)
        position = Offset(messages[-1].offset + 1)
    return position


def last_common(own: Runs, own_last: LogIndex, theirs: Runs, their_last: LogIndex) -> LogIndex:
    """The last entry that is the same in two logs, given by their terms; -1 if there is none."""
    spans = {term: (first, end) for first, end, term in _spans(theirs, their_last)}
    common = LogIndex(-1)
    for first, end, term in _spans(own, own_last):
        if term in spans:
            both_end = min(end, spans[term][1])
            if both_end >= max(first, spans[term][0]):
                common = max(common, LogIndex(both_end))
    return common


def _spans(runs: Runs, last: LogIndex) -> Iterator[tuple[int, int, int]]:
    for place, (first, term) in enumerate(runs):
        yield first, runs[place + 1][0] - 1 if place + 1 < len(runs) else last, term


def _messages(
    partition_log: PartitionLog, common: LogIndex, number: int, their_terms: set[int]
) -> Iterator[list[NewMessage]]:
    """The messages behind the last common entry, each with an id: its own, or one that says where it stood."""
    messages: list[NewMessage] = []
    index = max(LogIndex(common + 1), partition_log.first_index)
    while index <= partition_log.last_index:
        try:
            entries = partition_log.read_entries(index, _READ_BYTES, partition_log.last_index)
        except DamagedEntries as damage:
            path = str(partition_log.directory)
            log.error("damaged_and_not_given", path=path, problem=damage.message, hint=f"it is kept in {_GIVEN}")
            index = damage.next_index
            continue
        for entry in entries:
            if entry.kind == KIND_BATCH:
                messages += _given(entry.payload, number, their_terms)
                if len(messages) >= _MESSAGES_AT_ONCE:
                    yield messages
                    messages = []
        if messages:
            yield messages
            messages = []
        index = LogIndex(index + len(entries))


def _given(batch: record_batch.Buffer, number: int, their_terms: set[int]) -> Iterator[NewMessage]:
    """The messages of a batch with ids, less those that came from the other one, where they stand without an id."""
    epoch = record_batch.header(batch).leader_epoch
    for message in record_batch.decode(batch, number, is_epoch_told=True):
        headers = list(message.headers)
        if message.id == record_batch.default_id(number, message.offset, epoch):
            headers.append((_GIVEN_HEADER, str(epoch).encode()))
        elif any(
            name == _GIVEN_HEADER and _is_of_epoch(message.id, value) and int(value) in their_terms
            for name, value in headers
        ):
            continue
        yield NewMessage(value=message.value, key=message.key, id=message.id, headers=headers)


def _is_of_epoch(message_id: str, epoch: bytes) -> bool:
    """Whether it is the id of a message without one (`default_id`). Publishers may use the header, too."""
    found = _MADE_ID.fullmatch(message_id)
    return found is not None and found[1].encode() == epoch


def _last_term(directory: DataDirectory) -> int:
    """The highest term of any group: what it wrote in it has ids that nothing else may have."""
    if not directory.votes_file.exists():
        return 0  # it was moved away already, and the floor is set
    journal, states = VoteJournal.open(directory.votes_file)
    journal.close()
    return max((decode(state).term for state in states.values()), default=Term(0))


def _begin_anew(directory: DataDirectory, now_ms: TimestampMs) -> None:
    """Everything is kept in `given` until the next time, should somebody want to look."""
    directory.begin_new_life(now_ms, term_floor=_last_term(directory))
    given = directory.path / _GIVEN
    if not given.exists():
        given.mkdir()
    for path in (directory.topics, directory.control, directory.votes_file, *directory.path.glob("state.sqlite*")):
        is_left = any(path.iterdir()) if path.is_dir() else path.exists()
        if is_left:  # not so in a second try, after a crash: then it was moved already
            kept = given / path.name
            if kept.is_dir():
                shutil.rmtree(kept)
            path.rename(kept)
    sync_directory(given)
    sync_directory(directory.path)
    (directory.path / _FILE).unlink()
    sync_directory(directory.path)

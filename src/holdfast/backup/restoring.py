"""A new broker out of a backup: a data directory with the same messages at the same offsets.

It is a cluster of one, with a cluster id and a life of its own: nobody may take it for the one that was backed up,
which may still run. Topics keep the time they were made at, batches every byte. Logs that do not begin at offset 0,
and the control log, begin behind an entry that is gone, as after retention: a node that joins is told where they begin,
and gets the state as a snapshot.

What was staged and not committed, and receipts for it, are gone. Writers keep their last numbers. Decisions go on
behind the last one that any batch is stamped with: stamps of before would be taken for newer ones otherwise, and
commits be lost.

Subscriptions that the cluster connects to come along with their cursors. What readers of numbered queues drew last does
not: nobody tells it. Nodes, members and who leads are never in a backup, so the state names nobody but this broker.

The lock of the directory is taken first and held to the end, so nobody else restores or serves there meanwhile. Crash
cases:

- *before `restoring` is there*: the directory has nothing but its lock, which counts as empty.
- *while it is there*: no broker starts (`storage/directory.py`). The next restore takes the lock, clears all but these
  two files, and begins again; whose the directory was to be is not looked at.
- *behind its removal*, the last step: everything is on the disk.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import uuid_utils

from holdfast.backends.cluster import formation, state
from holdfast.backends.cluster.formation import Formation
from holdfast.backends.cluster.state import Statement, StateStore
from holdfast.backends.cluster.topic_files import TopicFiles
from holdfast.backup.chunks import Row, as_disk_error, checked_row, read_bytes
from holdfast.backup.format import Manifest, PartitionBackup, TopicBackup
from holdfast.backup.verifying import found, verify
from holdfast.broker.queue_making import LAST_NUMBER, NUMBERS
from holdfast.consensus.replica_names import replica_id
from holdfast.model.callbacks import Callback
from holdfast.model.entries import KIND_BATCH, Entry
from holdfast.model.errors import BackupDamaged, BackupUnusable, DataDirectoryError, StorageFailed
from holdfast.model.ids import CursorName, LogIndex, Offset, Term, TimestampMs, TopicName, WriterName
from holdfast.model.limits import SEGMENT_BYTES_DEFAULT, TRANSACTION_PARTITIONS
from holdfast.model.names import DONE_CURSOR, callback_at, topic_name
from holdfast.model.topics import Topic, TopicConfig
from holdfast.storage.directory import LOCK, RESTORING, DataDirectory, take_lock
from holdfast.storage.durable import sync_directory, sync_file, write_file
from holdfast.storage.log import PartitionLog
from holdfast.storage.votes import VoteJournal
from holdfast.transactions import writers
from holdfast.wire.stamps import stamp_of
from holdfast.wire.transactions import DECISIONS, STAGED, partition_of

# Far above any number that the control log will give, as for topics of before there was one.
_FIRST_ID: Final = 1 << 50
_FIRST_TERM: Final = Term(1)
# Behind one entry that is gone.
_SECOND_INDEX: Final = LogIndex(2)


class Restored(msgspec.Struct, kw_only=True, frozen=True):
    directory: str
    node: str
    cluster: str
    backup_of: str
    topics: int
    messages: int
    bytes: int
    cursors: int
    writers: int
    subscriptions: int
    # Topics that were gone from the cluster when the backup was updated, and are here again.
    kept: list[str]
    # Topics made of what the backup has set aside, and how many stretches of partitions were not asked for.
    aside: list[str]
    aside_left: int


async def restore(
    backup: Path,
    data: Path,
    *,
    node: str,
    now_ms: Callable[[], TimestampMs],
    with_subscriptions: bool = True,
    with_aside: bool = False,
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> Restored:
    """Make the directory. Raises `BackupDamaged`, `BackupUnusable`, `DataDirectoryError`, `DiskFull`.

    `with_subscriptions`: the new broker connects to their receivers. `with_aside`: what the backup has set aside comes
    along as topics of other names.
    """
    manifest = found(backup)
    verified = verify(backup, lambda done, total: on_progress("verifying", done, total))
    if not verified.is_sound:
        first = verified.findings[0]
        raise BackupDamaged(
            f"{backup} is damaged, and nothing was restored: {first.file}: {first.problem}; all of it: holdfast backup "
            f"verify {backup}"
        )
    if not with_subscriptions:
        # Nobody would read through their cursors.
        cursors = [
            each for each in manifest.cursors if callback_at(TopicName(each.topic), CursorName(each.name)) is None
        ]
        manifest = msgspec.structs.replace(manifest, subscriptions=[], cursors=cursors)
    aside = _renamed(manifest) if with_aside else []
    total = sum(each.bytes for topic in (*manifest.topics, *aside) for each in topic.partitions)
    try:
        directory = _emptied(data, node, now_ms)
        try:
            restoration = _Restoration(backup, manifest, aside, directory, now_ms)
            made = await restoration.run(lambda done: on_progress("restoring", done, total))
            (data / RESTORING).unlink()
            sync_directory(data)
        finally:
            directory.close()
    except OSError as error:
        raise as_disk_error(data, error) from error
    return Restored(
        directory=str(data),
        node=node,
        cluster=made.cluster,
        backup_of=manifest.cluster,
        topics=len(manifest.topics) + len(aside),
        messages=manifest.messages + sum(topic.messages for topic in aside),
        bytes=total,
        cursors=len(manifest.cursors),
        writers=len(manifest.writers),
        subscriptions=len(manifest.subscriptions),
        kept=[topic.topic for topic in manifest.kept],
        aside=[topic.topic for topic in aside],
        aside_left=0 if with_aside else len(list(manifest.partitions_aside())),
    )


def _emptied(data: Path, node: str, now_ms: Callable[[], TimestampMs]) -> DataDirectory:
    """A new directory, locked and marked; what a restore that was cut off has left is thrown away."""
    if data.exists():
        _check_unused(data)  # before anything is written there
    lock_fd = take_lock(data)
    try:
        _check_unused(data)
        write_file(data / RESTORING, b"holdfast backup restore was cut off here; give the command again\n")
        sync_directory(data)
        for path in _contents(data):
            if path.name == RESTORING:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        sync_directory(data)
        now = now_ms()
    except BaseException:
        os.close(lock_fd)
        raise
    return DataDirectory.open(data, node=node, now_ms=now, restoring_lock_fd=lock_fd)


def _check_unused(data: Path) -> None:
    if _contents(data) and not (data / RESTORING).exists():
        raise BackupUnusable(f"{data} is not empty; a backup is restored to a new directory: name another with --data")


def _contents(data: Path) -> list[Path]:
    return [path for path in data.iterdir() if path.name not in ("lost+found", LOCK)]


def _renamed(manifest: Manifest) -> list[TopicBackup]:
    """What is set aside, under names that nobody has. Raises `BadTopicName` where the name is too long for that."""
    taken = {topic.topic for topic in manifest.topics}
    found = []
    for topic in manifest.aside:
        numbered = (f"{topic.topic}.aside-{number}" for number in itertools.count(1))
        name = topic_name(next(each for each in numbered if each not in taken))
        taken.add(name)
        found.append(msgspec.structs.replace(topic, topic=name))
    return found


class _Restoration:
    """One directory that is being filled."""

    def __init__(
        self,
        backup: Path,
        manifest: Manifest,
        aside: list[TopicBackup],
        directory: DataDirectory,
        now_ms: Callable[[], TimestampMs],
    ) -> None:
        self._backup = backup
        self._manifest = manifest
        self._aside = aside
        self._directory = directory
        self._now_ms = now_ms
        self._files = TopicFiles(directory, SEGMENT_BYTES_DEFAULT, now_ms)
        self._me = replica_id(directory.identity.node, directory.life)
        self._topics: list[Topic] = []
        # By coordinator, the last decision that a batch is stamped with.
        self._decisions: dict[int, int] = {}
        self._bytes = 0

    async def run(self, on_bytes: Callable[[int], None]) -> Formation:
        made = Formation(secrets.token_hex(8), {self._directory.identity.node: self._directory.life})
        for topic in (*self._manifest.topics, *self._aside):
            self._make(TopicName(topic.topic), topic.config, TimestampMs(topic.created_ms))
            for partition in topic.partitions:
                self._fill(topic, partition, on_bytes)
        decided = self._make_internal() if self._decisions or self._manifest.writers else {}
        if self._manifest.next_queue_number > 1:
            self._make(NUMBERS, TopicConfig(partitions=1), self._now_ms())
        self._begin_control_log()
        # No vote was given yet, which is something else than votes that are lost.
        VoteJournal.open(self._directory.votes_file)[0].close()
        await self._write_state(decided)
        # Last: with it this is a node of a cluster.
        formation.save(self._directory.path, made)
        return made

    def _make(self, name: TopicName, config: TopicConfig, created_ms: TimestampMs) -> None:
        topic = Topic(
            name=name,
            config=config,
            created_ms=created_ms,
            id=_FIRST_ID + len(self._topics) + 1,
            token=str(uuid_utils.uuid7()),
            voters=(self._me,),
        )
        self._files.make(topic)
        self._topics.append(topic)

    def _fill(self, topic: TopicBackup, partition: PartitionBackup, on_bytes: Callable[[int], None]) -> None:
        log = self._files.open_one(TopicName(topic.topic), partition.partition)
        try:
            position, epoch = partition.first, 0
            for file in partition.files:
                row = checked_row(read_bytes(self._backup, file.file, file.bytes), position, epoch)
                if log.last_index == 0 and position > 0:
                    log.reset(_SECOND_INDEX, Offset(position), Term(row.batches[0][0].leader_epoch))
                self._append(log, row)
                position, epoch = row.end, row.epoch
                self._bytes += file.bytes
                on_bytes(self._bytes)
            if not partition.files and position > 0:
                log.reset(_SECOND_INDEX, Offset(position), _FIRST_TERM)
        finally:
            log.close()

    def _append(self, log: PartitionLog, row: Row) -> None:
        entries = [Entry(Term(head.leader_epoch), KIND_BATCH, batch) for head, batch in row.batches]
        log.append_placed(log.checked(entries))
        for _, batch in row.batches:
            stamp = stamp_of(batch)
            if stamp is not None:
                before = self._decisions.get(stamp.coordinator, -1)
                self._decisions[stamp.coordinator] = max(before, stamp.decision)
        point = log.sync_point()
        try:
            for fd in point.files:
                sync_file(fd)
            if point.directory is not None:
                sync_directory(point.directory)
        except OSError as error:
            raise StorageFailed(f"cannot sync {log.directory}: {error.strerror}") from error
        log.synced(point)

    def _make_internal(self) -> dict[int, int]:
        """The topics of transactions; where each partition of decisions begins."""
        config = TopicConfig(partitions=TRANSACTION_PARTITIONS)
        for name in (STAGED, DECISIONS):
            self._make(name, config, self._now_ms())
        # At least 1: a writer's last decision has a place before it.
        begins = {number: self._decisions.get(number, 0) + 1 for number in range(TRANSACTION_PARTITIONS)}
        for number, offset in begins.items():
            log = self._files.open_one(DECISIONS, number)
            log.reset(_SECOND_INDEX, Offset(offset), _FIRST_TERM)
            log.close()
        return begins

    def _begin_control_log(self) -> None:
        log, _ = PartitionLog.open(self._directory.control)
        log.reset(_SECOND_INDEX, Offset(0), _FIRST_TERM)
        log.close()

    async def _write_state(self, decided: dict[int, int]) -> None:
        failed: list[StorageFailed] = []
        # Of the first level: a higher one is raised by the log, where a partner that is let in later finds it, too.
        store, _ = StateStore.open(
            self._directory.state_file, damaged_suffix=".damaged", on_failure=failed.append, may_salvage=False
        )
        try:
            await store.write(self._statements(decided))
        finally:
            await store.close()
        if failed:
            raise DataDirectoryError(failed[0].message)

    def _statements(self, decided: dict[int, int]) -> list[Statement]:
        rows = [state.topic_row(topic) for topic in self._topics]
        for cursor in self._manifest.cursors:
            rows += _cursor(cursor.topic, cursor.name, cursor.offsets)
        if decided:
            rows += _cursor(DECISIONS, DONE_CURSOR, decided)
        for each in self._manifest.writers:
            decision = decided[partition_of(WriterName(each.writer))] - 1
            name = WriterName(each.writer)
            restored = writers.restored(name, each.last_number, each.committed_ms, decision, each.contents)
            rows += _cursor(DECISIONS, *restored)
        if self._manifest.next_queue_number > 1:
            rows += _cursor(NUMBERS, LAST_NUMBER, {0: self._manifest.next_queue_number})
        rows += [
            state.callback_row(
                Callback(
                    topic=TopicName(each.topic),
                    name=CursorName(each.name),
                    address=each.callback,
                    format=each.format,
                    created_ms=TimestampMs(each.created_ms),
                    number=_FIRST_ID + place,
                )
            )
            for place, each in enumerate(self._manifest.subscriptions)
        ]
        return [*rows, state.applied_row(LogIndex(_SECOND_INDEX - 1), _FIRST_TERM)]


def _cursor(topic: str, name: str, offsets: dict[int, int]) -> list[Statement]:
    positions = {partition: Offset(offset) for partition, offset in offsets.items()}
    return state.cursor_rows((TopicName(topic), name), positions)  # type: ignore[arg-type]

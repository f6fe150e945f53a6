"""Making a backup of a running cluster: stored batches are fetched from any node, and from another when that is gone.

A few partitions are fetched at once. While one answer is written, and its sums are made, the next is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from holdfast.backup import format as backup_format
from holdfast.backup import keeping
from holdfast.backup.chunks import ChunkWriter, Row, as_disk_error, checked_row, read_whole
from holdfast.backup.format import (
    FILE_BYTES,
    MANIFEST,
    PART_SUFFIX,
    PLAN,
    SUFFIX,
    Manifest,
    PartitionBackup,
    StoredFile,
    TopicBackup,
    partition_directory,
)
from holdfast.backup.planning import plan
from holdfast.client.addresses import Addresses, parse_url
from holdfast.client.api import Api
from holdfast.client.limits import CALL_CONNECTIONS_MAX
from holdfast.client.pool import Pool
from holdfast.model.errors import (
    BackupDamaged,
    BackupUnusable,
    BadBatch,
    OffsetOutOfRange,
    RemoteError,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.limits import MIB
from holdfast.storage.directory import make_directory
from holdfast.wire import record_batch

T = TypeVar("T")

_PARTITIONS_AT_ONCE: Final = 4
_FETCH_BYTES: Final = 8 * MIB
# A call is tried again for so long, at one node after the other.
_PATIENCE_S: Final = 60.0
_WAIT_S: Final = 1.0
_PAUSE_S: Final = 0.1


class Progress(Protocol):
    """Told while messages come: how many there are to be, and how many have come with how many bytes."""

    def __call__(self, *, messages: int, of: int, fetched_bytes: int) -> None: ...


class _Gone(Exception):
    """The topic was deleted while it was fetched."""


class _Expired(Exception):
    """What was to come next was deleted by retention."""


async def create(
    server: str,
    directory: Path,
    *,
    topics: Sequence[str] | None,
    update: bool,
    prune: bool = False,
    now_ms: Callable[[], int],
    on_progress: Progress,
    on_found: Callable[[Manifest], None] = lambda begun: None,
) -> Manifest:
    """Make a backup, go on with one that was cut off, or bring one up to date. Raises `HoldfastError`.

    An update with `prune` gives up what the cluster does not have any more. `on_found` is told of a backup that was
    begun before, and is finished now as of then.
    """
    pool = Pool(Addresses(parse_url(server)), CALL_CONNECTIONS_MAX)
    api = Api(pool, _PATIENCE_S)
    try:
        with _held(directory):
            begun = _found(directory, topics, update=update, prune=prune)
            if begun is not None:
                await _check_cluster(api, directory, begun)
                on_found(begun)
            else:
                begun = await _begun(api, directory, topics, update=update, prune=prune, now_ms=now_ms)
            if begun.finished_ms is not None:
                return begun
            before = backup_format.load(directory)
            fetched = await _Creation(api, directory, begun, on_progress).run()
            finished = keeping.completed(begun, fetched, before, now_ms())
            finished = msgspec.structs.replace(finished, finished_ms=now_ms())
            with _disk_errors(directory):
                backup_format.save(directory, MANIFEST, finished)
                (directory / PLAN).unlink()
                _remove_unnamed(directory, finished)
            return finished
    finally:
        await pool.close()


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """For one process at a time."""
    with _disk_errors(directory):
        make_directory(directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupUnusable(f"another process is making a backup in {directory}") from None
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_disk_error(directory, error) from error


def _found(directory: Path, topics: Sequence[str] | None, *, update: bool, prune: bool) -> Manifest | None:
    """The plan that is there, if it is one for this call; or the manifest, where only the end was missing."""
    manifest = backup_format.load(directory)
    planned = _plan_found(directory, is_needed=manifest is None)
    if planned is None:
        return None
    if manifest is not None and manifest.revision >= planned.revision:
        (directory / PLAN).unlink()
        return None if update else manifest
    if topics is not None and sorted(set(topics)) != planned.chosen:
        raise BackupUnusable(
            f"{directory} has an unfinished backup of {', '.join(planned.chosen or ['all topics'])}; go on with it "
            "without --topic, or name another directory"
        )
    if prune and not planned.is_pruning:
        raise BackupUnusable(f"{directory} has an unfinished backup that keeps all; go on with it without --prune")
    if manifest is not None and planned.is_pruning and not prune:
        raise BackupUnusable(
            f"{directory} has an unfinished update that gives up what the cluster has no more; go on with it by "
            f"--update --prune, or delete {directory / PLAN} to keep all"
        )
    return planned


def _plan_found(directory: Path, *, is_needed: bool) -> Manifest | None:
    try:
        return backup_format.load(directory, PLAN)
    except BackupDamaged as error:
        todo = (
            "name another directory"
            if is_needed
            else "the backup that is there does not need it: delete the file and update again"
        )
        raise BackupDamaged(f"{error.message}; {todo}") from error


async def _check_cluster(api: Api, directory: Path, begun: Manifest) -> None:
    if begun.finished_ms is None and (await api.cluster()).cluster != begun.cluster:
        raise BackupUnusable(f"{directory} has an unfinished backup of another cluster; name another directory")


async def _begun(
    api: Api, directory: Path, topics: Sequence[str] | None, *, update: bool, prune: bool, now_ms: Callable[[], int]
) -> Manifest:
    """A new plan."""
    manifest = backup_format.load(directory)
    chosen = None if topics is None else sorted(set(topics))
    if manifest is not None and not update:
        raise BackupUnusable(f"{directory} has a backup already; bring it up to date with --update, or name another")
    if manifest is None and _has_files(directory):
        raise BackupUnusable(f"{directory} is not empty, and holds no backup; name another directory")
    if manifest is not None and chosen not in (None, manifest.chosen):
        raise BackupUnusable(
            f"{directory} is a backup of {', '.join(manifest.chosen or ['all topics'])}; update it without --topic, or "
            "name another directory"
        )
    made = await plan(
        api,
        chosen if manifest is None else manifest.chosen,
        manifest,
        now_ms,
        must_be_there=chosen or (),
        is_pruning=prune,
    )
    with _disk_errors(directory):
        backup_format.save(directory, PLAN, made)
    return made


def _has_files(directory: Path) -> bool:
    """But for a plan that was never whole."""
    return any(path.name != f"{PLAN}.tmp" for path in directory.iterdir())


def _remove_unnamed(directory: Path, manifest: Manifest) -> None:
    named = {directory / file.file for _, _, file in manifest.files()}
    for path in (directory / backup_format.TOPICS).glob(f"*/*/*{SUFFIX}*"):
        if path not in named:
            path.unlink()


class _Creation:
    """Fetches what a plan names."""

    def __init__(self, api: Api, directory: Path, planned: Manifest, on_progress: Progress) -> None:
        self._api = api
        self._directory = directory
        self._plan = planned
        self._on_progress = on_progress
        self._slots = asyncio.Semaphore(_PARTITIONS_AT_ONCE)
        self._messages = self._bytes = 0

    async def run(self) -> list[TopicBackup | None]:
        """The topics of the plan with all their files; nothing for one that is gone."""
        return await _all(self._fetch_topic(topic) for topic in self._plan.topics)

    async def _fetch_topic(self, topic: TopicBackup) -> TopicBackup | None:
        try:
            partitions = await _all(self._fetch(topic, each) for each in topic.partitions)
        except _Gone:
            return None
        return msgspec.structs.replace(topic, partitions=partitions)

    async def _fetch(self, topic: TopicBackup, partition: PartitionBackup) -> PartitionBackup:
        async with self._slots:
            files, first = await asyncio.to_thread(self._files_there, topic, partition), partition.first
            deadline_s: float | None = None
            while True:
                position = files[-1].end if files else first
                self._tell(sum(each.end - each.first for each in files), 0)
                try:
                    files += await self._fetch_from(topic, partition, position)
                except _Expired:
                    # What retention has deleted cannot be fetched: from here on the partition begins behind that.
                    first = min(await self._earliest(topic, partition.partition), partition.end)
                    if first <= position:
                        # Another node says so, and this one still has it.
                        now_s = asyncio.get_running_loop().time()
                        deadline_s = deadline_s or now_s + _PATIENCE_S
                        if now_s > deadline_s:
                            raise _not_given(topic, partition.partition, position) from None
                        await asyncio.sleep(_PAUSE_S)
                        first = files[0].first if files else position
                    else:
                        files = []
                    continue
                first = files[0].first if files else first
                return msgspec.structs.replace(partition, first=first, files=files)

    async def _earliest(self, topic: TopicBackup, partition: int) -> int:
        try:
            described = await self._api.describe(topic.topic)
            # What is beyond the end of another topic of that name did not expire.
            if described.created_ms == topic.created_ms:
                return await self._api.offset_at(topic.topic, partition, "earliest")
        except RemoteError as error:
            if error.code != TopicNotFound.code:
                raise
        raise _Gone

    def _files_there(self, topic: TopicBackup, partition: PartitionBackup) -> list[StoredFile]:
        """Those an update takes over, and those that were whole when an earlier try was cut off."""
        with _disk_errors(self._directory):
            where = self._directory / partition_directory(topic, partition.partition)
            for left in where.glob(f"*{PART_SUFFIX}"):
                left.unlink()
        files = list(partition.files)
        position, epoch = (files[-1].end if files else partition.first), 0
        while position < partition.end:
            try:
                file, epoch = read_whole(self._directory, topic, partition.partition, position, epoch)
            except BackupDamaged:
                break  # not there, or not as it was: it is fetched again
            if not position < file.end <= partition.end:
                break
            files.append(file)
            position = file.end
        return files

    async def _fetch_from(self, topic: TopicBackup, partition: PartitionBackup, position: int) -> list[StoredFile]:
        files: list[StoredFile] = []
        writer: ChunkWriter | None = None
        epoch = 0
        try:
            coming = self._ask(topic, partition, position)
            while position < partition.end:
                data = await coming
                at = position
                row, taken = _wanted(data, position, partition.end, epoch)
                position, epoch = row.end, row.epoch
                coming = self._ask(topic, partition, position)
                if writer is None:
                    writer = ChunkWriter(self._directory, topic, partition.partition, at)
                await asyncio.to_thread(writer.write, row, taken)
                self._tell(sum(head.record_count for head, _ in row.batches), len(taken))
                if writer.bytes >= FILE_BYTES or position >= partition.end:
                    files.append(await asyncio.to_thread(writer.finish))
                    writer = None
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            if writer is not None:
                writer.give_up()
        return files

    def _ask(self, topic: TopicBackup, partition: PartitionBackup, position: int) -> asyncio.Task[bytes]:
        if position >= partition.end:
            return asyncio.create_task(_nothing())
        return asyncio.create_task(self._answer(topic, partition.partition, position))

    async def _answer(self, topic: TopicBackup, partition: int, position: int) -> bytes:
        deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                stored = await self._api.stored(topic.topic, partition, position, _FETCH_BYTES, _WAIT_S)
            except RemoteError as error:
                if error.code == TopicNotFound.code:
                    raise _Gone from error
                if error.code == OffsetOutOfRange.code:
                    raise _Expired from error
                raise
            if stored.created_ms != topic.created_ms:
                raise _Gone
            if stored.batches:
                return stored.batches
            if asyncio.get_running_loop().time() > deadline_s:
                raise _not_given(topic, partition, position)

    def _tell(self, messages: int, fetched_bytes: int) -> None:
        self._messages += messages
        self._bytes += fetched_bytes
        self._on_progress(
            messages=min(self._messages, self._plan.messages), of=self._plan.messages, fetched_bytes=self._bytes
        )


def _not_given(topic: TopicBackup, partition: int, position: int) -> Unavailable:
    return Unavailable(
        f"no node gives what {topic.topic}/{partition} holds from offset {position} on; give the same command again "
        "when all nodes are there"
    )


async def _nothing() -> bytes:
    return b""


async def _all(work: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Everything at once; where one of them fails, the others are stopped before that is told."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _wanted(data: bytes, position: int, end: int, epoch: int) -> tuple[Row, memoryview]:
    """The batches of an answer that belong to a backup, checked."""
    size = 0
    try:
        for batch in record_batch.split_batches(data):
            if record_batch.header(batch).base_offset >= end:
                break
            size += len(batch)
        taken = memoryview(data)[:size]
        row = checked_row(taken, position, epoch)
    except BadBatch as error:
        raise Unavailable(f"a node gave batches that are not sound: {error.message}") from error
    if not row.batches or row.end > end:
        raise Unavailable(f"a node gave messages up to {row.end}, where {end} was the end")
    return row, taken

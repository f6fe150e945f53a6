"""What a backup is on the disk.

::

    manifest.json                          what is in it, with a sum of every file and of itself; without it there is
                                           no backup
    plan.json                              what is being fetched, while that is so
    topics/<topic>@<created_ms>/<partition>/<first offset, 20 digits>.batches
                                           record batches as they are stored, one behind the other, without a gap
    topics/…/….part                        one that is being written

A topic that was made anew under its old name has another time of its making, so it never has another's files. A file of
batches has about 64 MiB at most, and more only by what one answer of a broker has. `manifest.json` and
`plan.json` are a `Manifest` as JSON; in a plan, only those files are named that an update takes over.

Crash cases:

- *before the plan*: the directory is empty, or new.
- *while fetching*: there is a plan. Files with their final name are whole: they were synced before they got it. They
  are read again when the backup is gone on with; a `.part` is thrown away.
- *behind the last file, before the manifest*: as before; there is nothing left to fetch.
- *between the manifest and the removal of the plan*: the manifest is as new as the plan and counts; the plan is
  removed the next time.
- *while updating*: the old manifest stands until the new one takes its place, and with it the old backup. Files that
  the new one does not name are deleted afterwards. Those that nobody names are left over, and do no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from holdfast.model import names
from holdfast.model.errors import BackupDamaged, BackupUnusable, HoldfastError
from holdfast.model.limits import MIB
from holdfast.model.topics import TopicConfig
from holdfast.storage.durable import replace_file, sync_directory

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
PLAN: Final = "plan.json"
TOPICS: Final = "topics"
SUFFIX: Final = ".batches"
PART_SUFFIX: Final = ".part"
# Of one file: what a backup that was cut off fetches again at most, for each partition that was being fetched.
FILE_BYTES: Final = 64 * MIB


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """Messages from `first` up to, not including, `end`."""

    file: str
    first: int
    end: int
    bytes: int
    sha256: str


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    first: int
    end: int
    files: list[StoredFile] = []

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class TopicBackup(msgspec.Struct, frozen=True, kw_only=True):
    """`created_ms` tells a topic from another of its name."""

    topic: str
    created_ms: int
    retention_ms: int | None
    retention_bytes: int | None
    partitions: list[PartitionBackup]

    @property
    def config(self) -> TopicConfig:
        return TopicConfig(
            partitions=len(self.partitions), retention_ms=self.retention_ms, retention_bytes=self.retention_bytes
        )


class CursorBackup(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    name: str
    offsets: dict[int, int]


class WriterBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A writer of transactions, with the last number it has committed."""

    writer: str
    last_number: int
    committed_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`finished_ms` is null in a plan. `chosen` are the topics that were asked for; null is all."""

    format: int = FORMAT
    cluster: str
    version: str
    begun_ms: int
    finished_ms: int | None = None
    chosen: list[str] | None = None
    # Whether no transaction was under way when the ends were taken, so that none is here in part.
    is_between_transactions: bool = True
    topics: list[TopicBackup]
    cursors: list[CursorBackup]
    writers: list[WriterBackup]
    sha256: str = ""

    @property
    def messages(self) -> int:
        return sum(each.end - each.first for topic in self.topics for each in topic.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for topic in self.topics for each in topic.partitions)

    def partitions(self) -> Iterator[tuple[TopicBackup, PartitionBackup]]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield topic, partition

    def files(self) -> Iterator[tuple[TopicBackup, PartitionBackup, StoredFile]]:
        for topic, partition in self.partitions():
            for file in partition.files:
                yield topic, partition, file


class _Head(msgspec.Struct):
    format: int


def partition_directory(topic: TopicBackup, partition: int) -> Path:
    return Path(TOPICS) / f"{names.topic_name(topic.topic)}@{topic.created_ms}" / str(partition)


def file_name(topic: TopicBackup, partition: int, first: int) -> str:
    return str(partition_directory(topic, partition) / f"{first:020d}{SUFFIX}")


def save(directory: Path, name: str, manifest: Manifest) -> None:
    """Durable on return, name included."""
    content = msgspec.json.encode(msgspec.structs.replace(manifest, sha256=_sum(manifest)))
    replace_file(directory / name, msgspec.json.format(content, indent=1) + b"\n")
    sync_directory(directory)


def load(directory: Path, name: str = MANIFEST) -> Manifest | None:
    """What a directory says it has; `None` where there is no such file. Raises `BackupDamaged`, `BackupUnusable`."""
    file = directory / name
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BackupUnusable(f"cannot read {file}: {error.strerror}") from error
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.format != FORMAT:
            raise BackupUnusable(
                f"{directory} is a backup of format {head.format}, this version reads {FORMAT}; use the version of "
                "holdfast that made it, or a newer one"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
        _check(manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupDamaged(f"{file} is damaged: {error}") from error
    except BackupUnusable:
        raise
    except HoldfastError as error:
        raise BackupDamaged(f"{file} is damaged: {error.message}") from error
    return manifest


def _sum(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, sha256=""))).hexdigest()


def _check(manifest: Manifest) -> None:
    """Raises where the manifest is not as it was written, or says what cannot be: names become paths."""
    if manifest.sha256 != _sum(manifest):
        raise BackupDamaged("its sum does not match what it says")
    for topic in manifest.topics:
        names.topic_name(topic.topic)
        topic.config.checked()
        if [each.partition for each in topic.partitions] != list(range(len(topic.partitions))):
            raise BackupDamaged(f"the partitions of {topic.topic} are not numbered from 0 on")
    for topic, partition, file in manifest.files():
        if file.file != file_name(topic, partition.partition, file.first):
            raise BackupDamaged(f"{file.file!a} is no name of a file of {topic.topic}/{partition.partition}")
    for cursor in manifest.cursors:
        names.topic_name(cursor.topic)
        names.cursor_name(cursor.name)
    for writer in manifest.writers:
        names.writer_name(writer.writer)

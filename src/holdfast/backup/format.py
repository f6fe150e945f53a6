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
`plan.json` are a `Manifest` as JSON; in a plan, only those files are named that an update takes over. Their `sha256` is
that of all their bytes with itself left out: what a later version adds is covered, and is passed over by this one. It
is so in every format, so that a damaged `format` is not taken for a newer one.

An update keeps every file that the backup has, unless it is told to prune. A topic that is gone from the cluster stays
among `topics`, with `gone_ms`. What cannot be joined on to what the cluster has now is named in `aside`: a topic that
was made anew under the same name, or a partition whose next messages retention has deleted before they were fetched.

Crash cases:

- *before the plan*: the directory is empty, or new.
- *while fetching*: there is a plan. Files with their final name are whole: they were synced before they got it. They
  are read again when the backup is gone on with; a `.part` is thrown away.
- *behind the last file, before the manifest*: as before; there is nothing left to fetch.
- *between the manifest and the removal of the plan*: the manifest is of the plan's `revision` and counts; the plan is
  removed the next time.
- *while updating*: the old manifest stands until the new one takes its place, and with it the old backup. Files that
  the new one does not name, which is only so after pruning, are deleted afterwards. Those that nobody names are left
  over, and do no harm.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from holdfast.broker.callback_addresses import parse_callback_address
from holdfast.model import names
from holdfast.model.callbacks import CallbackFormat
from holdfast.model.errors import BackupDamaged, BackupUnusable, HoldfastError
from holdfast.model.ids import CursorName, TopicName
from holdfast.model.limits import MIB, NUMBER_MAX
from holdfast.model.topics import TopicConfig
from holdfast.model.transactions import Contents
from holdfast.storage.durable import replace_file, sync_directory

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
PLAN: Final = "plan.json"
TOPICS: Final = "topics"
SUFFIX: Final = ".batches"
PART_SUFFIX: Final = ".part"
_SUM_LENGTH: Final = 64
# Of one file: what a backup that was cut off fetches again at most, for each partition that was being fetched.
FILE_BYTES: Final = 64 * MIB
# A file is read as a whole: more than one answer beyond the above is not what this or a later version has written.
FILE_BYTES_MAX: Final = 4 * FILE_BYTES

# What a state, a log and a cursor can keep: times, offsets, bytes and numbers.
Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
FileBytes = Annotated[int, msgspec.Meta(ge=0, le=FILE_BYTES_MAX)]


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """Messages from `first` up to, not including, `end`."""

    file: str
    first: Number
    end: Number
    bytes: FileBytes
    sha256: str


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True):
    partition: Number
    first: Number
    end: Number
    files: list[StoredFile] = []

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class TopicBackup(msgspec.Struct, frozen=True, kw_only=True):
    """`created_ms` tells a topic from another of its name. `gone_ms`: an update found it gone, and kept it."""

    topic: str
    created_ms: Number
    retention_ms: Number | None
    retention_bytes: Number | None
    partitions: list[PartitionBackup]
    gone_ms: Number | None = None

    @property
    def messages(self) -> int:
        return sum(file.end - file.first for each in self.partitions for file in each.files)

    @property
    def config(self) -> TopicConfig:
        return TopicConfig(
            partitions=len(self.partitions), retention_ms=self.retention_ms, retention_bytes=self.retention_bytes
        )


class CursorBackup(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    name: str
    offsets: dict[Number, Number]


class WriterBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A writer of transactions, with the last number it has committed."""

    writer: str
    last_number: Number
    committed_ms: Number
    contents: Contents | None = None


class SubscriptionBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver that the cluster connects to. Where it stands is among the cursors."""

    topic: str
    name: str
    callback: str
    format: CallbackFormat
    created_ms: Number


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`finished_ms` is null in a plan. `chosen` are the topics that were asked for; null is all.

    `revision` counts the updates, and tells a plan that is done from one that is not. `left_out` are topics that were
    deleted while they were fetched, and those that pruning has taken.
    """

    format: int = FORMAT
    cluster: str
    version: str
    revision: Number = 1
    begun_ms: Number
    finished_ms: Number | None = None
    chosen: list[str] | None = None
    # Whether no transaction was under way when the ends were taken, so that each is here with its number or not at all.
    is_between_transactions: bool = True
    # Whether this update gives up what the cluster does not have any more.
    is_pruning: bool = False
    left_out: list[str] = []
    topics: list[TopicBackup]
    aside: list[TopicBackup] = []
    cursors: list[CursorBackup]
    subscriptions: list[SubscriptionBackup] = []
    writers: list[WriterBackup]
    # The number that the next numbered queue gets, also where the last one was deleted.
    next_queue_number: Number = 1
    sha256: str = ""

    @property
    def messages(self) -> int:
        return sum(each.end - each.first for topic in self.topics for each in topic.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for topic in self.topics for each in topic.partitions)

    @property
    def kept(self) -> list[TopicBackup]:
        return [topic for topic in self.topics if topic.gone_ms is not None]

    def partitions(self) -> Iterator[tuple[TopicBackup, PartitionBackup]]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield topic, partition

    def partitions_aside(self) -> Iterator[tuple[TopicBackup, PartitionBackup]]:
        """Those of them that hold anything."""
        for topic in self.aside:
            for partition in topic.partitions:
                if partition.files:
                    yield topic, partition

    def files(self) -> Iterator[tuple[TopicBackup, PartitionBackup, StoredFile]]:
        """All, also those that are set aside."""
        for topic, partition in itertools.chain(self.partitions(), self.partitions_aside()):
            for file in partition.files:
                yield topic, partition, file


class _Head(msgspec.Struct):
    format: int
    sha256: str = ""


def partition_directory(topic: TopicBackup, partition: int) -> Path:
    return Path(TOPICS) / f"{names.path_part(names.topic_name(topic.topic))}@{topic.created_ms}" / str(partition)


def file_name(topic: TopicBackup, partition: int, first: int) -> str:
    return str(partition_directory(topic, partition) / f"{first:020d}{SUFFIX}")


def save(directory: Path, name: str, manifest: Manifest) -> None:
    """Durable on return, name included."""
    unsummed = msgspec.json.encode(msgspec.structs.replace(manifest, sha256=""))
    content = msgspec.json.format(unsummed, indent=1) + b"\n"
    before, blank, behind = content.rpartition(b'"sha256": "')
    total = hashlib.sha256(content).hexdigest().encode()
    replace_file(directory / name, before + blank + total + behind)
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
        _check_sum(content, head.sha256)
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


def _check_sum(content: bytes, told: str) -> None:
    summed = told.encode()
    if len(summed) != _SUM_LENGTH or content.count(summed) != 1:
        raise BackupDamaged("it has no sum of itself")
    if hashlib.sha256(content.replace(summed, b"")).hexdigest() != told:
        raise BackupDamaged("its sum does not match what it says")


def _check(manifest: Manifest) -> None:
    """Raises where the manifest says what cannot be, whoever wrote it: names become paths, and rows of a new state."""
    for topic in (*manifest.topics, *manifest.aside):
        names.topic_name(topic.topic)
        topic.config.checked()
        if [each.partition for each in topic.partitions] != list(range(len(topic.partitions))):
            raise BackupDamaged(f"the partitions of {topic.topic} are not numbered from 0 on")
    for topic, partition in itertools.chain(manifest.partitions(), manifest.partitions_aside()):
        if not 0 <= partition.first <= partition.end:
            raise BackupDamaged(f"{topic.topic}/{partition.partition} ends before it begins")
    for topic, partition, file in manifest.files():
        if file.file != file_name(topic, partition.partition, file.first):
            raise BackupDamaged(f"{file.file!a} is no name of a file of {topic.topic}/{partition.partition}")
    _check_single("topic", [topic.topic for topic in manifest.topics])
    _check_single("file", [file.file for _, _, file in manifest.files()])
    _check_readers(manifest)
    for writer in manifest.writers:
        names.writer_name(writer.writer)
    _check_single("writer", [each.writer for each in manifest.writers])
    if manifest.next_queue_number < 1:
        raise BackupDamaged(f"no queue can get the number {manifest.next_queue_number}")


def _check_readers(manifest: Manifest) -> None:
    known = {topic.topic for topic in manifest.topics}
    places, subscribed = callback_places(manifest.cursors), {(each.topic, each.name) for each in manifest.subscriptions}
    for topic, name in sorted(places ^ subscribed):
        missing = "cursor" if (topic, name) in subscribed else "subscription"
        raise BackupDamaged(f"the callback {name!a} of {topic!a} has no {missing}")
    read = [(each.topic, each.name) for each in manifest.cursors]
    read += [(each.topic, each.name) for each in manifest.subscriptions]
    for topic, name in read:
        if topic not in known:
            raise BackupDamaged(f"{name!a} reads {topic!a}, and there is no such topic in it")
    for cursor in manifest.cursors:
        names.place_name(cursor.name)
    for subscription in manifest.subscriptions:
        names.cursor_name(subscription.name)
        parse_callback_address(subscription.callback)
    _check_single("cursor", [f"{each.topic}/{each.name}" for each in manifest.cursors])
    _check_single("subscription", [f"{each.topic}/{each.name}" for each in manifest.subscriptions])


def callback_places(cursors: Iterable[CursorBackup]) -> set[tuple[str, str]]:
    """Topic and name of every subscription that stands at one of these cursors."""
    found = (names.callback_at(TopicName(each.topic), CursorName(each.name)) for each in cursors)
    return {each for each in found if each is not None}


def _check_single(what: str, found: list[str]) -> None:
    if len(set(found)) != len(found):
        twice = next(each for each in found if found.count(each) > 1)
        raise BackupDamaged(f"the {what} {twice} is named twice")

"""Files of record batches: written, and read back with every byte checked. The crash cases stand in `format.py`."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from holdfast.backup.format import FILE_BYTES_MAX, PART_SUFFIX, StoredFile, TopicBackup, file_name
from holdfast.model.errors import BackupDamaged, BadBatch, DiskFull, HoldfastError, StorageFailed
from holdfast.storage.durable import sync_directory, sync_file
from holdfast.wire import record_batch
from holdfast.wire.record_batch import BatchHeader

_MAGIC = 2


class Row(NamedTuple):
    """Batches that join on to each other."""

    batches: list[tuple[BatchHeader, memoryview]]
    end: int
    epoch: int


def checked_row(data: bytes | bytearray | memoryview, first: int, epoch: int) -> Row:
    """Batches that stand one behind the other and go on at `first`, of leaders from `epoch` on. Raises `BadBatch`."""
    found = []
    for batch in record_batch.split_batches(data):
        head = record_batch.header(batch)
        where = f"the batch at offset {first}"
        if head.magic != _MAGIC or head.last_offset_delta != head.record_count - 1 or head.record_count < 1:
            raise BadBatch(f"{where} contradicts itself")
        if not record_batch.crc_matches(batch, head):
            raise BadBatch(f"{where} does not match its CRC32C")
        if head.base_offset != first:
            raise BadBatch(f"offset {first} is missing: a batch begins at {head.base_offset} there")
        if head.leader_epoch < epoch:
            raise BadBatch(f"{where} is of leader epoch {head.leader_epoch}, behind one of {epoch}")
        found.append((head, batch))
        first, epoch = head.next_offset, head.leader_epoch
    return Row(found, first, epoch)


class ChunkWriter:
    """One file that grows, and gets its name when it is whole. Not thread-safe: one call at a time."""

    def __init__(self, root: Path, topic: TopicBackup, partition: int, first: int) -> None:
        self.first = self.end = first
        self.bytes = 0
        self._root = root
        self._name = file_name(topic, partition, first)
        self._path = root / (self._name + PART_SUFFIX)
        self._sum = hashlib.sha256()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)  # `finish` has their names synced
            self._file = self._path.open("w+b")
        except OSError as error:
            raise as_disk_error(root, error) from error

    def write(self, row: Row, data: memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise as_disk_error(self._root, error) from error
        self._sum.update(data)
        self.bytes += len(data)
        self.end = row.end

    def finish(self) -> StoredFile:
        """Durable on return, with its name and those of the directories it is in."""
        try:
            self._file.flush()
            sync_file(self._file.fileno())
            self._file.close()
            self._path.rename(self._root / self._name)
            for directory in (self._path.parent, *self._path.parent.parents):
                sync_directory(directory)
                if directory == self._root:
                    break
        except OSError as error:
            raise as_disk_error(self._root, error) from error
        return StoredFile(
            file=self._name, first=self.first, end=self.end, bytes=self.bytes, sha256=self._sum.hexdigest()
        )

    def give_up(self) -> None:
        """What was written is worth nothing."""
        try:
            self._file.close()
        except OSError:
            return  # the disk is full: the rest of a buffer had no room, which was told before
        finally:
            self._path.unlink(missing_ok=True)


def read_whole(
    root: Path, topic: TopicBackup, partition: int, first: int, epoch: int, bytes_max: int = FILE_BYTES_MAX
) -> tuple[StoredFile, int]:
    """A file that has its name, described; and the last leader's epoch. Raises `BackupDamaged`."""
    name = file_name(topic, partition, first)
    data = read_bytes(root, name, bytes_max)
    try:
        row = checked_row(data, first, epoch)
    except BadBatch as error:
        raise BackupDamaged(f"{name}: {error.message}") from error
    described = StoredFile(
        file=name, first=first, end=row.end, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
    )
    return described, row.epoch


def read_bytes(root: Path, name: str, bytes_max: int) -> bytes:
    """Raises `BackupDamaged` for a file that is missing, cannot be read or is larger than it may be."""
    try:
        there = (root / name).stat()
        if not stat.S_ISREG(there.st_mode):
            raise BackupDamaged(f"{name}: this is no file")
        if there.st_size > bytes_max:
            raise BackupDamaged(f"{name}: it has {there.st_size} bytes, and at most {bytes_max} belong there")
        return (root / name).read_bytes()
    except OSError as error:
        raise BackupDamaged(f"{name}: {os.strerror(error.errno or 0)}") from error


def as_disk_error(root: Path, error: OSError) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the disk of {root} is full; make room and give the same command again")
    return StorageFailed(f"cannot write to {root}: {error.strerror}")

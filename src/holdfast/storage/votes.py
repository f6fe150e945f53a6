"""The journal of votes: for every group a node is in, what it must never forget, the vote it gave above all.

One file for all groups, `votes.log`: `"HFVOTES1"`, then records one behind the other. Big-endian::

    magic     u16   0   "HV"
    kind      u16   2   1: a group's state · 2: a group is forgotten · 3: a mark, which only says `synced`
    crc       u32   4   CRC32C of the record's position (u64), the 4 bytes above and everything below
    group     u64   8
    synced    u64  16   how far this file was known to be synced when the record was written
    length    u32  24   bytes of the state
    state          28   term, vote and whatever else its group must remember: bytes, for all this file knows

The last record of a group counts. The file is written anew, with one record per group and a mark, when it is
opened and when most of it is out of date: to `votes.log.tmp`, which is synced and renamed, and so is its name.

**A vote that was given must never be forgotten**, or a node votes twice in one term and a group has two leaders.
So a journal that cannot be trusted is not read as far as it goes; it is refused with `VotesDamaged`, and the caller
must not vote as if nothing had happened. Crash cases:

- *while putting*: what is behind the last sync may be anything: half a record, zeros, or a hole with whole records
  behind it. None of that was promised, and it is cut off. Records before it that are whole may stay.
- *never so*: a bad record at a place that was synced when a later one was written. `synced` tells the two apart, as
  it does in a segment (`frames.py`). The mark vouches for a file that was written anew, and for one closed in peace.
- *while writing anew*: the old file, or the new one; a temporary file beside it is deleted.
- *no file* is a new node. Whoever knows better says `must_exist`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from holdfast.model.errors import DataDirectoryError, DiskFull, StorageFailed, Unavailable
from holdfast.model.limits import MIB
from holdfast.storage.durable import sync_data, sync_directory, sync_file
from holdfast.storage.segment import as_write_error

_FILE_MAGIC: Final = b"HFVOTES1"
_MAGIC_BYTES: Final = b"HV"
_HEAD = struct.Struct(">2sH")
_CRC = struct.Struct(">I")
_FIELDS = struct.Struct(">QQI")
_POSITION = struct.Struct(">Q")
_FIELDS_AT: Final = _HEAD.size + _CRC.size
_RECORD_BYTES: Final = _FIELDS_AT + _FIELDS.size
_KIND_STATE: Final = 1
_KIND_FORGOTTEN: Final = 2
_KIND_MARK: Final = 3
# A vote and the members of a group at two times fit many times over.
STATE_BYTES_MAX: Final = 1 * MIB
# Below this size nothing is gained by writing the file anew, above it it may be so many times its live content.
_REWRITE_BYTES_MIN: Final = 4 * MIB
_REWRITE_FACTOR: Final = 4


class VotesDamaged(DataDirectoryError):
    """Votes that this node has given may be lost: it must not vote before it knows that no harm can come of it."""


class VotesPoint(NamedTuple):
    """What one sync of the journal has to do, and what holds once it is done."""

    files: list[int]
    directory: Path | None
    number: int
    position: int


class _Record(NamedTuple):
    kind: int
    group: int
    state: bytes
    synced: int
    end: int


class VoteJournal:
    """One journal that is open. Not thread-safe: all calls come from one thread.

    Every change has a number, given back by `put` and `forget`; it is durable once `synced_number` has reached it.
    """

    def __init__(self, path: Path, states: dict[int, bytes]) -> None:
        self.path = path
        self.written_number = 0
        self.synced_number = 0
        self._states = states
        self._live_bytes = sum(_RECORD_BYTES + len(state) for state in states.values())
        self._fd = -1
        self._size = 0
        self._synced_position = 0
        # Up to here a mark vouches for the file.
        self._marked_position = 0
        self._rewrite_bytes = _REWRITE_BYTES_MIN
        self._directory_dirty = False
        self._syncing = False
        # A file that was replaced, and waits for the sync that uses it.
        self._retired: list[int] = []

    @classmethod
    def open(cls, path: Path, *, must_exist: bool = False) -> tuple[VoteJournal, dict[int, bytes]]:
        """Open or create the journal; returns the last state of every group. Raises `VotesDamaged`."""
        try:
            path.with_suffix(".log.tmp").unlink(missing_ok=True)
            content = path.read_bytes()
        except FileNotFoundError:
            if must_exist:
                raise VotesDamaged(f"{path} is missing: votes that this node has given are lost") from None
            content = _FILE_MAGIC
        except OSError as error:
            raise DataDirectoryError(f"cannot read {path}: {error.strerror}") from error
        journal = cls(path, _states_in(content, path))
        try:
            journal._write_anew()
        except OSError as error:
            journal.close()
            raise DataDirectoryError(f"cannot write {path}: {error.strerror}") from error
        return journal, dict(journal._states)

    # --- writing ----------------------------------------------------------------------------------

    def put(self, group: int, state: bytes) -> int:
        """Write a group's state; returns the change's number. Raises `Unavailable` and `StorageFailed`."""
        assert len(state) <= STATE_BYTES_MAX, "a group has more to remember than one record holds"
        self._append(_KIND_STATE, group, state)
        self._live_bytes -= self._bytes_of(group)
        self._states[group] = state
        self._live_bytes += self._bytes_of(group)
        return self._changed()

    def forget(self, group: int) -> int:
        """This node is no member of the group any more; returns the change's number."""
        if group in self._states:
            self._append(_KIND_FORGOTTEN, group, b"")
            self._live_bytes -= self._bytes_of(group)
            del self._states[group]
            return self._changed()
        return self.written_number

    def _bytes_of(self, group: int) -> int:
        return _RECORD_BYTES + len(self._states[group]) if group in self._states else 0

    def _append(self, kind: int, group: int, state: bytes) -> None:
        record = _record(self._size, kind, group, state, self._synced_position)
        try:
            written = os.pwrite(self._fd, record, self._size)
        except OSError as error:
            raise as_write_error(error) from error
        if written != len(record):  # what was written is torn, and the next record takes its place
            raise DiskFull(f"the disk took {written} of {len(record)} bytes of a vote; make room")
        self._size += len(record)

    def _changed(self) -> int:
        self.written_number += 1
        if self._size > max(self._rewrite_bytes, _REWRITE_FACTOR * self._live_bytes):
            try:
                self._write_anew()
            except OSError:  # what is there is good, only long; perhaps there is room for this later
                self._rewrite_bytes = 2 * self._size
        return self.written_number

    def _write_anew(self) -> None:
        """Write the live content to a new file, durably; rare, and bounded by the number of groups."""
        content = bytearray(_FILE_MAGIC)
        for group, state in self._states.items():
            content += _record(len(content), _KIND_STATE, group, state, 0)
        content += _record(len(content), _KIND_MARK, 0, b"", len(content))
        temporary = self.path.with_suffix(".log.tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            if os.pwrite(fd, content, 0) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync_file(fd)
            temporary.rename(self.path)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            self._retired.append(self._fd)
            if not self._syncing:
                self._close_retired()
        self._fd = fd
        self._size = self._synced_position = self._marked_position = len(content)
        # Until its new name is on the disk nothing in the new file is: should that fail here, it is for the next sync.
        self._directory_dirty = True
        sync_directory(self.path.parent)
        self._directory_dirty = False
        self._rewrite_bytes = _REWRITE_BYTES_MIN
        self.synced_number = self.written_number

    # --- syncing: as a log's ----------------------------------------------------------------------

    def sync_point(self) -> VotesPoint:
        """What must be synced so that everything written until now is durable."""
        self._syncing = True
        directory = self.path.parent if self._directory_dirty else None
        return VotesPoint([self._fd], directory, self.written_number, self._size)

    def synced(self, point: VotesPoint) -> None:
        """Take note that everything up to `point` is on the disk."""
        self._syncing = False
        self.synced_number = max(self.synced_number, point.number)
        if point.files == [self._fd]:  # and not one that was replaced since
            self._synced_position = max(self._synced_position, point.position)
            self._directory_dirty = False
        self._close_retired()

    def sync_now(self) -> None:
        """Wait for the disk; for the few states that something else must not overtake. Raises `StorageFailed`."""
        try:
            sync_data(self._fd)
            if self._directory_dirty:
                sync_directory(self.path.parent)
        except OSError as error:
            raise StorageFailed(f"a sync of {self.path.name} failed: {error.strerror}") from error
        self.synced_number, self._synced_position = self.written_number, self._size
        self._directory_dirty = False

    def close(self) -> None:
        """Give back the file; where everything is synced, a mark at its end says so."""
        if self._fd >= 0:
            if self._marked_position < self._size == self._synced_position:
                with contextlib.suppress(Unavailable, StorageFailed):  # then nothing vouches for the last record
                    self._append(_KIND_MARK, 0, b"")
            self._retired.append(self._fd)
            self._fd = -1
        self._close_retired()

    def _close_retired(self) -> None:
        while self._retired:
            os.close(self._retired.pop())


def _record(position: int, kind: int, group: int, state: bytes, synced: int) -> bytes:
    head = _HEAD.pack(_MAGIC_BYTES, kind)
    rest = _FIELDS.pack(group, synced, len(state)) + state
    return head + _CRC.pack(crc32c(_POSITION.pack(position) + head + rest)) + rest


def _record_at(data: bytes, position: int) -> _Record | None:
    """The record at `position`, if it is whole and sound."""
    if len(data) - position < _RECORD_BYTES:
        return None
    magic, kind = _HEAD.unpack_from(data, position)
    group, synced, length = _FIELDS.unpack_from(data, position + _FIELDS_AT)
    end = position + _RECORD_BYTES + length
    if magic != _MAGIC_BYTES or end > len(data):
        return None
    (crc,) = _CRC.unpack_from(data, position + _HEAD.size)
    head, rest = data[position : position + _HEAD.size], data[position + _FIELDS_AT : end]
    if crc32c(_POSITION.pack(position) + head + rest) != crc:
        return None
    return _Record(kind, group, rest[_FIELDS.size :], synced, end)


def _states_in(data: bytes, path: Path) -> dict[int, bytes]:
    """The last state of every group. Raises `VotesDamaged` where something is missing that was synced."""
    if not data.startswith(_FILE_MAGIC):
        raise VotesDamaged(f"{path} is damaged at its beginning: votes that this node has given may be lost")
    states: dict[int, bytes] = {}
    position = len(_FILE_MAGIC)
    while (record := _record_at(data, position)) is not None:
        if record.kind == _KIND_STATE:
            states[record.group] = record.state
        elif record.kind == _KIND_FORGOTTEN:
            states.pop(record.group, None)
        position = record.end
    if _was_synced(data, position):
        raise VotesDamaged(f"{path} is damaged at byte {position}: votes that this node has given may be lost")
    return states


def _was_synced(data: bytes, position: int) -> bool:
    """Whether any record behind `position` was written when the bytes there had been synced."""
    at = position
    while (at := data.find(_MAGIC_BYTES, at)) >= 0:
        record = _record_at(data, at)
        if record is not None and record.synced > position:
            return True
        at += 1
    return False

"""Entries of a replicated log as the storage takes them from a peer, and the errors of entries.

A note is an entry that readers never see. Its payload, big-endian::

    base offset  u64   0   the offset the next message will get; a note takes none
    crc          u32   8   CRC32C of the body
    body              12

A record batch in an entry has its place written into it already: base offset and, as leader epoch, the term
it was appended in. Neither is covered by the batch's own CRC, so both are checked against what they must be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from holdfast.model.entries import KIND_BATCH, NOTE_HEAD_BYTES, Entry
from holdfast.model.errors import DamagedData
from holdfast.model.ids import LogIndex, Offset, TimestampMs
from holdfast.wire import record_batch
from holdfast.wire.record_batch import Buffer

# A leader epoch is an i32: of the term it holds the lower 31 bits.
EPOCH_MASK = 0x7FFFFFFF
KIND_MAX = 255
_NOTE_HEAD = struct.Struct(">QI")
_BATCH_MAGIC = 2
_NO_TIME = TimestampMs(-1)


class BadEntry(Exception):
    """An entry that does not belong where it was to be written, or is damaged; nothing was written."""


class EntryGone(Exception):
    """The entry is older than what the log still holds, which begins at `first_index`."""

    def __init__(self, index: LogIndex, first_index: LogIndex) -> None:
        super().__init__(f"entry {index} is gone, the log begins at {first_index}")
        self.index = index
        self.first_index = first_index


class DamagedEntries(DamagedData):
    """Entries from `first_index` up to, not including, `next_index` are damaged on disk and not served."""

    def __init__(self, message: str, next_offset: int, first_index: LogIndex, next_index: LogIndex) -> None:
        super().__init__(message, next_offset)
        self.first_index = first_index
        self.next_index = next_index

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.next_offset, self.first_index, self.next_index)


class Placed(NamedTuple):
    """An entry that was found sound, where its messages stand, and how new they are."""

    entry: Entry
    base_offset: Offset
    next_offset: Offset
    newest_ms: TimestampMs


def note(base_offset: Offset, body: Buffer) -> bytes:
    """The payload of a note."""
    return _NOTE_HEAD.pack(base_offset, crc32c(body)) + body


def note_body(payload: Buffer) -> Buffer:
    """What a note says."""
    return payload[NOTE_HEAD_BYTES:]


def base_offset_of(entry: Entry) -> Offset:
    """The offset of the first message of an entry, or of the first one behind a note."""
    head = record_batch.HEAD if entry.kind == KIND_BATCH else _NOTE_HEAD
    return Offset(head.unpack_from(entry.payload)[0])


def checked(entries: Iterable[Entry], next_offset: Offset) -> list[Placed]:
    """Check that every entry is sound and that they go on at `next_offset`. Raises `BadEntry`."""
    found: list[Placed] = []
    for entry in entries:
        if entry.kind == KIND_BATCH:
            base_offset, following, newest_ms = _sound_batch(entry)
        else:
            base_offset = following = _sound_note(entry)
            newest_ms = _NO_TIME
        if base_offset != next_offset:
            raise BadEntry(f"an entry begins at offset {base_offset}, the log goes on at {next_offset}")
        found.append(Placed(entry, base_offset, following, newest_ms))
        next_offset = following
    return found


def _sound_batch(entry: Entry) -> tuple[Offset, Offset, TimestampMs]:
    """Base offset, next offset and newest time of a batch that is sound."""
    payload = entry.payload
    if len(payload) < record_batch.HEADER_BYTES:
        raise BadEntry(f"an entry of {len(payload)} bytes is no record batch")
    base_offset, length, epoch, magic, crc, _, last_delta, _, newest_ms = record_batch.HEAD.unpack_from(payload)
    if length != len(payload) - record_batch.LENGTH_PREFIX_BYTES or magic != _BATCH_MAGIC or last_delta < 0:
        raise BadEntry("the header of a record batch contradicts itself")
    if epoch != entry.term & EPOCH_MASK:
        raise BadEntry(f"a record batch of term {entry.term} has leader epoch {epoch}")
    if crc32c(memoryview(payload)[record_batch.CRC_FROM :]) != crc:
        raise BadEntry("a record batch does not match its CRC32C")
    return base_offset, Offset(base_offset + last_delta + 1), newest_ms


def _sound_note(entry: Entry) -> Offset:
    payload = entry.payload
    if not KIND_BATCH < entry.kind <= KIND_MAX or len(payload) < NOTE_HEAD_BYTES:
        raise BadEntry(f"an entry of kind {entry.kind} and {len(payload)} bytes is none")
    base_offset, crc = _NOTE_HEAD.unpack_from(payload)
    if crc32c(memoryview(payload)[NOTE_HEAD_BYTES:]) != crc:
        raise BadEntry("a note does not match its CRC32C")
    return Offset(base_offset)

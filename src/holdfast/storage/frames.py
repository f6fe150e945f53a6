"""The frame around every entry of a log, and how frames are found again in damaged bytes.

A segment file is a row of frames. Big-endian::

    magic      u16   0   "HF"
    version    u8    2   1
    kind       u8    3   1: a record batch; others: notes, entries that readers never see
    length     u32   4   bytes of payload behind the frame header
    index      u64   8   the entry's number in the log, without gaps
    term       u64  16   the reign it was written in
    synced     u64  24   how far this file was known to be synced when the frame was written
    crc        u32  32   CRC32C of the frame's position (u64), the 32 bytes above and the first 17 of the payload
    payload         36   a record batch, whose own CRC covers it from byte 21 on; or a note (`entries.py`), whose
                         CRC covers its body. A note that is shorter than 17 bytes is covered whole

Together the two checksums cover every byte but the payload's CRC field itself, which can only fail. The
position is summed up though it is not written, so that a frame is only one where it was written: a payload
may hold anything, pieces of segments included, and is not mistaken for a frame of its own. (That guards
against accidents. A publisher could compute a frame for a guessed place; it would count only if the header
of the real frame around it is damaged.)

**Telling a torn tail from damage.** A crash may leave anything behind the last synced byte: half a
frame, zeros, or a hole followed by a whole later frame, since pages reach the disk in any order. None of
that was acknowledged, and it is cut off. But a bad frame *below* a position that was synced is damage to
acknowledged data: it must be reported and not cut, nor anything behind it. `synced` tells the two apart:
if any later frame was written when the bad bytes had already been synced, they are damage. So are bytes
below what a segment's index, which is only written after a sync, says was there.

Entries are numbered without gaps, and so are the offsets of their messages: where either number jumps,
entries are missing, and that is damage too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from holdfast.model.entries import KIND_BATCH, NOTE_HEAD_BYTES
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.wire import record_batch
from holdfast.wire.record_batch import Buffer

FRAME_BYTES = 36
# A frame and as much of its payload as is needed to know everything about it.
FRAME_AND_HEAD_BYTES = FRAME_BYTES + record_batch.HEADER_BYTES
_VERSION = 1
_MAGIC_BYTES = b"HF"
_FIELDS = struct.Struct(">2sBBIQQQ")
_CRC = struct.Struct(">I")
_FRAME = struct.Struct(">2sBBIQQQI")
_POSITION = struct.Struct(">Q")
_POSITION_AND_FIELDS = struct.Struct(">Q2sBBIQQQ")
_NOTE_HEAD = struct.Struct(">QI")
_COVERED_BYTES = record_batch.UNCOVERED_BYTES
_PAYLOAD_BYTES_MAX = 1 << 30
_NO_TIME = TimestampMs(-1)


class Frame(NamedTuple):
    """A frame whose header is whole, and what the head of its payload says.

    A note takes no offset: its `base_offset` and `next_offset` are the same. `crc` covers the payload from
    `crc_from` on, a position in the file.
    """

    position: int
    end: int
    log_index: LogIndex
    term: Term
    synced: int
    kind: int
    base_offset: Offset
    next_offset: Offset
    max_timestamp_ms: TimestampMs
    crc: int
    crc_from: int

    @property
    def payload_position(self) -> int:
        return self.position + FRAME_BYTES


class Hole(NamedTuple):
    """Bytes that are damaged: neither served nor cut. Where only notes are, no offset is missing."""

    position: int
    end: int
    first_offset: Offset
    next_offset: Offset
    first_index: LogIndex
    next_index: LogIndex


class Scan(NamedTuple):
    """What a segment holds: its good frames are visited on the way, the rest is said here."""

    end: int
    next_offset: Offset
    next_index: LogIndex
    holes: list[Hole]


def frame_header(
    payload: Buffer, position: int, index: LogIndex, term: Term, synced: int, kind: int = KIND_BATCH
) -> bytes:
    """The bytes that go in front of an entry at `position` of a file."""
    summed = _POSITION_AND_FIELDS.pack(position, _MAGIC_BYTES, _VERSION, kind, len(payload), index, term, synced)
    return summed[_POSITION.size :] + _CRC.pack(crc32c(summed + payload[:_COVERED_BYTES]))


def frame_at(data: memoryview, position: int, *, file_position: int | None = None) -> Frame | None:
    """The frame whose header stands at `position`, if it is sound and so is what `data` has of its payload's head.

    `data` may be a piece of a file; then `file_position` is where `position` lies in the file.
    """
    payload_at = position + FRAME_BYTES
    if len(data) - payload_at < NOTE_HEAD_BYTES:
        return None
    magic, version, kind, length, index, term, synced, crc = _FRAME.unpack_from(data, position)
    if magic != _MAGIC_BYTES or version != _VERSION or not kind or length > _PAYLOAD_BYTES_MAX:
        return None
    start = position if file_position is None else file_position
    covered = crc32c(data[position : position + _FIELDS.size], crc32c(_POSITION.pack(start)))
    if crc32c(data[payload_at : payload_at + min(_COVERED_BYTES, length)], covered) != crc:
        return None
    end = start + FRAME_BYTES + length
    if kind != KIND_BATCH:
        if length < NOTE_HEAD_BYTES:
            return None
        offset, body_crc = _NOTE_HEAD.unpack_from(data, payload_at)
        body_from = start + FRAME_BYTES + NOTE_HEAD_BYTES
        return Frame(start, end, index, term, synced, kind, offset, offset, _NO_TIME, body_crc, body_from)
    if len(data) - payload_at < record_batch.HEADER_BYTES:
        return None
    base, batch_length, _, _, batch_crc, _, last_delta, _, newest_ms = record_batch.HEAD.unpack_from(data, payload_at)
    if batch_length + record_batch.LENGTH_PREFIX_BYTES != length:
        return None
    crc_from = start + FRAME_BYTES + record_batch.CRC_FROM
    return Frame(start, end, index, term, synced, kind, base, base + last_delta + 1, newest_ms, batch_crc, crc_from)


def payload_is_sound(data: memoryview, frame: Frame, *, shift: int = 0) -> bool:
    """Whether the payload matches its CRC; `shift` is the file position of `data`'s first byte."""
    end = frame.end - shift
    return end <= len(data) and crc32c(data[frame.crc_from - shift : end]) == frame.crc


def sound_frames(data: memoryview, position: int) -> Iterator[Frame]:
    """Sound frames from `position` on, one behind the other, up to the first that is not."""
    while (frame := frame_at(data, position)) is not None and payload_is_sound(data, frame):
        yield frame
        position = frame.end


def next_sound_frame(data: memoryview, position: int, index: LogIndex, offset: Offset) -> Frame | None:
    """The first sound frame at or behind `position` that may be this entry and offset, or later ones."""
    raw = data.obj
    assert raw is not None
    while True:
        position = raw.find(_MAGIC_BYTES, position)  # type: ignore[attr-defined]
        if position < 0:
            return None
        frame = frame_at(data, position)
        if frame is not None and payload_is_sound(data, frame) and _can_be(frame, index, offset):
            return frame
        position += 1


def _can_be(frame: Frame, index: LogIndex, offset: Offset) -> bool:
    return frame.log_index >= index and frame.base_offset >= offset


def knows_of_a_sync(data: memoryview) -> bool:
    """Whether some frame was written after a sync of this file, and so after a sync of all files before."""
    position = 0
    while True:
        frame = frame_at(data, position) or next_sound_frame(data, position + 1, LogIndex(0), Offset(0))
        if frame is None or frame.synced > 0:
            return frame is not None
        position = frame.end


def scan(
    data: memoryview,
    base_offset: Offset,
    base_index: LogIndex,
    visit: Callable[[Frame], None],
    *,
    sealed: bool,
    synced: int = 0,
) -> Scan:
    """Walk a whole segment: `visit(frame)` for each sound frame, then where it ends and what is damaged.

    `synced` says how many bytes are known to have been synced, `sealed` that all of them were: nothing in
    there can be a torn tail.
    """
    synced = len(data) if sealed else synced
    position = 0
    next_offset, next_index = base_offset, base_index
    holes: list[Hole] = []
    while True:
        for frame in sound_frames(data, position):
            if not _can_be(frame, next_index, next_offset):
                break
            if frame.base_offset > next_offset or frame.log_index > next_index:  # gone without a trace
                holes.append(Hole(position, position, next_offset, frame.base_offset, next_index, frame.log_index))
            visit(frame)
            position = frame.end
            next_offset, next_index = frame.next_offset, LogIndex(frame.log_index + 1)
        if position >= len(data):
            return Scan(position, next_offset, next_index, holes)
        broken = frame_at(data, position)
        behind = position + 1 if broken is None else min(broken.end, len(data))
        resumed = next_sound_frame(data, behind, next_index, next_offset)
        if position >= synced and (resumed is None or not _was_synced(data, position, resumed)):
            return Scan(position, next_offset, next_index, holes)
        if resumed is None:
            holes.append(Hole(position, len(data), next_offset, next_offset, next_index, next_index))
            return Scan(len(data), next_offset, next_index, holes)
        hole = Hole(position, resumed.position, next_offset, resumed.base_offset, next_index, resumed.log_index)
        holes.append(hole)
        position, next_offset, next_index = resumed.position, resumed.base_offset, resumed.log_index


def _was_synced(data: memoryview, position: int, resumed: Frame) -> bool:
    """Whether any later frame was written when the bytes at `position` had been synced."""
    frame: Frame | None = resumed
    while frame is not None:
        if frame.synced > position:
            return True
        following = frame_at(data, frame.end)
        if following is None or not payload_is_sound(data, following):
            following = next_sound_frame(data, frame.end, LogIndex(frame.log_index + 1), frame.next_offset)
        frame = following
    return False

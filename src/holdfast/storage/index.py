"""The sparse index of a segment: from an offset or a time to a place in the file.

One entry for at least `INDEX_INTERVAL_BYTES` of log. The index of the segment that is being written lives
in memory only and is rebuilt by the scan at start. When a sealed segment is synced its index is written
once, to a temporary name, and renamed: `<segment>.index`, little-endian::

    magic "HFIX" · version u16 · sealed u16
    entries u64 · log bytes u64 · end offset u64 · end index u64 · newest ms i64
    entries × offset u64 · entries × position u64 · entries × newest ms up to here i64
    crc u32 of everything above

It is a cache and never synced itself, but only written once that many bytes of the log are synced: an index
that is there proves that. With `sealed` 1 these are all the bytes there ever were; the newest segment gets an
index with `sealed` 0, for the bytes there are, when its log is opened and when it is closed in peace. Crash
cases: absent, short, damaged or not matching the size of its log file: it is rebuilt from the log, which is
scanned for that.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from array import array
from bisect import bisect_right
from pathlib import Path

from crc32c import crc32c

from holdfast.model.ids import LogIndex, Offset, TimestampMs
from holdfast.model.limits import INDEX_INTERVAL_BYTES

_HEADER = struct.Struct("<4sHHQQQQq")
_MAGIC = b"HFIX"
_VERSION = 1
_CRC = struct.Struct("<I")
_COLUMN_ENTRY_BYTES = 8


class SparseIndex:
    """Entries in memory, in three parallel arrays."""

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self.newest_ms = TimestampMs(-1)
        # What an index from the disk is about: how much of the log, and whether that was all of it.
        self.log_bytes = 0
        self.is_sealed = False
        self._next_entry_at = 0

    def add(self, base_offset: Offset, position: int, max_timestamp_ms: TimestampMs) -> None:
        """Take note of a frame that stands behind all the ones before."""
        if max_timestamp_ms > self.newest_ms:
            self.newest_ms = max_timestamp_ms
        if position >= self._next_entry_at:
            self.offsets.append(base_offset)
            self.positions.append(position)
            # Times only grow here even if clocks did not, so that a search by time can bisect.
            self.times.append(self.newest_ms)
            self._next_entry_at = position + INDEX_INTERVAL_BYTES

    def entry_of(self, offset: Offset) -> tuple[int, Offset] | None:
        """Where to start walking to find `offset`: a frame at or before it, and its base offset."""
        entry = bisect_right(self.offsets, offset) - 1
        return self._entry(entry)

    def entry_before(self, timestamp_ms: TimestampMs) -> tuple[int, Offset] | None:
        """Where to start walking to find the first frame of that time or later, and its base offset."""
        low, high = 0, len(self.times)
        while low < high:
            middle = (low + high) // 2
            if self.times[middle] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return self._entry(low - 1)

    def _entry(self, entry: int) -> tuple[int, Offset] | None:
        return (self.positions[entry], Offset(self.offsets[entry])) if entry >= 0 else None

    def save(self, path: Path, log_bytes: int, end_offset: Offset, end_index: LogIndex, *, sealed: bool) -> None:
        """Write it beside its segment."""
        ends = (log_bytes, end_offset, end_index, self.newest_ms)
        parts = [_HEADER.pack(_MAGIC, _VERSION, sealed, len(self.offsets), *ends)]
        for column in (self.offsets, self.positions, self.times):
            parts.append(_little_endian(column).tobytes())
        body = b"".join(parts)
        temporary = path.with_suffix(".index.tmp")
        temporary.write_bytes(body + _CRC.pack(crc32c(body)))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path, log_bytes: int | None) -> tuple[SparseIndex, Offset, LogIndex] | None:
        """Read it back with the end offset and index, or `None` if it cannot be trusted.

        It must be about a log of `log_bytes`, unless that is `None`.
        """
        with contextlib.suppress(FileNotFoundError):
            body = path.read_bytes()
            if len(body) >= _HEADER.size + _CRC.size:
                return cls._decoded(body, log_bytes)
        return None

    @classmethod
    def _decoded(cls, body: bytes, log_bytes: int | None) -> tuple[SparseIndex, Offset, LogIndex] | None:
        magic, version, sealed, entries, its_bytes, end_offset, end_index, newest_ms = _HEADER.unpack_from(body)
        (crc,) = _CRC.unpack_from(body, len(body) - _CRC.size)
        is_whole = len(body) == _HEADER.size + entries * 3 * _COLUMN_ENTRY_BYTES + _CRC.size
        if magic != _MAGIC or version != _VERSION or not is_whole or crc32c(body[: -_CRC.size]) != crc:
            return None
        if log_bytes is not None and its_bytes != log_bytes:
            return None
        index = cls()
        index.log_bytes, index.is_sealed = its_bytes, bool(sealed)
        at = _HEADER.size
        for column in (index.offsets, index.positions, index.times):
            stored = array(column.typecode, body[at : at + entries * _COLUMN_ENTRY_BYTES])
            column.extend(_little_endian(stored))
            at += entries * _COLUMN_ENTRY_BYTES
        index.newest_ms = newest_ms
        return index, end_offset, end_index


def _little_endian(column: array[int]) -> array[int]:
    swapped = array(column.typecode, column)
    if sys.byteorder == "big":
        swapped.byteswap()
    return swapped

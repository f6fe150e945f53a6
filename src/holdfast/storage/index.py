"""The sparse index of a segment: from an offset, an entry's number or a time to a place in the file.

One entry for at least `INDEX_INTERVAL_BYTES` of log. The index of the segment that is being written lives
in memory only and is rebuilt by the scan at start. When a sealed segment is synced its index is written
once, to a temporary name, and renamed: `<segment>.index`, little-endian::

    magic "HFIX" · version u16 · sealed u16
    entries u64 · log bytes u64 · end offset u64 · end index u64 · newest ms i64 · runs u64
    entries × offset u64 · entries × position u64 · entries × newest ms up to here i64 · entries × log index u64
    runs × first index u64 · runs × term u64
    crc u32 of everything above

A run is a row of entries of one term; the first run begins with the segment's first entry. Version 1 has neither
`runs` nor log indexes: such an index still proves what was synced, but nothing is found with it, and it is made
anew by a scan.

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
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.model.limits import INDEX_INTERVAL_BYTES

_HEADER = struct.Struct("<4sHHQQQQq")
_RUNS = struct.Struct("<Q")
_MAGIC = b"HFIX"
_VERSION = 2
_VERSION_WITHOUT_TERMS = 1
_CRC = struct.Struct("<I")
_COLUMN_ENTRY_BYTES = 8
FIRST_INDEX = LogIndex(0)

TermRuns = list[tuple[LogIndex, Term]]


class Place(NamedTuple):
    """Where a walk to a frame may start, and which offset and entry stand there."""

    position: int
    offset: Offset
    log_index: LogIndex


class SparseIndex:
    """Entries in memory, in four parallel arrays."""

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self.log_indexes = array("Q")
        self.newest_ms = TimestampMs(-1)
        # Only of an index from the disk: the segment's terms, how much of the log it is about, and whether
        # that was all of it.
        self.term_runs: TermRuns = []
        self.log_bytes = 0
        self.is_sealed = False
        self._next_entry_at = 0

    def add(
        self, base_offset: Offset, position: int, max_timestamp_ms: TimestampMs, log_index: LogIndex = FIRST_INDEX
    ) -> None:
        """Take note of a frame that stands behind all the ones before."""
        if max_timestamp_ms > self.newest_ms:
            self.newest_ms = max_timestamp_ms
        if position >= self._next_entry_at:
            self.offsets.append(base_offset)
            self.positions.append(position)
            # Times only grow here even if clocks did not, so that a search by time can bisect.
            self.times.append(self.newest_ms)
            self.log_indexes.append(log_index)
            self._next_entry_at = position + INDEX_INTERVAL_BYTES

    def cut(self, position: int, newest_ms: TimestampMs) -> None:
        """Forget what stands at `position` or behind it; before it the newest message is of `newest_ms`."""
        kept = bisect_left(self.positions, position)
        for column in (self.offsets, self.positions, self.times, self.log_indexes):
            del column[kept:]
        self.newest_ms = newest_ms
        self._next_entry_at = self.positions[-1] + INDEX_INTERVAL_BYTES if kept else 0

    def place_of(self, offset: Offset) -> Place | None:
        """Where to start walking to find `offset`: a frame at or before it."""
        return self._place(bisect_right(self.offsets, offset) - 1)

    def place_of_entry(self, log_index: LogIndex) -> Place | None:
        """Where to start walking to find an entry: a frame at or before it."""
        return self._place(bisect_right(self.log_indexes, log_index) - 1)

    def place_before(self, timestamp_ms: TimestampMs) -> Place | None:
        """Where to start walking to find the first frame of that time or later."""
        return self._place(bisect_left(self.times, timestamp_ms) - 1)

    def _place(self, entry: int) -> Place | None:
        if entry < 0:
            return None
        return Place(self.positions[entry], Offset(self.offsets[entry]), LogIndex(self.log_indexes[entry]))

    def newest_ms_at(self, position: int) -> TimestampMs:
        """The time of the newest message up to and including the frame at `position`, which is one of the entries."""
        return TimestampMs(self.times[bisect_left(self.positions, position)])

    def save(
        self,
        path: Path,
        log_bytes: int,
        end_offset: Offset,
        end_index: LogIndex,
        *,
        sealed: bool,
        term_runs: Sequence[tuple[LogIndex, Term]] = (),
    ) -> None:
        """Write it beside its segment."""
        ends = (log_bytes, end_offset, end_index, self.newest_ms)
        parts = [_HEADER.pack(_MAGIC, _VERSION, sealed, len(self.offsets), *ends), _RUNS.pack(len(term_runs))]
        firsts, terms = (array("Q", [run[field] for run in term_runs]) for field in (0, 1))
        for column in (self.offsets, self.positions, self.times, self.log_indexes, firsts, terms):
            parts.append(_little_endian(column).tobytes())
        body = b"".join(parts)
        temporary = path.with_suffix(".index.tmp")
        temporary.write_bytes(body + _CRC.pack(crc32c(body)))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path, log_bytes: int | None) -> tuple[SparseIndex, Offset, LogIndex] | None:
        """Read it back with the end offset and index, or `None` if it cannot be trusted.

        It must be about a log of `log_bytes` and of the present version, unless that is `None`: then it is asked
        only for what it proves.
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
        if magic != _MAGIC or crc32c(memoryview(body)[: -_CRC.size]) != crc:
            return None
        if version == _VERSION_WITHOUT_TERMS and log_bytes is None:
            at, runs, columns = _HEADER.size, 0, 3
        elif version == _VERSION and len(body) >= _HEADER.size + _RUNS.size + _CRC.size:
            at, columns = _HEADER.size + _RUNS.size, 4
            (runs,) = _RUNS.unpack_from(body, _HEADER.size)
        else:
            return None
        if len(body) != at + (entries * columns + runs * 2) * _COLUMN_ENTRY_BYTES + _CRC.size:
            return None
        if log_bytes is not None and its_bytes != log_bytes:
            return None
        index = cls()
        index.log_bytes, index.is_sealed = its_bytes, bool(sealed)
        firsts, terms = array("Q"), array("Q")
        lengths = [entries] * columns + [runs] * 2
        stored = [*[index.offsets, index.positions, index.times, index.log_indexes][:columns], firsts, terms]
        for column, length in zip(stored, lengths, strict=True):
            end = at + length * _COLUMN_ENTRY_BYTES
            column.extend(_little_endian(array(column.typecode, body[at:end])))
            at = end
        index.newest_ms = newest_ms
        index.term_runs = [(LogIndex(first), Term(term)) for first, term in zip(firsts, terms, strict=True)]
        return index, end_offset, end_index


def _little_endian(column: array[int]) -> array[int]:
    swapped = array(column.typecode, column)
    if sys.byteorder == "big":
        swapped.byteswap()
    return swapped

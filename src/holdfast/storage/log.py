"""The log of one partition: a directory of segments that together hold one row of offsets.

Files in the directory: segments (`segment.py`), their indexes (`index.py`), nothing else. Of the segments
only the newest is written to. It is sealed, and the next one begun, when it has reached its size.

Three marks move forward: `written_end` (in the page cache), `synced_end` (on the disk) and the commit
mark, which is not kept here. Readers are told how far they may read by whoever calls `read`.

Crash cases:

- *while appending*: what is behind the last sync is cut off at start as far as it is not whole
  (`frames.py`); whole batches behind it may stay, unacknowledged ones included, in order.
- *while beginning a segment*: the file is absent (its directory entry was not synced: nothing in it was
  acknowledged, for a sync of the log includes the directory), or empty, or begun. All are a valid end.
- *after beginning segments, before the ones before are synced*: a sync of the log covers all of them, so an
  acknowledged batch is never behind an unsynced one. If an older file lost its end all the same, offsets of
  the newer ones do not join on; none of their batches was acknowledged, and they are deleted.
- *never in that order*: the end of a segment is missing that has an index, or that has a later segment with an
  index or a frame that knows of a sync. It was synced then: this is damage, is told, and nothing is deleted.
- *while deleting old segments*: oldest first, so what is left is still one row.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import OffsetOutOfRange, Unavailable
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.model.limits import SEGMENT_BYTES_DEFAULT
from holdfast.storage.frames import Hole
from holdfast.storage.segment import Segment
from holdfast.wire import record_batch

# Sealed segments that stay open for reading; a reader far behind needs one, the tail none.
_OPEN_SEALED_SEGMENTS_MAX = 4


class Recovery(NamedTuple):
    """What opening a log found out."""

    torn_bytes: int
    deleted_segments: list[str]
    holes: list[tuple[str, Hole]]


class SyncPoint(NamedTuple):
    """What one sync of a log has to do, and what holds once it is done."""

    files: list[int]
    directory: Path | None
    end: Offset
    segment: Segment
    position: int


class PartitionLog:
    """Appends and reads in one directory. Not thread-safe: all calls come from one thread."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES_DEFAULT) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.synced_end = Offset(0)
        self._synced_position = 0
        # Sealed by us but not yet covered by a sync.
        self._unsynced_sealed: list[Segment] = []
        self._directory_dirty = False
        # Whether somebody uses the files of a sync point: until `synced` none of them may be closed.
        self._syncing = False
        self._open_sealed: list[Segment] = []

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def open(cls, directory: Path, *, segment_bytes: int = SEGMENT_BYTES_DEFAULT) -> tuple[PartitionLog, Recovery]:
        """Open or create the log in `directory`, and make it whole after a crash."""
        log = cls(directory, segment_bytes=segment_bytes)
        directory.mkdir(parents=True, exist_ok=True)
        log.segments = [Segment(path) for path in sorted(directory.iterdir()) if Segment.is_segment(path)]
        if not log.segments:
            log.segments.append(Segment.create(directory, Offset(0), LogIndex(0)))
        proven = log._proven_segments()
        for segment in log.segments[:proven]:
            segment.open_sealed()
        torn_bytes, deleted = log._recover_tail(proven)
        log._note_missing_ends()
        # What was found counts as durable only once it is: a crash before may have left it unsynced.
        os.fsync(log.active.fd)
        if log.active.size:
            log.active.keep_index(sealed=False)
        log.sync_directory()
        log.synced_end = log.written_end
        log._synced_position = log.active.size
        return log, Recovery(torn_bytes, deleted, log.holes())

    def _proven_segments(self) -> int:
        """How many of the oldest segments are known to have been synced whole; never the newest one."""
        newest = len(self.segments) - 1
        for number in range(newest, -1, -1):
            segment = self.segments[number]
            proof = segment.proof()
            if proof is not None and proof.is_sealed:
                return min(number + 1, newest)
            if proof is not None or segment.knows_of_a_sync:
                return number
        return 0

    def _recover_tail(self, first: int) -> tuple[int, list[str]]:
        """Cut the torn tail, wherever in the segments from `first` on it is; see the crash cases above.

        Returns the bytes that were cut and the names of the segments behind them, which are deleted.
        """
        torn_bytes = 0
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            torn_bytes += segment.open_for_append()
            later = self.segments[number + 1 :]
            if not later:
                break
            if segment.next_offset != later[0].base_offset:
                del self.segments[number + 1 :]
                for dropped in reversed(later):
                    dropped.delete()
                return torn_bytes, [dropped.path.name for dropped in later]
            os.fsync(segment.fd)
            segment.keep_index(sealed=True)
            segment.release()
        return torn_bytes, []

    def _note_missing_ends(self) -> None:
        """Damage at the end of a sealed segment reaches up to the first offset of the next one."""
        for segment, following in itertools.pairwise(self.segments):
            segment.ends_at(following.base_offset, following.base_index)

    # --- facts ------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def start_offset(self) -> Offset:
        return self.segments[0].base_offset

    @property
    def written_end(self) -> Offset:
        return self.active.next_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def holes(self) -> list[tuple[str, Hole]]:
        return [(segment.path.name, hole) for segment in self.segments for hole in segment.holes]

    # --- writing ----------------------------------------------------------------------------------

    def append(self, batch: bytearray, term: Term) -> Offset:
        """Give the batch its place and write it; durable only after a sync. Returns the base offset."""
        active = self.segments[-1]
        if active.size and active.size + len(batch) > self.segment_bytes:
            self._begin_segment()
            active = self.segments[-1]
        base_offset = active.next_offset
        record_batch.place(batch, base_offset, term & 0x7FFFFFFF)
        active.append(batch, term, self._synced_position)
        return base_offset

    def _begin_segment(self) -> None:
        sealed = self.active
        created = Segment.create(self.directory, sealed.next_offset, sealed.next_index)
        if self.synced_end == sealed.next_offset and not self._syncing:
            self._seal(sealed)
        else:
            self._unsynced_sealed.append(sealed)
        self.segments.append(created)
        self._synced_position = 0
        self._directory_dirty = True

    # --- syncing: the caller syncs `files` and the directory in any thread, then calls `synced` ------

    def sync_point(self) -> SyncPoint:
        """What must be synced so that everything written until now is durable."""
        self._syncing = True
        files = [*(segment.fd for segment in self._unsynced_sealed), self.active.fd]
        directory = self.directory if self._directory_dirty else None
        return SyncPoint(files, directory, self.written_end, self.active, self.active.size)

    def synced(self, point: SyncPoint) -> None:
        """Take note that everything up to `point` is on the disk."""
        self._syncing = False
        self.synced_end = point.end
        still_unsynced = [s for s in self._unsynced_sealed if s.base_offset >= point.segment.base_offset]
        for segment in self._unsynced_sealed:
            if segment not in still_unsynced:
                self._seal(segment)
        self._unsynced_sealed = still_unsynced
        if point.segment is self.active:
            self._synced_position = point.position
            self._directory_dirty = False

    @property
    def has_unsynced_segments(self) -> bool:
        """Whether segments that are full wait for a sync: they stay open and cannot expire until then."""
        return bool(self._unsynced_sealed)

    def sync_directory(self) -> None:
        sync_directory(self.directory)

    def _seal(self, segment: Segment) -> None:
        """A full segment is synced: its index says so from now on."""
        segment.keep_index(sealed=True)
        self._keep_open(segment)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset, *, may_block: bool = True) -> list[memoryview]:
        """Whole batches from the one that holds `offset` up to `end_offset`; empty at the end.

        Raises `NotCached` where `may_block` is false and the disk would have to be asked.
        """
        if offset < self.start_offset or offset > end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not there; the partition begins at {self.start_offset}, its end is {end_offset}"
            )
        if offset == end_offset:
            return []
        number = self._segment_number(offset)
        batches: list[memoryview] = []
        while not batches and number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset >= end_offset:
                break
            for hole in segment.holes:
                if hole.first_offset <= offset < hole.next_offset:
                    raise segment.damage(hole)
            first = max(offset, segment.base_offset)
            batches = self._opened(segment).read(first, bytes_max, end_offset, may_block=may_block)
            number += 1
        return batches

    def first_at_or_after(self, timestamp_ms: TimestampMs) -> Offset:
        """The first offset whose batch holds a message of that time or later; else the written end."""
        for segment in self.segments:
            if segment.newest_ms >= timestamp_ms:
                found = self._opened(segment).first_at_or_after(timestamp_ms)
                if found is not None:
                    return found
        return self.written_end

    def next_readable(self, offset: Offset) -> Offset:
        """The first offset at or after `offset` that is neither gone nor known to be damaged."""
        offset = max(offset, self.start_offset)
        for segment in self.segments:
            for hole in segment.holes:
                if hole.first_offset <= offset < hole.next_offset:
                    offset = hole.next_offset
        return offset

    def _segment_number(self, offset: Offset) -> int:
        low, high = 0, len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _opened(self, segment: Segment) -> Segment:
        if segment is not self.active and segment not in self._unsynced_sealed:
            self._keep_open(segment)
        return segment

    def _keep_open(self, segment: Segment) -> None:
        if segment in self._open_sealed:
            self._open_sealed.remove(segment)
        self._open_sealed.append(segment)
        if len(self._open_sealed) > _OPEN_SEALED_SEGMENTS_MAX:
            self._open_sealed.pop(0).release()

    # --- retention --------------------------------------------------------------------------------

    def expire(self, *, older_than_ms: TimestampMs | None, bytes_max: int | None, up_to: Offset) -> int:
        """Delete whole segments below `up_to` that are too old or too much; returns how many."""
        if older_than_ms is not None and 0 <= self.active.newest_ms < older_than_ms:
            with contextlib.suppress(Unavailable):  # then only what is full already can go
                self._begin_segment()
                # The new name before the old ones go: without any name, offsets would begin at zero again.
                self.sync_directory()
        deleted = 0
        while len(self.segments) > 1:
            oldest = self.segments[0]
            too_old = older_than_ms is not None and oldest.newest_ms < older_than_ms
            too_much = bytes_max is not None and self.size_bytes - oldest.size >= bytes_max
            if not (too_old or too_much) or oldest.next_offset > up_to or oldest in self._unsynced_sealed:
                break
            if oldest in self._open_sealed:
                self._open_sealed.remove(oldest)
            del self.segments[0]
            oldest.delete()
            deleted += 1
        return deleted

    def close(self) -> None:
        """Give back all files; where everything is synced, the index of the newest segment says so."""
        if self.synced_end == self.written_end and self.active.size:
            self.active.keep_index(sealed=False)
        for segment in self.segments:
            segment.release()


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""One segment of a log: a file of frames that is opened, appended to, sealed and, rarely, cut.

Only the newest segment of a log is written to; a segment is sealed when the next one is begun, and from then
on its file never changes. It may be replaced: where a sealed segment has to lose its end, the part that stays is
copied, synced and renamed over it, so that whoever has the old one mapped still finds every byte. The newest
segment is cut in place.

File names are in `segment_file.py`, frames in `frames.py`, crash cases in `log.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

from holdfast.model.entries import KIND_BATCH
from holdfast.model.errors import DiskFull, StorageFailed, Unavailable
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.model.messages import StoredId
from holdfast.storage import frames
from holdfast.storage.durable import sync_file
from holdfast.storage.entries import Placed, note
from holdfast.storage.frames import FRAME_BYTES, Hole
from holdfast.storage.index import FIRST_INDEX, Place, SparseIndex, TermRuns
from holdfast.storage.segment_file import NotCached
from holdfast.storage.segment_reading import ReadableSegment
from holdfast.wire import record_batch
from holdfast.wire.record_batch import Buffer

__all__ = ["ENTRIES_PER_WRITE_MAX", "Cut", "NotCached", "Segment", "as_write_error"]

# The system takes 1024 pieces (IOV_MAX) in one write, and an entry is two: its frame and its payload.
ENTRIES_PER_WRITE_MAX = 512
# A check in the background works for about a tenth of a millisecond, then pauses.
_FRAMES_BETWEEN_PAUSES = 32
_PAUSE_S = 0.0005
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NO_TERM = -1


class Cut(NamedTuple):
    """Where a segment ends once some of its last entries are gone, and the newest time before that."""

    position: int
    next_offset: Offset
    next_index: LogIndex
    newest_ms: TimestampMs


class Segment(ReadableSegment):
    """A segment as its log uses it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # The term of the newest entry in here, for one quick look per append.
        self._run_term: int = _NO_TERM

    @classmethod
    def create(
        cls, directory: Path, base_offset: Offset, base_index: LogIndex, previous_term: Term, *, suffix: str = ".log"
    ) -> Segment:
        """A new, empty segment, ready to be appended to."""
        segment = cls(directory / (cls.stem_of(base_offset, base_index, previous_term) + suffix))
        try:
            segment._fd = os.open(segment.path, _NEW_FILE, 0o640)
        except OSError as error:
            raise as_write_error(error) from error
        segment._index = SparseIndex()
        return segment

    # --- opening ----------------------------------------------------------------------------------

    def open_sealed(self) -> None:
        """Learn the bounds of a sealed segment from its index, or by scanning it."""
        self.size = self.path.stat().st_size
        loaded = SparseIndex.load(self.index_path, self.size)
        if loaded is not None:
            index, self.next_offset, self.next_index = loaded
            self.newest_ms = index.newest_ms
            self._take_runs(index.term_runs)
            return
        self.scan(sealed=True)
        self.keep_index(sealed=True)
        self.release()

    def open_for_append(self) -> int:
        """Scan a segment that may have a torn tail and cut that off; returns how many bytes that were."""
        size = self.path.stat().st_size
        proof = SparseIndex.load(self.index_path, None)
        # After a failed sync the page cache may hold bytes that the disk does not; ask the disk.
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.scan(sealed=False, synced=proof[0].log_bytes if proof is not None else 0)
        if proof is not None:
            self.ends_at(*proof[1:])
        if size > self.size:
            os.ftruncate(self.fd, self.size)
            sync_file(self.fd)
        return size - self.size

    def proof(self) -> SparseIndex | None:
        """The index on disk, also if it is about more or less than there is: what it counts was synced."""
        loaded = SparseIndex.load(self.index_path, None)
        return loaded[0] if loaded is not None else None

    @property
    def knows_of_a_sync(self) -> bool:
        """Whether some frame in here was written after a sync of the log."""
        return self._mapped(self.fd, os.fstat(self.fd).st_size, frames.knows_of_a_sync, False)

    def scan(self, *, sealed: bool, synced: int = 0) -> list[Hole]:
        """Check every frame, build the index, take note of damage."""
        self._index = index = SparseIndex()
        result = self._scanned(self.fd, os.fstat(self.fd).st_size, index, sealed=sealed, synced=synced)
        self.size, self.next_offset, self.next_index, self.holes = result
        self.newest_ms = index.newest_ms
        self._take_runs(index.term_runs)
        return self.holes

    def ends_at(self, next_offset: Offset, next_index: LogIndex) -> None:
        """Take note of where this segment is known to end: what is not there up to that is damage."""
        if self.next_offset >= next_offset and self.next_index >= next_index:
            return
        position, first_offset, first_index = self.size, self.next_offset, self.next_index
        if self.holes and self.holes[-1].end == self.size:
            position, _, first_offset, _, first_index, _ = self.holes.pop()
        self.next_offset, self.next_index = max(self.next_offset, next_offset), max(self.next_index, next_index)
        self.holes.append(Hole(position, self.size, first_offset, self.next_offset, first_index, self.next_index))

    def verify(self, *, sealed: bool) -> frames.Scan:
        """Check every frame without changing anything, neither here nor on disk; safe in any thread."""
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = self._scanned(file.fileno(), size, _Unhurried(), sealed=sealed)
        # Behind damage that reaches to the end, only we know how much there was.
        if sealed and found.holes and found.holes[-1].end == size:
            found.holes[-1] = found.holes[-1]._replace(next_offset=self.next_offset, next_index=self.next_index)
        return found

    def ids(self, directory: int, size: int, since_ms: TimestampMs, ids_max: int) -> list[StoredId]:
        """The newest ids in the first `size` bytes, oldest first, without batches older than that; safe in any thread.

        The directory is open, so its files stay what they are, whatever has its name by then. What is behind `size` may
        be cut off meanwhile; a mapped file must not lose what is looked at.
        """
        batches: list[tuple[int, int]] = []
        unhurried = _Unhurried()

        def visit(frame: frames.Frame) -> None:
            unhurried.add(frame.base_offset, frame.position, frame.max_timestamp_ms)
            if frame.kind == KIND_BATCH and frame.max_timestamp_ms >= since_ms:
                batches.append((frame.payload_position, frame.end))

        def look(data: memoryview) -> list[StoredId]:
            frames.scan(data, self.base_offset, self.base_index, visit, sealed=True)
            newest_first: list[StoredId] = []
            while batches and len(newest_first) < ids_max:
                begin, end = batches.pop()
                newest_first += reversed(record_batch.stored_ids(bytes(data[begin:end])))
            return newest_first[:ids_max][::-1]

        fd = os.open(self.path.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        try:
            return self._mapped(fd, size, look, [])
        finally:
            os.close(fd)

    def _take_runs(self, runs: TermRuns) -> None:
        self.term_runs = runs
        self._run_term = runs[-1][1] if runs else _NO_TERM

    # --- writing: on any error the file is as it was before ------------------------------------------
    # Raises `DiskFull` when there is no room (it may work later) and `StorageFailed` otherwise.

    def append(self, batch: bytearray, term: Term, synced: int) -> None:
        """Write one placed batch."""
        log_index = self.next_index
        head = frames.frame_header(batch, self.size, log_index, term, synced)
        length = FRAME_BYTES + len(batch)
        # What `_write` does, without the calls: every message comes this way.
        try:
            written = os.pwritev(self._fd or self.fd, (head, batch), self.size)
        except OSError as error:
            raise self._refused(error) from error
        if written != length:
            raise self._cut_short(written, length)
        messages, newest_ms = record_batch.extent(batch)
        (self._index or self.index).add(self.next_offset, self.size, newest_ms, log_index)
        if newest_ms > self.newest_ms:
            self.newest_ms = newest_ms
        if term != self._run_term:
            self._begin_run(log_index, term)
        self.size += length
        self.next_offset = Offset(self.next_offset + messages)
        self.next_index = LogIndex(log_index + 1)

    def append_note(self, kind: int, body: Buffer, term: Term, synced: int) -> None:
        """Write an entry that readers never see."""
        payload = note(self.next_offset, body)
        head = frames.frame_header(payload, self.size, self.next_index, term, synced, kind)
        self._write((head, payload), FRAME_BYTES + len(payload))
        self._note_written(self.next_offset, self.next_offset, len(payload), self.newest_ms, term)

    def append_placed(self, placed: Sequence[Placed], synced: int) -> None:
        """Write entries that have their place, at most `ENTRIES_PER_WRITE_MAX`, with one call."""
        position, log_index = self.size, self.next_index
        pieces: list[Buffer] = []
        for (term, kind, payload), *_ in placed:
            pieces += (frames.frame_header(payload, position, log_index, term, synced, kind), payload)
            position += FRAME_BYTES + len(payload)
            log_index = LogIndex(log_index + 1)
        self._write(pieces, position - self.size)
        for (term, _, payload), base_offset, next_offset, newest_ms in placed:
            self._note_written(base_offset, next_offset, len(payload), newest_ms, term)

    def _note_written(
        self, base_offset: Offset, next_offset: Offset, payload_bytes: int, newest_ms: TimestampMs, term: Term
    ) -> None:
        self.index.add(base_offset, self.size, newest_ms, self.next_index)
        if newest_ms > self.newest_ms:
            self.newest_ms = newest_ms
        if term != self._run_term:
            self._begin_run(self.next_index, term)
        self.size += FRAME_BYTES + payload_bytes
        self.next_offset = next_offset
        self.next_index = LogIndex(self.next_index + 1)

    def _begin_run(self, log_index: LogIndex, term: Term) -> None:
        self.term_runs.append((log_index, term))
        self._run_term = term

    def _write(self, pieces: Sequence[Buffer], length: int) -> None:
        try:
            written = os.pwritev(self.fd, pieces, self.size)
        except OSError as error:
            raise self._refused(error) from error
        if written != length:
            raise self._cut_short(written, length)

    def _refused(self, error: OSError) -> Unavailable | StorageFailed:
        self._undo(error)
        return as_write_error(error)

    def _cut_short(self, written: int, length: int) -> DiskFull:
        self._undo(None)
        return DiskFull(f"the disk took {written} of {length} bytes; make room and send it again")

    def _undo(self, cause: OSError | None) -> None:
        try:
            os.ftruncate(self.fd, self.size)
        except OSError as error:
            raise StorageFailed(f"a failed write could not be undone in {self.path.name}: {error}") from cause

    def keep_index(self, *, sealed: bool) -> None:
        """Write the index of bytes that are synced; never fails: where it cannot be written, there is none."""
        try:
            self.save_index(sealed=sealed)
        except OSError:
            # The one before, if there is one, still proves what it says; only its temporary file goes.
            with contextlib.suppress(OSError):
                self.index_path.with_suffix(".index.tmp").unlink(missing_ok=True)

    def save_index(self, *, sealed: bool) -> None:
        ends = (self.size, self.next_offset, self.next_index)
        self.index.save(self.index_path, *ends, sealed=sealed, term_runs=self.term_runs)

    def mended(self, hole: Hole, size: int) -> None:
        """What was missing is there again (`mending.py`)."""
        self.holes = [other for other in self.holes if other != hole]
        self._places_left.clear()
        if size != self.size:
            self.size = size
            self.keep_index(sealed=True)

    # --- cutting: the log says when, and what must be on the disk before -----------------------------

    def cut_before(self, log_index: LogIndex) -> Cut:
        """Where this segment would end without that entry and those behind it. Raises `DamagedEntries`."""
        for hole in self.holes:
            if hole.first_index < log_index < hole.next_index:
                raise self.damaged_entries(hole)
        if log_index == self.base_index:
            return Cut(0, self.base_offset, self.base_index, TimestampMs(-1))
        # From the entry before: the one in the index may be the first that goes.
        place = self.index.place_of_entry(LogIndex(log_index - 1))
        newest_ms = TimestampMs(-1) if place is None else self.index.newest_ms_at(place.position)
        place = place or self.beginning
        while place.log_index < log_index:
            damaged = self._hole_at(place.position)
            frame = self._single_frame(place.position) if damaged is None else None
            if damaged is not None:
                if damaged.next_index > log_index:
                    raise self.damaged_entries(damaged)
                place = Place(damaged.end, damaged.next_offset, damaged.next_index)
            elif frame is None:
                self._note_damage(place)
            elif frame.log_index > place.log_index:  # some are missing without a trace
                if frame.log_index > log_index:
                    self._note_gap(place, frame)
                    raise self.damaged_entries(self.holes[-1])
                place = Place(place.position, frame.base_offset, frame.log_index)
            else:
                newest_ms = max(newest_ms, frame.max_timestamp_ms)
                place = Place(frame.end, frame.next_offset, LogIndex(frame.log_index + 1))
        return Cut(*place, newest_ms)

    def cut(self, cut: Cut) -> None:
        """Cut the file in place, durably: old frames behind a new, shorter end would look like damage."""
        os.ftruncate(self.fd, cut.position)
        sync_file(self.fd)
        self._ends_with(cut, self.index)

    def copied(self, cut: Cut) -> Segment:
        """The part of this segment that stays, as a durable file that waits for `take_place`."""
        copy = Segment(self.path)
        temporary = self.path.with_suffix(".log.tmp")
        temporary.unlink(missing_ok=True)
        try:
            copy._fd = os.open(temporary, _NEW_FILE, 0o640)
            position = 0
            while position < cut.position:
                sent = os.sendfile(copy._fd, self.fd, position, cut.position - position)
                if not sent:
                    raise OSError(errno.EIO, "the segment is shorter than it was")
                position += sent
            sync_file(copy._fd)
        except OSError as error:
            copy.release()
            temporary.unlink(missing_ok=True)
            raise as_write_error(error) from error
        copy.previous_term = self.previous_term
        copy.holes = list(self.holes)
        copy.term_runs = list(self.term_runs)
        copy._ends_with(cut, deepcopy(self.index))
        return copy

    def take_place(self) -> None:
        """Put a copy where the original was."""
        self.path.with_suffix(".log.tmp").rename(self.path)

    def _ends_with(self, cut: Cut, index: SparseIndex) -> None:
        self.size, self.next_offset, self.next_index, self.newest_ms = cut
        index.cut(cut.position, cut.newest_ms)
        self._index = index
        self.holes = [hole for hole in self.holes if hole.first_index < cut.next_index]
        self._take_runs([run for run in self.term_runs if run[0] < cut.next_index])
        self._places_left.clear()


class _Unhurried(SparseIndex):
    """Counts frames for a check in the background, and lets the event loop run in between."""

    def __init__(self) -> None:
        super().__init__()
        self._frames = 0

    def add(
        self, base_offset: Offset, position: int, max_timestamp_ms: TimestampMs, log_index: LogIndex = FIRST_INDEX
    ) -> None:
        self._frames += 1
        if self._frames % _FRAMES_BETWEEN_PAUSES == 0:
            # Without it a thread that computes holds the interpreter for milliseconds at a time.
            time.sleep(_PAUSE_S)


def as_write_error(error: OSError) -> Unavailable | StorageFailed:
    """What a failed write means: no room, too little of something else for a moment, or a broken disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the disk is full; make room and send it again, reads go on")
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"cannot write now: {error.strerror}; close connections or allow more (ulimit -n)")
    return StorageFailed(f"writing to the log failed: {error.strerror}; check the disk, then restart the broker")

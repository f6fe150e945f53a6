"""Examining the log of one partition: what a broker would find at its next start, without changing a byte.

What is torn, what is damaged and which segments were begun too early is decided by the broker's own rules
(`log.py`, `frames.py`): they are run here on segments that cannot be written to. That is more than neatness.
A rule that differs here would call acknowledged messages torn and cut them off.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.model.entries import KIND_BATCH
from holdfast.model.ids import LogIndex, Offset
from holdfast.model.limits import GIB, MIB
from holdfast.storage import frames
from holdfast.storage.durable import sync_file
from holdfast.storage.examined import Kind, Report
from holdfast.storage.index import SparseIndex
from holdfast.storage.recovery import proven_segments, recover_tail
from holdfast.storage.segment import Segment

# Progress is told about this often.
_PROGRESS_BYTES = 8 * MIB
# Up to here a segment is read and not mapped: what a running broker takes back is then simply not there, and
# no signal that ends the process.
_READ_BYTES_MAX = 1 * GIB

OnBytes = Callable[[int], None]
T = TypeVar("T")


class UntouchedSegment(Segment):
    """A segment that is looked at only: its file is open for reading, and nothing is written beside it."""

    def __init__(self, path: Path, on_bytes: OnBytes) -> None:
        super().__init__(path)
        self.is_scanned = False
        self.torn_bytes = 0
        self.batches = self.messages = 0
        self.index_problem: str | None = None
        self._on_bytes = on_bytes
        self._claim: tuple[SparseIndex, Offset, LogIndex] | None = None
        # How many entries of the index have been met as frames.
        self._entries_met = 0

    def open_sealed(self) -> None:
        """Scan it, though a broker would believe the index: that is what is to be found out."""
        self.scan(sealed=True)
        self.index_problem = self._what_is_wrong_with_the_index(is_sealed=True)
        if self._claim is not None and self.index_problem is None:
            # Also where the segment is damaged at its end, its index knows how far it went.
            self.ends_at(*self._claim[1:])
        self.release()

    def open_for_append(self) -> int:
        """As the broker does it, but nothing is cut; returns how many bytes a broker would cut."""
        size = self.path.stat().st_size
        proof = self.proof()
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.scan(sealed=False, synced=proof.log_bytes if proof is not None else 0)
        if self._claim is not None:
            self.ends_at(*self._claim[1:])
        self.index_problem = self._what_is_wrong_with_the_index(is_sealed=False)
        self.torn_bytes = max(size - self.size, 0)  # it is less than nothing where a running broker goes on
        return self.torn_bytes

    def scan(self, *, sealed: bool, synced: int = 0) -> list[frames.Hole]:
        self._claim = SparseIndex.load(self.index_path, None)
        self.batches = self.messages = self._entries_met = 0
        holes = super().scan(sealed=sealed, synced=synced)
        self.is_scanned = True
        return holes

    def _scanned(self, fd: int, size: int, index: SparseIndex, *, sealed: bool, synced: int = 0) -> frames.Scan:
        told = 0

        def visit(frame: frames.Frame) -> None:
            nonlocal told
            self._visit(frame)
            if not index.term_runs or frame.term != index.term_runs[-1][1]:
                index.term_runs.append((frame.log_index, frame.term))
            if frame.end - told >= _PROGRESS_BYTES:
                self._on_bytes(frame.end - told)
                told = frame.end

        def scan(data: memoryview) -> frames.Scan:
            return frames.scan(data, self.base_offset, self.base_index, visit, sealed=sealed, synced=synced)

        scanned = self._mapped(fd, size, scan, frames.Scan(0, self.base_offset, self.base_index, []))
        self._on_bytes(size - told)
        return scanned

    def _visit(self, frame: frames.Frame) -> None:
        self.batches += frame.kind == KIND_BATCH
        self.messages += frame.next_offset - frame.base_offset
        if self._claim is not None and self._entries_met < len(self._claim[0].positions):
            index, at = self._claim[0], self._entries_met
            says = (index.positions[at], index.offsets[at])
            # Indexes of older versions do not know the numbers of entries.
            knows_entry = not index.log_indexes or index.log_indexes[at] == frame.log_index
            if says == (frame.position, frame.base_offset) and knows_entry:
                self._entries_met += 1

    def _what_is_wrong_with_the_index(self, *, is_sealed: bool) -> str | None:
        if self._claim is None:  # no index is fine, it is made again when it is missed
            return "it is damaged" if self.index_path.exists() else None
        index, end_offset, end_index = self._claim
        # An index that is not `sealed` tells how far the segment was synced at some time: it may have grown since.
        may_be_short = not index.is_sealed and index.log_bytes < self.size
        if is_sealed and index.log_bytes != self.size and not may_be_short:
            return "it was made for another state of its segment"
        if self.holes:  # entries for frames that are damaged now are no mistake of the index
            return None
        is_about_all = index.log_bytes == self.size
        says_another_end = is_about_all and (end_offset, end_index) != (self.next_offset, self.next_index)
        says_other_terms = is_about_all and bool(index.log_indexes) and index.term_runs != self.term_runs
        if says_another_end or says_other_terms or self._entries_met < len(index.positions):
            return "it does not say what its segment holds"
        return None

    @staticmethod
    def _mapped(fd: int, size: int, look: Callable[[memoryview], T], if_empty: T) -> T:
        if size > _READ_BYTES_MAX:
            return Segment._mapped(fd, size, look, if_empty)
        content = os.pread(fd, size, 0)
        return look(memoryview(content)) if content else if_empty

    # --- what would write -----------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd

    def keep_index(self, *, sealed: bool) -> None:
        """Nothing is written."""

    def delete(self) -> None:
        """Nothing is deleted."""
        self.release()


class Rehearsal:
    """What opening this log would find and do."""

    def __init__(self, directory: Path, on_bytes: OnBytes = lambda count: None) -> None:
        paths = [path for path in sorted(directory.iterdir()) if Segment.is_segment(path)]
        self.all_segments = [UntouchedSegment(path, on_bytes) for path in paths]
        self.segments = list(self.all_segments)
        self.proven = 0
        # Segments that a broker would delete: none of their batches was acknowledged.
        self.dropped: list[UntouchedSegment] = []
        # What could not be read. No broker starts on that, so nothing here is torn or begun too early.
        self.unreadable: list[tuple[Path, OSError]] = []
        self.is_blocked = False

    def run(self) -> None:
        try:
            self.proven = proven_segments(self.segments)
            for segment in self.segments[: self.proven]:
                segment.open_sealed()
            recover_tail(self.segments, self.proven)
            self.dropped = self.all_segments[len(self.segments) :]
        except OSError:
            self.is_blocked = True
            self._look_at_each()
        finally:
            for segment in self.all_segments:
                segment.release()

    def is_proven(self, path: Path) -> bool:
        """Whether a segment is known to have been synced whole."""
        try:
            return path in [segment.path for segment in self.segments[: proven_segments(self.segments)]]
        finally:
            for segment in self.all_segments:
                segment.release()

    def _look_at_each(self) -> None:
        """Find out which of them cannot be read, and what the others hold."""
        for segment in self.all_segments:
            try:
                if not segment.is_scanned and segment is self.all_segments[-1]:
                    segment.open_for_append()
                elif not segment.is_scanned:
                    segment.open_sealed()
            except OSError as error:
                self.unreadable.append((Path(error.filename) if error.filename else segment.path, error))


def examine_log(directory: Path, report: Report, on_bytes: OnBytes, *, is_opened: bool) -> Offset | None:
    """Look at one partition; returns where it ends. A broker only cuts where it opens the partition."""
    rehearsal = Rehearsal(directory, on_bytes)
    rehearsal.run()
    for path, error in rehearsal.unreadable:
        report.cannot_read(path, error)
    for segment in rehearsal.all_segments:
        report.segments += 1
        report.indexes += segment.index_path.exists()
        report.batches += segment.batches
        report.messages += segment.messages
        report.size_bytes += segment.size + segment.torn_bytes
    if not rehearsal.is_blocked:
        _what_a_start_changes(rehearsal, report, is_opened=is_opened)
    kept = rehearsal.all_segments[: len(rehearsal.all_segments) - len(rehearsal.dropped)]
    _joints(kept, report)
    for segment in kept:
        _damage(segment, report)
    return kept[-1].next_offset if kept and kept[-1].is_scanned else None


def _what_a_start_changes(rehearsal: Rehearsal, report: Report, *, is_opened: bool) -> None:
    is_at_rest = is_opened and not report.in_use
    for number, segment in enumerate(rehearsal.all_segments):
        if segment.torn_bytes and is_at_rest:
            detail = f"{segment.torn_bytes} bytes behind the last whole batch, from byte {segment.size} on"
            finding = report.found(Kind.TORN_TAIL, segment.path, detail)
            finding.position, finding.size_bytes = segment.size, segment.torn_bytes
        # An index is proof for all segments before its own, so it must not be made anew while one of them
        # still waits for a broker to sync it. That broker makes this index as well.
        may_be_rebuilt = number < rehearsal.proven or (number == rehearsal.proven and is_at_rest)
        if segment.index_problem is not None and may_be_rebuilt:
            report.found(Kind.BAD_INDEX, segment.index_path, segment.index_problem)
    if rehearsal.dropped and is_at_rest:
        end = rehearsal.segments[-1].next_offset
        for segment in rehearsal.dropped:
            detail = f"it begins at offset {segment.base_offset}, what was synced ends at {end}"
            report.found(Kind.EARLY_SEGMENT, segment.path, detail)


def _joints(kept: list[UntouchedSegment], report: Report) -> None:
    """Whether each segment goes on where the one before ends."""
    for one, following in itertools.pairwise(kept):
        if not (one.is_scanned and following.is_scanned):
            continue
        if one.next_offset > following.base_offset or one.next_index > following.base_index:
            detail = f"it begins at offset {following.base_offset}, the one before ends at {one.next_offset}"
            report.found(Kind.OVERLAPPING_SEGMENT, following.path, detail)
        one.ends_at(following.base_offset, following.base_index)


def _damage(segment: UntouchedSegment, report: Report) -> None:
    for hole in segment.holes:
        if hole.end > hole.position:
            kind, detail = Kind.DAMAGED_BATCHES, f"bytes {hole.position} to {hole.end} fail their checksum"
        else:
            kind, detail = Kind.MISSING_OFFSETS, f"at byte {hole.position} some should follow that are not there"
        if hole.first_offset == hole.next_offset and hole.first_index < hole.next_index:
            detail += "; no messages, but entries that replicas share"
        finding = report.found(kind, segment.path, detail)
        finding.position, finding.size_bytes = hole.position, hole.end - hole.position
        finding.first_offset, finding.next_offset = hole.first_offset, hole.next_offset


# --- repairing ------------------------------------------------------------------------------------------


def cut_torn_tail(path: Path) -> int:
    """Let the broker's own code cut a segment; returns how many bytes that were."""
    segment = Segment(path)
    try:
        if segment.proof() is None and segment.knows_of_a_sync:
            # The frame that proves the segments before this one may stand behind the tear. A broker has kept
            # that proof in their indexes when it cuts; here this segment's own has to.
            segment.scan(sealed=False)
            sync_file(segment.fd)
            segment.save_index(sealed=False)
        return segment.open_for_append()
    finally:
        segment.release()


def rebuild_index(path: Path) -> None:
    """Make the index at `path` anew, saying no more about what was synced than is known."""
    segment = Segment(path.with_suffix(".log"))
    is_proven = Rehearsal(path.parent).is_proven(segment.path)
    try:
        if is_proven:
            segment.scan(sealed=True)
        else:
            segment.open_for_append()
            sync_file(segment.fd)
        segment.save_index(sealed=is_proven)
    finally:
        segment.release()

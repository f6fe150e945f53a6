"""Reading a log: which segment holds an offset or an entry, and what is known about all of them together."""

from __future__ import annotations

from bisect import bisect_right

from holdfast.model.entries import Entry
from holdfast.model.errors import OffsetOutOfRange
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.storage.entries import EntryGone
from holdfast.storage.frames import Hole
from holdfast.storage.index import TermRuns
from holdfast.storage.segment import Segment

# Sealed segments that stay open for reading; a reader far behind needs one, the tail none.
_OPEN_SEALED_SEGMENTS_MAX = 4


class ReadableLog:
    """What does not change a log."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        # Sealed by us but not yet covered by a sync: their files stay open.
        self._unsynced_sealed: list[Segment] = []
        self._open_sealed: list[Segment] = []
        # The terms of all segments but the newest one.
        self._sealed_runs: TermRuns = []

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
    def first_index(self) -> LogIndex:
        """The oldest entry that is there, or the next one if there is none."""
        return self.segments[0].base_index

    @property
    def last_index(self) -> LogIndex:
        """The newest entry, or the one before the first if there is none."""
        return LogIndex(self.segments[-1].next_index - 1)

    @property
    def previous_term(self) -> Term:
        """The term of the entry before `first_index`; 0 at the very beginning."""
        return self.segments[0].previous_term

    def term_runs(self) -> TermRuns:
        """The first entry of each row of entries of one term, from `first_index` on.

        The terms of damaged entries are not known: they count to the row before them.
        """
        return _joined([*self._sealed_runs, *self.active.term_runs])

    def _refresh_runs(self) -> None:
        self._sealed_runs = _joined([run for segment in self.segments[:-1] for run in segment.term_runs])

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def holes(self) -> list[tuple[str, Hole]]:
        return [(segment.path.name, hole) for segment in self.segments for hole in segment.holes]

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
        number = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
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

    def read_entries(self, first: LogIndex, bytes_max: int, last: LogIndex, *, may_block: bool = True) -> list[Entry]:
        """Whole entries of every kind from `first` up to and including `last`, at least one if there is one.

        They all come from one segment, and may be fewer than there is room for. Raises `EntryGone` below
        `first_index`, `DamagedEntries`, and `NotCached` where `may_block` is false and the disk would have to be asked.
        """
        if first < self.first_index:
            raise EntryGone(first, self.first_index)
        last = min(last, self.last_index)
        if first > last:
            return []
        segment = self.segments[self._segment_number_of_entry(first)]
        for hole in segment.holes:
            if hole.first_index <= first < hole.next_index:
                raise segment.damaged_entries(hole)
        return self._opened(segment).read_entries(first, bytes_max, last, may_block=may_block)

    def _segment_number_of_entry(self, index: LogIndex) -> int:
        return bisect_right(self.segments, index, key=lambda segment: segment.base_index) - 1

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


def _joined(runs: TermRuns) -> TermRuns:
    """The same runs, where neighbours of one term are one."""
    return [run for number, run in enumerate(runs) if not number or runs[number - 1][1] != run[1]]

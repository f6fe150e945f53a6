"""Reading a segment: through the page cache with `pread`, and nothing is handed out that fails its CRC.

Messages are found by their offsets, entries of every kind by their numbers. Either way a reader starts at an
entry of the sparse index and walks from frame to frame. Known damage is stepped over or told, never served.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.model.entries import KIND_BATCH, Entry
from holdfast.model.errors import DamagedData, ReadFailed
from holdfast.model.ids import LogIndex, Offset, TimestampMs
from holdfast.storage import frames
from holdfast.storage.entries import DamagedEntries
from holdfast.storage.frames import Hole
from holdfast.storage.index import Place
from holdfast.storage.segment_file import NotCached, SegmentFile

# A walk from an index entry to the wanted frame reads this much first.
_READ_AHEAD_BYTES = 64 * 1024
# Followers go on where they left off: that many such places are remembered, and spared the walk.
_PLACES_REMEMBERED = 8


class ReadableSegment(SegmentFile):
    """What readers of messages and of entries ask a segment."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._places_left: dict[LogIndex, Place] = {}

    # --- messages ---------------------------------------------------------------------------------

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset, *, may_block: bool = True) -> list[memoryview]:
        """Whole batches below `end_offset`, the first one holding `offset`, at least one if there is any.

        Raises `DamagedData`, `NotCached` where `may_block` is false and the disk would have to be asked, and
        `ReadFailed` where it was asked and did not answer.
        """
        try:
            return self._read(offset, bytes_max, end_offset, may_block=may_block)
        except OSError as error:
            raise self._read_failed(error) from error

    def _read(self, offset: Offset, bytes_max: int, end_offset: Offset, *, may_block: bool) -> list[memoryview]:
        # `reached` is the offset that is expected at `position`.
        position, reached, log_index = self.index.place_of(offset) or self.beginning
        batches: list[memoryview] = []
        taken = 0
        while position < self.size and (taken < bytes_max or not batches):
            hole = self._hole_at(position)
            if hole is not None:
                if batches:
                    break
                if offset < hole.next_offset:
                    raise self.damage(hole)
                position, reached, log_index = hole.end, hole.next_offset, hole.next_index
                continue
            shift = position
            try:
                piece = self._piece(position, bytes_max - taken, may_block=may_block)
            except NotCached:
                if batches:
                    break
                raise
            while (frame := frames.frame_at(piece, position - shift, file_position=position)) is not None:
                if frame.base_offset >= end_offset or (batches and taken + frame.end - frame.position > bytes_max):
                    return batches
                if frame.end - shift > len(piece):
                    break
                if frame.base_offset > reached:
                    self._note_gap(Place(position, reached, log_index), frame)
                    if batches:
                        return batches
                    if offset < frame.base_offset:
                        raise self.damage(self.holes[-1])
                if frame.next_offset > offset and frame.kind == KIND_BATCH:
                    if not frames.payload_is_sound(piece, frame, shift=shift):
                        break
                    batches.append(piece[frame.payload_position - shift : frame.end - shift])
                    taken += frame.end - frame.position
                position, reached, log_index = frame.end, frame.next_offset, LogIndex(frame.log_index + 1)
            if position == shift:
                self._note_damage(Place(position, reached, log_index))
        return batches

    def first_at_or_after(self, timestamp_ms: TimestampMs) -> Offset | None:
        """The base offset of the first batch that holds a message of that time or later."""
        place = self.index.place_before(timestamp_ms) or self.beginning
        while place.position < self.size:
            hole = self._hole_at(place.position)
            frame = self._single_frame(place.position) if hole is None else None
            if hole is not None:
                place = Place(hole.end, hole.next_offset, hole.next_index)
            elif frame is None:
                self._note_damage(place)
            elif frame.kind == KIND_BATCH and frame.max_timestamp_ms >= timestamp_ms:
                return frame.base_offset
            else:
                place = Place(frame.end, frame.next_offset, LogIndex(frame.log_index + 1))
        return None

    def damage(self, hole: Hole) -> DamagedData:
        """The error that tells a reader about a hole."""
        return DamagedData(
            f"offsets {hole.first_offset} to {hole.next_offset - 1} are damaged on disk and not served; "
            f"go on at offset {hole.next_offset} (in {self.path.name}, bytes {hole.position} to {hole.end})",
            hole.next_offset,
        )

    # --- entries ----------------------------------------------------------------------------------

    def read_entries(self, first: LogIndex, bytes_max: int, last: LogIndex, *, may_block: bool = True) -> list[Entry]:
        """Whole entries from `first` up to `last`, at least one if there is one here.

        Raises `DamagedEntries`, `NotCached` and `ReadFailed` as `read` does.
        """
        try:
            return self._read_entries(first, bytes_max, last, may_block=may_block)
        except OSError as error:
            raise self._read_failed(error) from error

    def _read_entries(self, first: LogIndex, bytes_max: int, last: LogIndex, *, may_block: bool) -> list[Entry]:
        place = self._places_left.get(first) or self.index.place_of_entry(first) or self.beginning
        # `log_index` and `offset` are the ones expected at `position`.
        position, offset, log_index = place
        entries: list[Entry] = []
        taken = 0
        is_full = False
        while position < self.size and log_index <= last and not is_full and (taken < bytes_max or not entries):
            hole = self._hole_at(position)
            if hole is not None:
                if entries:
                    break
                if first < hole.next_index:
                    raise self.damaged_entries(hole)
                position, offset, log_index = hole.end, hole.next_offset, hole.next_index
                continue
            shift = position
            try:
                piece = self._piece(position, bytes_max - taken, may_block=may_block)
            except NotCached:
                if entries:
                    break
                raise
            while log_index <= last:
                frame = frames.frame_at(piece, position - shift, file_position=position)
                if frame is None:
                    break
                end = frame.end
                is_full = bool(entries) and taken + end - position > bytes_max
                if is_full or end - shift > len(piece):
                    break
                if frame.log_index != log_index:
                    self._note_gap(Place(position, offset, log_index), frame)
                    is_full = bool(entries)
                    if is_full:
                        break
                    if first < frame.log_index:
                        raise self.damaged_entries(self.holes[-1])
                    log_index = frame.log_index
                if log_index >= first:
                    if not frames.payload_is_sound(piece, frame, shift=shift):
                        break
                    entries.append(Entry(frame.term, frame.kind, piece[frame.payload_position - shift : end - shift]))
                    taken += end - position
                position, offset, log_index = end, frame.next_offset, LogIndex(log_index + 1)
            if position == shift and not is_full:
                self._note_damage(Place(position, offset, log_index))
        self._remember(Place(position, offset, log_index))
        return entries

    def damaged_entries(self, hole: Hole) -> DamagedEntries:
        """The error that tells a reader of entries about a hole."""
        return DamagedEntries(
            f"entries {hole.first_index} to {hole.next_index - 1} are damaged on disk "
            f"(in {self.path.name}, bytes {hole.position} to {hole.end})",
            hole.next_offset,
            hole.first_index,
            hole.next_index,
        )

    def _remember(self, place: Place) -> None:
        places = self._places_left
        places.pop(place.log_index, None)
        places[place.log_index] = place
        if len(places) > _PLACES_REMEMBERED:
            del places[next(iter(places))]

    # --- both -------------------------------------------------------------------------------------

    def _piece(self, position: int, bytes_wanted: int, *, may_block: bool) -> memoryview:
        """Bytes of the file from `position` on that hold at least one whole frame."""
        length = min(max(bytes_wanted, 0) + _READ_AHEAD_BYTES, self.size - position)
        piece = self._pread(length, position, may_block=may_block)
        frame = frames.frame_at(piece, 0, file_position=position)
        if frame is not None and frame.end - position > len(piece) and frame.end <= self.size:
            piece = self._pread(frame.end - position, position, may_block=may_block)
            if len(piece) < frame.end - position:
                raise NotCached(self.path, position, frame.end - position)
        return piece

    def _note_gap(self, expected: Place, frame: frames.Frame) -> None:
        """Entries are missing between two frames, without a trace; their hole is then the last one known."""
        position, offset, log_index = expected
        hole = Hole(position, position, offset, frame.base_offset, log_index, frame.log_index)
        if hole in self.holes:
            self.holes.remove(hole)
        self.holes.append(hole)

    def _read_failed(self, error: OSError) -> ReadFailed:
        return ReadFailed(f"reading {self.path.name} failed: {error.strerror}; check the disk")

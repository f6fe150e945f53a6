"""The log of one partition: a directory of segments that together hold one row of entries and of offsets.

Files in the directory: segments (`segment.py`), their indexes (`index.py`), and the ids of messages that were deleted
(`ids_file.py`). Of the segments
only the newest is written to. It is sealed, and the next one begun, when it has reached its size.

Entries are numbered from 1 on (from 0 in logs of older versions), messages from 0 on. An entry is a record batch
or a note that takes no offset and is only seen by `read_entries`. A leader writes with `append` and `append_note`,
a follower, or a leader that has many at once, with `append_placed`.

Three marks move forward: what is written (in the page cache), what is synced (on the disk) and the commit
mark, which is not kept here. Readers are told how far they may read by whoever calls. Only `truncate_from` and
`reset` move marks back.

Crash cases:

- *while appending*: what is behind the last sync is cut off at start as far as it is not whole
  (`frames.py`); whole entries behind it may stay, unacknowledged ones included, in order.
- *while beginning a segment*: the file is absent (its directory entry was not synced: nothing in it was
  acknowledged, for a sync of the log includes the directory), or empty, or begun. All are a valid end.
- *after beginning segments, before the ones before are synced*: a sync of the log covers all of them, so an
  acknowledged batch is never behind an unsynced one. If an older file lost its end all the same, the newer
  ones do not join on; none of their entries was acknowledged, and they are deleted.
- *never in that order*: the end of a segment is missing that has an index, or that has a later segment with an
  index or a frame that knows of a sync. It was synced then: this is damage, is told, and nothing is deleted.
- *while deleting old segments*: oldest first, so what is left is still one row.
- *while truncating*: later segments go first, the newest one first and each one's index before it; then the index
  of the segment that is cut, since an index proves bytes that are to go; then the directory is synced. So far
  the old tail is whole, or it is shorter by whole segments. Only then the segment itself is cut: the newest one in
  place and synced, before anything is written behind it; a sealed one by renaming a synced copy of what stays
  over it. Each of the two leaves all of that segment or the part that stays. A copy without its new name
  (`*.log.tmp`) is deleted at start.
- *while resetting*: the new, empty segment is made with the suffix `.reset`. Once that name is synced, the old
  entries are gone for good: then all segments are deleted, that is synced, and the new one gets its real name.
  At start, a `.reset` that is there finishes this. If it is not there, nothing had happened or all is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.model.entries import KIND_BATCH, NOTE_HEAD_BYTES, Entry
from holdfast.model.errors import HoldfastError, ShuttingDown, StorageFailed, Unavailable
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.model.limits import SEGMENT_BYTES_DEFAULT
from holdfast.model.waiting import Kept
from holdfast.storage.durable import sync_directory, sync_file
from holdfast.storage.entries import EPOCH_MASK, EntryGone, Placed, checked
from holdfast.storage.frames import FRAME_BYTES
from holdfast.storage.log_reading import ReadableLog
from holdfast.storage.recovery import (
    RESET_SUFFIX,
    Recovery,
    join_terms,
    note_missing_ends,
    proven_segments,
    recover_tail,
    unfinished_reset,
)
from holdfast.storage.segment import ENTRIES_PER_WRITE_MAX, Cut, Segment
from holdfast.wire import record_batch
from holdfast.wire.record_batch import Buffer

__all__ = ["PartitionLog", "Recovery", "SyncPoint", "sync_directory"]

_FIRST_INDEX = LogIndex(1)


class SyncPoint(NamedTuple):
    """What one sync of a log has to do, and what holds once it is done."""

    files: list[int]
    directory: Path | None
    end: Offset
    last_index: LogIndex
    segment: Segment
    position: int


class PartitionLog(ReadableLog):
    """Appends and reads in one directory. Not thread-safe: all calls come from one thread."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES_DEFAULT) -> None:
        super().__init__()
        self.directory = directory
        self.segment_bytes = segment_bytes
        # Everything below this offset, and everything up to and including this entry, is on the disk.
        self.synced_end = Offset(0)
        self.synced_index = LogIndex(0)
        self._synced_position = 0
        self._directory_dirty = False
        # Whether somebody uses the files of a sync point: until `synced` none of them may be closed.
        self._syncing = False
        # Gone from the log, but their files wait for the sync that uses them.
        self._retired: list[Segment] = []
        # The least that was left by a truncation since the sync point: the sync covers no more than that.
        self._cut_while_syncing: Cut | None = None
        self._closed: HoldfastError | None = None

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def open(cls, directory: Path, *, segment_bytes: int = SEGMENT_BYTES_DEFAULT) -> tuple[PartitionLog, Recovery]:
        """Open or create the log in `directory`, and make it whole after a crash."""
        log = cls(directory, segment_bytes=segment_bytes)
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob("*.tmp"):
            leftover.unlink()
        beginning = unfinished_reset(directory)
        if beginning is not None:
            _finish_reset(directory, beginning)
        segments = [Segment(path) for path in sorted(directory.iterdir()) if Segment.is_segment(path)]
        log.segments = segments or [Segment.create(directory, Offset(0), _FIRST_INDEX, Term(0))]
        proven = proven_segments(log.segments)
        for segment in log.segments[:proven]:
            segment.open_sealed()
        torn_bytes, deleted = recover_tail(log.segments, proven)
        note_missing_ends(log.segments)
        join_terms(log.segments)
        # What was found counts as durable only once it is: a crash before may have left it unsynced.
        sync_file(log.active.fd)
        if log.active.size:
            log.active.keep_index(sealed=False)
        log.sync_directory()
        log._count_as_synced()
        log._refresh_runs()
        return log, Recovery(torn_bytes, [segment.path.name for segment in deleted], log.holes())

    def _count_as_synced(self) -> None:
        self.synced_end, self.synced_index = self.written_end, self.last_index
        self._synced_position = self.active.size

    # --- writing ----------------------------------------------------------------------------------

    def append(self, batch: bytearray, term: Term) -> Offset:
        """Give the batch its place and write it; durable only after a sync. Returns the base offset."""
        active = self.segments[-1]
        if active.size and active.size + len(batch) > self.segment_bytes:
            active = self._begin_segment()
        base_offset = active.next_offset
        record_batch.place(batch, base_offset, term & EPOCH_MASK)
        active.append(batch, term, self._synced_position)
        return base_offset

    def append_note(self, kind: int, body: Buffer, term: Term) -> LogIndex:
        """Write an entry that readers never see; returns its number."""
        assert kind != KIND_BATCH, "batches are appended with `append`"
        active = self._with_room_for(NOTE_HEAD_BYTES + len(body))
        log_index = active.next_index
        active.append_note(kind, body, term, self._synced_position)
        return log_index

    def placed(self, batches: Iterable[bytearray], term: Term) -> list[Placed]:
        """Give batches their places behind the log; `append_placed` writes them there."""
        epoch, offset = term & EPOCH_MASK, self.written_end
        found = []
        for batch in batches:
            record_batch.place(batch, offset, epoch)
            messages, newest_ms = record_batch.extent(batch)
            base_offset, offset = offset, Offset(offset + messages)
            found.append(Placed(Entry(term, KIND_BATCH, batch), base_offset, offset, newest_ms))
        return found

    def checked(self, entries: Iterable[Entry]) -> list[Placed]:
        """Entries that have got their place elsewhere. Raises `BadEntry` if one is damaged or does not join on."""
        return checked(entries, self.written_end)

    def append_placed(self, placed: Sequence[Placed]) -> None:
        """Write many entries that were placed behind this log, and nothing since.

        Where the disk refuses (`DiskFull`, `StorageFailed`), the first of them may have been written and stay;
        `last_index` tells.
        """
        start = 0
        while start < len(placed):
            active = self._with_room_for(len(placed[start].entry.payload))
            end, size = start, active.size
            while end < len(placed) and end - start < ENTRIES_PER_WRITE_MAX:
                payload_bytes = len(placed[end].entry.payload)
                if end > start and size + payload_bytes > self.segment_bytes:
                    break
                size += FRAME_BYTES + payload_bytes
                end += 1
            active.append_placed(placed[start:end], self._synced_position)
            start = end

    def _with_room_for(self, payload_bytes: int) -> Segment:
        active = self.segments[-1]
        is_full = active.size and active.size + payload_bytes > self.segment_bytes
        return self._begin_segment() if is_full else active

    def _begin_segment(self) -> Segment:
        self.check_open()
        sealed = self.active
        created = Segment.create(self.directory, sealed.next_offset, sealed.next_index, sealed.last_term)
        if self.synced_index == self.last_index and not self._syncing:
            self._seal(sealed)
        else:
            self._unsynced_sealed.append(sealed)
        self.segments.append(created)
        self._synced_position = 0
        self._directory_dirty = True
        self._refresh_runs()
        return created

    # --- taking back ------------------------------------------------------------------------------

    def truncate_from(self, index: LogIndex) -> None:
        """Remove the entry `index` and all behind it. Durable on return, and so slow; for conflicts, which are rare.

        Raises `EntryGone` if there is no such entry any more, `DamagedEntries` if the cut would be within damage,
        `DiskFull` if there is no room for a copy: then nothing was changed. After `StorageFailed` the log must not
        be written to until it is opened again.
        """
        self.check_open()
        if index > self.last_index:
            return
        if index < self.first_index:
            raise EntryGone(index, self.first_index)
        number = self._segment_number_of_entry(index)
        segment = self.segments[number]
        is_active = segment is self.active
        cut = segment.cut_before(index)
        kept = segment if is_active else segment.copied(cut)
        # The marks first: whatever happens below, nothing counts as synced that is going away.
        self.synced_end = min(self.synced_end, cut.next_offset)
        self.synced_index = min(self.synced_index, LogIndex(index - 1))
        self._note_cut(cut)
        try:
            for later in reversed(self.segments[number + 1 :]):
                self.segments.remove(later)
                self._retire(later)
                later.unlink()
            segment.forget_index()
            self.sync_directory()
            if is_active:
                segment.cut(cut)
            else:
                self.segments[number] = kept
                self._retire(segment)
                kept.take_place()
                self.sync_directory()
        except OSError as error:
            raise StorageFailed(f"removing entries from {index} on failed: {error.strerror}") from error
        if self.synced_index == self.last_index:
            self._synced_position = cut.position
        else:
            self._synced_position = min(self._synced_position, cut.position) if is_active else 0
        self._refresh_runs()

    def reset(self, next_index: LogIndex, next_offset: Offset, previous_term: Term) -> None:
        """Throw everything away and begin anew: durable on return, and never half done.

        Raises `DiskFull` if there is no room for a file, and nothing was changed. After `StorageFailed` the log
        must not be used until it is opened again; then everything is as before, or all is done.
        """
        self.check_open()
        created = Segment.create(self.directory, next_offset, next_index, previous_term, suffix=RESET_SUFFIX)
        try:
            self.sync_directory()
            for segment in self.segments:
                self._retire(segment)
            self.segments = [created]
            created.path = _finish_reset(self.directory, created.path)
        except OSError as error:
            raise StorageFailed(f"beginning the log anew at entry {next_index} failed: {error.strerror}") from error
        self._note_cut(Cut(0, next_offset, next_index, TimestampMs(-1)))
        self._directory_dirty = False
        self._count_as_synced()
        self._refresh_runs()

    def _note_cut(self, cut: Cut) -> None:
        if self._syncing:
            self._cut_while_syncing = Cut._make(map(min, self._cut_while_syncing or cut, cut))

    def _retire(self, segment: Segment) -> None:
        """Close a segment that is no part of the log any more, as soon as no sync uses its file."""
        for owners in (self._unsynced_sealed, self._open_sealed):
            if segment in owners:
                owners.remove(segment)
        if self._syncing:
            self._retired.append(segment)
        else:
            segment.release()

    # --- syncing: the caller syncs `files` and the directory in any thread, then calls `synced` ------

    def sync_point(self) -> SyncPoint:
        """What must be synced so that everything written until now is durable."""
        self._syncing = True
        active = self.active
        files = [*(segment.fd for segment in self._unsynced_sealed), active.fd]
        directory = self.directory if self._directory_dirty else None
        return SyncPoint(files, directory, self.written_end, self.last_index, active, active.size)

    def synced(self, point: SyncPoint) -> None:
        """Take note that everything up to `point` is on the disk, as far as it is still there."""
        self._syncing = False
        end, index, position = point.end, point.last_index, point.position
        if self._cut_while_syncing is not None:
            cut, self._cut_while_syncing = self._cut_while_syncing, None
            end, position = min(end, cut.next_offset), min(position, cut.position)
            index = min(index, LogIndex(cut.next_index - 1))
        for segment in self._retired:
            segment.release()
        self._retired.clear()
        if index > self.synced_index:
            self.synced_end, self.synced_index = end, index
        still_unsynced = [s for s in self._unsynced_sealed if s.next_index > index + 1]
        for segment in self._unsynced_sealed:
            if segment not in still_unsynced:
                self._seal(segment)
        self._unsynced_sealed = still_unsynced
        if point.segment is self.active:
            self._synced_position = position
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

    # --- retention --------------------------------------------------------------------------------

    def expirable(
        self, *, older_than_ms: TimestampMs | None, bytes_max: int | None, kept: Kept | None = None
    ) -> Offset:
        """Where the log would begin without the segments that are too old or too much; `kept` stays for a reader."""
        begin, size = self.start_offset, self.size_bytes
        for segment in self.segments:
            if segment is self.active:
                # One that only has notes is never too old.
                too_old, too_much = older_than_ms is not None and 0 <= segment.newest_ms < older_than_ms, False
            else:
                too_old = older_than_ms is not None and segment.newest_ms < older_than_ms
                size -= segment.size
                too_much = bytes_max is not None and size >= bytes_max
            is_kept = kept is not None and segment.next_offset > kept.from_offset and segment.newest_ms >= kept.since_ms
            if is_kept or not (too_old or too_much):
                break
            begin = segment.next_offset
        return begin

    def droppable(self, begin: Offset, through_index: LogIndex | None = None, *, renews: bool = False) -> list[Segment]:
        """Whole segments of messages below `begin`, oldest first.

        Notes take no offset, so a log that has any also says which entry is the last that may go. The newest segment
        goes only if the log `renews` itself.
        """
        found = []
        for segment in self.segments:
            is_shown = through_index is None or segment.next_index <= through_index + 1
            stays = segment in self._unsynced_sealed
            if segment is self.active:
                stays = not renews or segment.newest_ms < 0
            if stays or segment.next_offset > begin or not is_shown:
                break
            found.append(segment)
        return found

    def drop_below(self, begin: Offset, *, through_index: LogIndex | None = None, renews: bool = False) -> int:
        """Delete what is `droppable`, the newest segment only if there is room for another; returns how many.

        Raises `StorageFailed` where the disk refuses another one for any other reason, and nothing was deleted.
        """
        self.check_open()
        if self.active in self.droppable(begin, through_index, renews=renews):
            with contextlib.suppress(Unavailable):  # then only what is full already can go
                self._begin_segment()
                # The new name before the old ones go: without any name, offsets would begin at zero again.
                self.sync_directory()
        going = self.droppable(begin, through_index)
        for oldest in going:
            del self.segments[0]
            self._retire(oldest)
            oldest.unlink()
        if going:
            self._refresh_runs()
        return len(going)

    def close(self, why: HoldfastError | None = None) -> None:
        """Close all files; if everything is synced, the index of the newest segment records that.

        Any later use raises `why` and touches no file: the directory may belong to another log by then.
        """
        if self._closed is not None:
            return
        if self.synced_index == self.last_index and self.active.size:
            self.active.keep_index(sealed=False)
        self._closed = why or ShuttingDown(f"the log in {self.directory} is closed")
        for segment in (*self.segments, *self._retired):
            segment.close(self._closed)

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def check_open(self) -> None:
        """For whatever names files; segments refuse by themselves to be opened again."""
        if self._closed is not None:
            raise self._closed


def _finish_reset(directory: Path, beginning: Path) -> Path:
    """Delete everything but the new beginning, then give that its real name; returns it."""
    for path in directory.iterdir():
        if path != beginning and path.suffix in (".log", ".index", RESET_SUFFIX):
            path.unlink()
    sync_directory(directory)
    segment = beginning.rename(beginning.with_suffix(".log"))
    sync_directory(directory)
    return segment

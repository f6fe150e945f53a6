"""One segment: a file of frames, named after the first offset and the first entry in it.

`<base offset, 20 digits>-<base index, 20 digits>.log`. Only the newest segment of a log is written to; a
segment is sealed when the next one is begun, and from then on it never changes. Reading goes through the
page cache with `pread`; every batch is checked against its CRC before it is handed out.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.model.errors import DamagedData, DiskFull, ReadFailed, StorageFailed, Unavailable
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.storage import frames
from holdfast.storage.frames import FRAME_BYTES, Frame, Hole
from holdfast.storage.index import SparseIndex
from holdfast.wire import record_batch

_NAME = re.compile(r"(\d{20})-(\d{20})\.log\Z")
# A walk from an index entry to the wanted frame reads this much first.
_READ_AHEAD_BYTES = 64 * 1024
# So much of a file is read at a time before it is looked at.
_TOUCH_BYTES = 1024 * 1024
# A check in the background works for about a tenth of a millisecond, then pauses.
_FRAMES_BETWEEN_PAUSES = 32
_PAUSE_S = 0.0005
# "Fail rather than wait for the disk", where the system knows that.
_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)

T = TypeVar("T")


class NotCached(Exception):
    """The bytes are not in memory: `warm` them in another thread, then read again."""

    def __init__(self, path: Path, position: int, length: int) -> None:
        super().__init__(f"{path.name} bytes {position} to {position + length}")
        self.path = path
        self.position = position
        self.length = length

    def warm(self) -> None:
        """Read the bytes so that the page cache has them. Slow; safe in any thread."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:  # deleted by retention: fine
            os.pread(file.fileno(), self.length, self.position)


class Segment:
    """Bytes, index and known damage of one segment file."""

    def __init__(self, path: Path) -> None:
        match = _NAME.search(path.name)
        assert match is not None, f"not a segment file name: {path.name}"
        self.path = path
        self.base_offset = Offset(int(match[1]))
        self.base_index = LogIndex(int(match[2]))
        self.next_offset = self.base_offset
        self.next_index = self.base_index
        self.size = 0
        self.newest_ms = TimestampMs(-1)
        self.holes: list[Hole] = []
        self._fd: int | None = None
        self._index: SparseIndex | None = None

    @staticmethod
    def is_segment(path: Path) -> bool:
        return _NAME.search(path.name) is not None

    @classmethod
    def create(cls, directory: Path, base_offset: Offset, base_index: LogIndex) -> Segment:
        """A new, empty segment, ready to be appended to."""
        segment = cls(directory / f"{base_offset:020d}-{base_index:020d}.log")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            segment._fd = os.open(segment.path, flags, 0o640)
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
            os.fsync(self.fd)
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
        return self.holes

    def ends_at(self, next_offset: Offset, next_index: LogIndex) -> None:
        """Take note of where this segment is known to end: what is not there up to that is damage."""
        if self.next_offset >= next_offset:
            return
        position, first = self.size, self.next_offset
        if self.holes and self.holes[-1].end == self.size:
            position, _, first, _ = self.holes.pop()
        self.holes.append(Hole(position, self.size, first, next_offset))
        self.next_offset, self.next_index = next_offset, next_index

    def verify(self, *, sealed: bool) -> frames.Scan:
        """Check every frame without changing anything, neither here nor on disk; safe in any thread."""
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = self._scanned(file.fileno(), size, _Unhurried(), sealed=sealed)
        # Behind damage that reaches to the end, only we know how much there was.
        holes = [h._replace(next_offset=self.next_offset) if sealed and h.end == size else h for h in found.holes]
        return found._replace(holes=holes)

    def _scanned(self, fd: int, size: int, index: SparseIndex, *, sealed: bool, synced: int = 0) -> frames.Scan:
        def visit(frame: Frame) -> None:
            index.add(frame.base_offset, frame.position, frame.max_timestamp_ms)

        def scan(data: memoryview) -> frames.Scan:
            return frames.scan(data, self.base_offset, self.base_index, visit, sealed=sealed, synced=synced)

        return self._mapped(fd, size, scan, frames.Scan(0, self.base_offset, self.base_index, []))

    @staticmethod
    def _mapped(fd: int, size: int, look: Callable[[memoryview], T], if_empty: T) -> T:
        if not size:  # an empty file cannot be mapped
            return if_empty
        # A bad sector is an error here, and would be the end of the process in a mapped file.
        for position in range(0, size, _TOUCH_BYTES):
            os.pread(fd, _TOUCH_BYTES, position)
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            return look(data)

    # --- writing ----------------------------------------------------------------------------------

    def append(self, batch: bytearray, term: Term, synced: int) -> None:
        """Write one placed batch. On any error the file is as it was before.

        Raises `DiskFull` when there is no room (it may work later) and `StorageFailed` otherwise.
        """
        head = frames.frame_header(batch, self.size, self.next_index, term, synced)
        length = len(head) + len(batch)
        try:
            written = os.pwritev(self.fd, (head, batch), self.size)
        except OSError as error:
            self._undo(error)
            raise as_write_error(error) from error
        if written != length:
            self._undo(None)
            raise DiskFull(f"the disk took {written} of {length} bytes; make room and send it again")
        messages, newest_ms = record_batch.extent(batch)
        self.index.add(self.next_offset, self.size, newest_ms)
        if newest_ms > self.newest_ms:
            self.newest_ms = newest_ms
        self.size += length
        self.next_offset = Offset(self.next_offset + messages)
        self.next_index = LogIndex(self.next_index + 1)

    def _undo(self, cause: OSError | None) -> None:
        try:
            os.ftruncate(self.fd, self.size)
        except OSError as error:
            raise StorageFailed(f"a failed write could not be undone in {self.path.name}: {error}") from cause

    def keep_index(self, *, sealed: bool) -> None:
        """Write the index of bytes that are synced; never fails: where it cannot be written, there is none."""
        try:
            self.index.save(self.index_path, self.size, self.next_offset, self.next_index, sealed=sealed)
        except OSError:
            # The one before, if there is one, still proves what it says; only its temporary file goes.
            with contextlib.suppress(OSError):
                self.index_path.with_suffix(".index.tmp").unlink(missing_ok=True)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, offset: Offset, bytes_max: int, end_offset: Offset, *, may_block: bool = True) -> list[memoryview]:
        """Whole batches below `end_offset`, the first one holding `offset`, at least one if there is any.

        Raises `DamagedData`, `NotCached` where `may_block` is false and the disk would have to be asked, and
        `ReadFailed` where it was asked and did not answer.
        """
        try:
            return self._read(offset, bytes_max, end_offset, may_block=may_block)
        except OSError as error:
            raise ReadFailed(f"reading {self.path.name} failed: {error.strerror}; check the disk") from error

    def _read(self, offset: Offset, bytes_max: int, end_offset: Offset, *, may_block: bool) -> list[memoryview]:
        # `reached` is the offset that is expected at `position`.
        position, reached = self.index.entry_of(offset) or (0, self.base_offset)
        batches: list[memoryview] = []
        taken = 0
        while position < self.size and (taken < bytes_max or not batches):
            hole = self._hole_at(position)
            if hole is not None:
                if batches:
                    break
                if offset < hole.next_offset:
                    raise self.damage(hole)
                position, reached = hole.end, hole.next_offset
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
                    hole = Hole(position, position, reached, frame.base_offset)
                    if hole not in self.holes:
                        self.holes.append(hole)
                    if batches:
                        return batches
                    if offset < frame.base_offset:
                        raise self.damage(hole)
                if frame.next_offset > offset:
                    if not frames.payload_is_sound(piece, frame, shift=shift):
                        break
                    batches.append(piece[frame.payload_position - shift : frame.end - shift])
                    taken += frame.end - frame.position
                position, reached = frame.end, frame.next_offset
            if position == shift:
                self._note_damage(position, reached)
        return batches

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

    def _pread(self, length: int, position: int, *, may_block: bool) -> memoryview:
        """Up to `length` bytes. Without `may_block` only what is in memory already, at least a frame's header."""
        if may_block or not _RWF_NOWAIT:
            return memoryview(os.pread(self.fd, length, position))
        data = bytearray(length)
        try:
            got = os.preadv(self.fd, (data,), position, _RWF_NOWAIT)
        except BlockingIOError:
            raise NotCached(self.path, position, length) from None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):  # this file system cannot tell
                return memoryview(os.pread(self.fd, length, position))
            raise
        if got < min(length, FRAME_BYTES + record_batch.HEADER_BYTES):
            raise NotCached(self.path, position, length)
        return memoryview(data)[:got]

    def first_at_or_after(self, timestamp_ms: TimestampMs) -> Offset | None:
        """The base offset of the first batch that holds a message of that time or later."""
        position, reached = self.index.entry_before(timestamp_ms) or (0, self.base_offset)
        while position < self.size:
            hole = self._hole_at(position)
            frame = self._single_frame(position) if hole is None else None
            if hole is not None:
                position, reached = hole.end, hole.next_offset
            elif frame is None:
                self._note_damage(position, reached)
            elif frame.max_timestamp_ms >= timestamp_ms:
                return frame.base_offset
            else:
                position, reached = frame.end, frame.next_offset
        return None

    def _single_frame(self, position: int) -> Frame | None:
        """The frame whose header is at `position`, also when its payload was not read."""
        head = os.pread(self.fd, FRAME_BYTES + record_batch.HEADER_BYTES, position)
        frame = frames.frame_at(memoryview(head), 0, file_position=position)
        return frame if frame is not None and frame.end <= self.size else None

    def damage(self, hole: Hole) -> DamagedData:
        """The error that tells a reader about a hole."""
        return DamagedData(
            f"offsets {hole.first_offset} to {hole.next_offset - 1} are damaged on disk and not served; "
            f"go on at offset {hole.next_offset} (in {self.path.name}, bytes {hole.position} to {hole.end})",
            hole.next_offset,
        )

    def _hole_at(self, position: int) -> Hole | None:
        return next((hole for hole in self.holes if hole.position <= position < hole.end), None)

    def _note_damage(self, position: int, offset: Offset) -> None:
        """Damage that appeared while we run: remember it, so that readers can be told where to go on."""
        broken = self._single_frame(position)
        behind = position + 1 if broken is None else broken.end

        def find(data: memoryview) -> Frame | None:
            return frames.next_sound_frame(data, behind, LogIndex(0), offset)

        resumed = self._mapped(self.fd, self.size, find, None)
        if resumed is None:
            self.holes.append(Hole(position, self.size, offset, self.next_offset))
        else:
            self.holes.append(Hole(position, resumed.position, offset, resumed.base_offset))

    # --- files ------------------------------------------------------------------------------------

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".index")

    @property
    def fd(self) -> int:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._fd

    @property
    def index(self) -> SparseIndex:
        if self._index is None:
            loaded = SparseIndex.load(self.index_path, self.size)
            self._index = loaded[0] if loaded is not None else SparseIndex()
            if loaded is None:
                self._scanned(self.fd, self.size, self._index, sealed=True)
        return self._index

    def release(self) -> None:
        """Give back the file descriptor and the index; both come back when they are needed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._index = None

    def delete(self) -> None:
        self.release()
        self.index_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


class _Unhurried(SparseIndex):
    """Counts frames for a check in the background, and lets the event loop run in between."""

    def __init__(self) -> None:
        super().__init__()
        self._frames = 0

    def add(self, base_offset: Offset, position: int, max_timestamp_ms: TimestampMs) -> None:
        self._frames += 1
        if self._frames % _FRAMES_BETWEEN_PAUSES == 0:
            # Without it a thread that computes holds the interpreter for milliseconds at a time.
            time.sleep(_PAUSE_S)


def as_write_error(error: OSError) -> Unavailable:
    """What a failed write means: no room, too little of something else for a moment, or a broken disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the disk is full; make room and send it again, reads go on")
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"nothing was stored: {error.strerror}; close connections or allow more (ulimit -n)")
    return StorageFailed(f"writing to the log failed: {error.strerror}; nothing was stored")

"""The file of a segment: its name, its bytes, its index, and where it is known to be damaged.

`<base offset, 20 digits>-<base index, 20 digits>-<previous term, 10 digits or more>.log`: the offset of the first
message and the number of the first entry in it, and the term of the entry before that one, 0 at the very
beginning. Names of older logs have no third field; there the segment before knows.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.model.errors import HoldfastError
from holdfast.model.ids import LogIndex, Offset, Term, TimestampMs
from holdfast.storage import frames
from holdfast.storage.frames import FRAME_AND_HEAD_BYTES, Frame, Hole
from holdfast.storage.index import Place, SparseIndex, TermRuns

_NAME = re.compile(r"(\d{20})-(\d{20})(?:-(\d{10,}))?\Z")
# So much of a file is read at a time before it is looked at.
_TOUCH_BYTES = 1024 * 1024
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


class SegmentFile:
    """Bytes, index, terms and known damage of one segment."""

    def __init__(self, path: Path) -> None:
        match = _NAME.match(path.stem)
        assert match is not None, f"not a segment file name: {path.name}"
        self.path = path
        self.base_offset = Offset(int(match[1]))
        self.base_index = LogIndex(int(match[2]))
        self.previous_term = Term(int(match[3] or 0))
        self.knows_previous_term = match[3] is not None
        self.next_offset = self.base_offset
        self.next_index = self.base_index
        self.size = 0
        self.newest_ms = TimestampMs(-1)
        self.holes: list[Hole] = []
        # The first entry of each row of entries of one term. Unlike the index it always stays in memory.
        self.term_runs: TermRuns = []
        self._fd: int | None = None
        self._index: SparseIndex | None = None
        # Why this segment may not be used any more.
        self._closed: HoldfastError | None = None

    @staticmethod
    def is_segment(path: Path) -> bool:
        return path.suffix == ".log" and _NAME.match(path.stem) is not None

    @staticmethod
    def stem_of(base_offset: Offset, base_index: LogIndex, previous_term: Term) -> str:
        return f"{base_offset:020d}-{base_index:020d}-{previous_term:010d}"

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".index")

    @property
    def last_term(self) -> Term:
        return self.term_runs[-1][1] if self.term_runs else self.previous_term

    @property
    def beginning(self) -> Place:
        return Place(0, self.base_offset, self.base_index)

    @property
    def fd(self) -> int:
        if self._fd is None:
            self._check_open()
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._fd

    @property
    def index(self) -> SparseIndex:
        if self._index is None:
            self._check_open()
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

    def close(self, why: HoldfastError) -> None:
        """Release everything for good. Any later use raises `why`: another topic may own the file's name by then."""
        self.release()
        self._closed = why

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def forget_index(self) -> None:
        """Delete the index: from here on nothing says any more what was synced."""
        self.index_path.unlink(missing_ok=True)

    def unlink(self) -> None:
        """Delete the files, the index first: one without its segment would vouch for the next of that name."""
        self.forget_index()
        self.path.unlink(missing_ok=True)

    def delete(self) -> None:
        self.release()
        self.unlink()

    # --- bytes ------------------------------------------------------------------------------------

    def _scanned(self, fd: int, size: int, index: SparseIndex, *, sealed: bool, synced: int = 0) -> frames.Scan:
        runs = index.term_runs
        run_term: Term | None = None

        def visit(frame: Frame) -> None:
            nonlocal run_term
            index.add(frame.base_offset, frame.position, frame.max_timestamp_ms, frame.log_index)
            if frame.term != run_term:
                run_term = frame.term
                runs.append((frame.log_index, frame.term))

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
        if got < min(length, FRAME_AND_HEAD_BYTES):
            raise NotCached(self.path, position, length)
        return memoryview(data)[:got]

    def _single_frame(self, position: int) -> Frame | None:
        """The frame whose header is at `position`, also when its payload was not read."""
        head = os.pread(self.fd, FRAME_AND_HEAD_BYTES, position)
        frame = frames.frame_at(memoryview(head), 0, file_position=position)
        return frame if frame is not None and frame.end <= self.size else None

    # --- damage -----------------------------------------------------------------------------------

    def _hole_at(self, position: int) -> Hole | None:
        return next((hole for hole in self.holes if hole.position <= position < hole.end), None)

    def _note_damage(self, place: Place) -> None:
        """Damage that appeared while we run: remember it, so that readers can be told where to go on."""
        position, offset, log_index = place
        broken = self._single_frame(position)
        behind = position + 1 if broken is None else broken.end

        def find(data: memoryview) -> Frame | None:
            return frames.next_sound_frame(data, behind, log_index, offset)

        resumed = self._mapped(self.fd, self.size, find, None)
        if resumed is None:
            hole = Hole(position, self.size, offset, self.next_offset, log_index, self.next_index)
        else:
            hole = Hole(position, resumed.position, offset, resumed.base_offset, log_index, resumed.log_index)
        self.holes.append(hole)

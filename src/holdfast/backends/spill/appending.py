"""Writing to the spill: everything that waits is one round, written and synced in a thread, then acknowledged.

The event loop never waits for the disk. What comes during a round is the next one, as in `storage.syncer`; files are
begun, completed and named within a round, so one sync of the directory covers all of its names.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from holdfast.backends.spill.files import SpillDirectory, SpillFile, completed
from holdfast.broker.results import refuse
from holdfast.model.errors import DiskFull, HoldfastError, ShuttingDown, StorageFailed, Unavailable
from holdfast.model.limits import MIB
from holdfast.storage.durable import sync_data, sync_directory

log = structlog.get_logger("holdfast.spill")

# What may wait for the disk before publishers are refused.
WAITING_BYTES_MAX: Final = 64 * MIB
_ROUND_BYTES_MAX: Final = 16 * MIB
# A file that is as large is completed, however few messages it has: what a crash leaves is read at once.
FILE_BYTES_MAX: Final = 64 * MIB
# From so many times the least room on there is a warning.
WARN_TIMES: Final = 4
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# The kernel takes 1,024 pieces in one call.
_PIECES_MAX: Final = 1_000


class _Write(NamedTuple):
    lines: bytes
    events: int
    future: asyncio.Future[None]


class CompletedFile(NamedTuple):
    file: SpillFile
    events: int
    size_bytes: int


@dataclass
class _Active:
    """The file that is written to."""

    file: SpillFile
    fd: int
    events: int = 0
    size_bytes: int = 0
    # The end of it, as far as that is not in the file yet.
    unwritten: list[bytes] = field(default_factory=list)


@dataclass
class _Round:
    """What a round has to do, and what it has done so far; undone where the disk is full."""

    writes: list[_Write]
    is_last_of_file: bool
    began: list[tuple[_Active, int, int]] = field(default_factory=list)
    touched: dict[int, _Active] = field(default_factory=dict)
    sealed: list[_Active] = field(default_factory=list)


class Room:
    """How much the disk has left, and how much of it is for the spill."""

    def __init__(self, directory: SpillDirectory, free_bytes_min: int) -> None:
        self._directory = directory
        self.free_bytes_min = free_bytes_min
        self.free_bytes = 0
        self.is_scarce = False
        self.look()

    def look(self) -> None:
        """Raises `OSError`."""
        room = os.statvfs(self._directory.path)
        self.free_bytes = room.f_bavail * room.f_frsize
        is_scarce = self.free_bytes < WARN_TIMES * self.free_bytes_min
        if is_scarce and not self.is_scarce:
            log.warning(
                "spill_room_scarce",
                directory=str(self._directory.path),
                free_bytes=self.free_bytes,
                refuses_below_bytes=self.free_bytes_min,
                hint="make room, or bring the store back: below that, publishers are refused",
            )
        self.is_scarce = is_scarce

    def check(self, size: int) -> None:
        """Raises `DiskFull`."""
        self.look()
        if self.free_bytes - size < self.free_bytes_min:
            raise DiskFull(
                f"the store cannot have it now, and the spill has no room left: {self.free_bytes} bytes are free in "
                f"{self._directory.path}, {self.free_bytes_min} stay free; nothing of this was kept"
            )


class Appender:
    """Writes lines to files of one kind."""

    def __init__(
        self,
        directory: SpillDirectory,
        kind: str,
        *,
        events_per_file: int,
        room: Room,
        is_synced: bool,
        on_completed: Callable[[CompletedFile], None],
    ) -> None:
        self.rounds = 0
        self.seconds = 0.0
        self.waiting_bytes = 0
        self.failure: HoldfastError | None = None
        self._directory = directory
        self.kind = kind
        self._events_per_file = events_per_file
        self._room = room
        self._is_synced = is_synced
        self._on_completed = on_completed
        self._waiting: list[_Write] = []
        self._active: _Active | None = None
        self._is_writing = False
        self._wants_seal = False
        self._sealed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_stopping = False
        # Lines that were acknowledged are in a file that this broker could not complete.
        self._is_stranded = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write and sync what waits, and complete the file."""
        self._is_stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        if self._active is not None:  # the disk failed: what is there is recovered by the next start
            os.close(self._active.fd)
            self._active = None

    @property
    def active_events(self) -> int:
        return self._active.events if self._active is not None else 0

    @property
    def is_idle(self) -> bool:
        """Whether every line is in a completed file."""
        return not self._waiting and not self._is_writing and self._active is None and not self._is_stranded

    def append(self, lines: bytes, count: int) -> asyncio.Future[None]:
        """Done once the lines are on the disk. Raises `Unavailable`, and fails with it."""
        if self.failure is not None:
            raise self.failure
        if self._is_stopping:
            raise ShuttingDown("the broker is shutting down; publish to another or try again later")
        if self._waiting and self.waiting_bytes + len(lines) > WAITING_BYTES_MAX:
            raise Unavailable(
                f"{self.waiting_bytes} bytes wait for the disk of the spill already; try again in a moment"
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(lines, count, future))
        self.waiting_bytes += len(lines)
        self._wake.set()
        return future

    async def seal(self) -> None:
        """Complete the file that is being written, so that it can be stored."""
        if self.failure is not None or self.is_idle:
            return
        self._sealed.clear()
        self._wants_seal = True
        self._wake.set()
        await self._sealed.wait()

    async def _run(self) -> None:
        is_full = False
        while True:
            while not self._waiting and not self._wants_seal:
                if self._is_stopping and self._active is None:
                    return
                if self._is_stopping:
                    self._wants_seal = True
                    break
                self._wake.clear()
                await self._wake.wait()
            if is_full and self._wants_seal:
                # By itself: storing what is in the file makes room, and those who try on must not prevent that.
                current = _Round([], is_last_of_file=True)
            else:
                current = _Round(self._taken(), self._wants_seal and not self._waiting)
            began_s = time.perf_counter()
            error: HoldfastError | None = None
            self._is_writing = True
            try:
                await asyncio.to_thread(self._perform, current)
            except DiskFull as full:
                error = full
            except OSError as failed:
                error = self._given_up(failed)
            self._is_writing = False
            self.rounds += 1
            self.seconds += time.perf_counter() - began_s
            is_full = isinstance(error, DiskFull)
            self._finish(current, error)
            if self.failure is not None:
                self._sealed.set()
                for write in self._waiting:
                    refuse(write.future, self.failure)
                self._waiting.clear()
                return

    def _taken(self) -> list[_Write]:
        size = 0
        for place, write in enumerate(self._waiting):
            size += len(write.lines)
            if size > _ROUND_BYTES_MAX and place:
                taken, self._waiting = self._waiting[:place], self._waiting[place:]
                return taken
        taken, self._waiting = self._waiting, []
        return taken

    def _finish(self, done: _Round, error: HoldfastError | None) -> None:
        for write in done.writes:
            self.waiting_bytes -= len(write.lines)
        if error is None:
            for active in done.sealed:
                self._on_completed(CompletedFile(completed(active.file), active.events, active.size_bytes))
        for write in done.writes:
            if error is not None:
                refuse(write.future, error)
            elif not write.future.done():
                write.future.set_result(None)
        is_seal_over = done.is_last_of_file and (error is None or not done.writes)
        if is_seal_over or self.failure is not None:
            self._wants_seal = False
            self._sealed.set()

    def _given_up(self, error: OSError) -> HoldfastError:
        self.failure = StorageFailed(
            f"the disk of the spill failed ({self._directory.path}: {error.strerror}): "
            "nothing is kept there until a restart"
        )
        log.critical(
            "spill_failed",
            directory=str(self._directory.path),
            problem=str(error),
            hint="mend the disk and restart: what was acknowledged is stored then; other brokers do not wait for it",
        )
        return self.failure

    # --- in the thread --------------------------------------------------------------------------------

    def _perform(self, current: _Round) -> None:
        """Raises `DiskFull` when everything is as it was before, and `OSError` where nobody knows."""
        try:
            if current.writes:
                self._room.check(sum(len(write.lines) for write in current.writes))
            for write in current.writes:
                self._place(current, write)
            if current.is_last_of_file:
                self._seal(current)
            for active in current.touched.values():
                _write(active)
                if self._is_synced:
                    sync_data(active.fd)
        except OSError as error:
            self._undo(current)
            if error.errno in _FULL:
                raise DiskFull(
                    f"the store cannot have it now, and the disk of the spill is full ({self._directory.path}); "
                    "nothing of this was kept"
                ) from error
            raise
        self._is_stranded = bool(current.sealed)
        for active in current.sealed:
            os.close(active.fd)
            active.file.path.rename(completed(active.file).path)
        if current.sealed or any(size == 0 for _, size, _ in current.began):
            sync_directory(self._directory.path)
        self._room.look()
        self._is_stranded = False

    def _place(self, current: _Round, write: _Write) -> None:
        """In which file, and where in it, lines will stand."""
        if self._active is not None and (
            self._active.events + write.events > self._events_per_file or self._active.size_bytes >= FILE_BYTES_MAX
        ):
            self._seal(current)
        if self._active is None:
            file = self._directory.new_file(self.kind)
            self._active = _Active(file, os.open(file.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
        active = self._active
        if active.fd not in current.touched:
            current.touched[active.fd] = active
            current.began.append((active, active.size_bytes, active.events))
        active.unwritten.append(write.lines)
        active.size_bytes += len(write.lines)
        active.events += write.events

    def _seal(self, current: _Round) -> None:
        if self._active is not None:
            current.touched.setdefault(self._active.fd, self._active)
            current.sealed.append(self._active)
            self._active = None

    def _undo(self, current: _Round) -> None:
        """Nothing of this round was acknowledged: nothing of it stays, as far as the disk does what it is told."""
        keep: _Active | None = self._active
        for active, size, count in current.began:
            with contextlib.suppress(OSError):
                os.ftruncate(active.fd, size)
            active.size_bytes, active.events = size, count
            active.unwritten.clear()
            if size == 0:
                with contextlib.suppress(OSError):
                    active.file.path.unlink()
                os.close(active.fd)
                keep = None if keep is active else keep
        for active in current.sealed:
            # It was there before this round: it goes on being written to.
            if active.size_bytes > 0:
                keep = active
        self._active = keep


def _write(active: _Active) -> None:
    """Write what a round has for a file, in as few calls as may be: after each the thread waits for the interpreter."""
    position = active.size_bytes - sum(map(len, active.unwritten))
    while active.unwritten:
        written = os.pwritev(active.fd, active.unwritten[:_PIECES_MAX], position)
        position += written
        whole = 0
        while whole < len(active.unwritten) and len(active.unwritten[whole]) <= written:
            written -= len(active.unwritten[whole])
            whole += 1
        del active.unwritten[:whole]
        if written:
            active.unwritten[0] = active.unwritten[0][written:]

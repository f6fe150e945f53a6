"""Group commit: one round of syncs for everything that waits, in a thread of its own.

What is synced is a log or anything else that can say what has to be done (`sync_point`) and wants to know when it
is (`synced`): the logs of all partitions and the journal of votes share their rounds.

Rounds follow each other without a pause while there is something to sync: what is appended during one
round is covered by the next. All bookkeeping happens on the event loop; the thread does nothing but
system calls, so a slow disk never blocks the loop.

**How a round syncs many files.** `fdatasync` costs the same for each file, so the price of an
acknowledgement would grow with the number of partitions written to. `syncfs` writes out all of them with
one commit of the file system's journal, but also everything other programs left unwritten there. So a
round of few files uses `fdatasync`, and a round of many uses `syncfs` as long as that is the cheaper way:
when it took longer than the files one by one would have, the next rounds go back to `fdatasync` (decision
0003 has the figures). Both wait for the data to be on the disk.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from holdfast.storage.durable import confirm, sync_data, sync_directory

# Up to this many files, syncing them one after the other is as fast as anything.
_FILES_ONE_BY_ONE = 3
_PARALLEL_SYNCS = 16
# After a round in which `syncfs` was the slower way, this many rounds pass before it is tried again.
_SYNCFS_PAUSE_ROUNDS = 200
# From this Linux version on `syncfs` reports write errors.
_SYNCFS_LINUX_MIN = (5, 8)


class DiskPoint(Protocol):
    """What a round does for one thing: sync these files and, where names changed, their directory."""

    @property
    def files(self) -> Sequence[int]: ...

    @property
    def directory(self) -> Path | None: ...


class Syncable(Protocol):
    """Something with files. Those of a point stay open until `synced` is called with it."""

    def sync_point(self) -> DiskPoint:
        """What must be synced so that everything written until now is durable."""

    def synced(self, point: Any, /) -> None:
        """The same point comes back once that is done. After a failed sync it never does."""


S = TypeVar("S", bound=Syncable)


class Round(NamedTuple, Generic[S]):
    points: list[tuple[S, DiskPoint]]


class Syncer(Generic[S]):
    """Syncs things on request; tells each of them, then `on_synced`, when its sync is done."""

    def __init__(
        self,
        *,
        on_synced: Callable[[S], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._on_synced = on_synced
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[S, None] = {}
        self._round_requested = False
        self._running: Round[S] | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._failed = False
        self._rounds: queue.SimpleQueue[Round[S] | None] = queue.SimpleQueue()
        self._disk = DiskSync()
        self._thread = threading.Thread(target=self._work, name="holdfast-sync", daemon=True)
        self._thread.start()
        self.rounds = 0
        self.seconds = 0.0

    def request(self, thing: S) -> None:
        """Have everything written to `thing` until now synced; rounds start by themselves."""
        self._dirty[thing] = None
        if not self._round_requested and self._running is None:
            # Not at once: whatever else this turn of the loop appends joins the round.
            self._round_requested = True
            self._loop.call_soon(self._start_round)

    def forget(self, thing: S) -> None:
        """What is about to be closed needs no sync any more; await `settled` before closing it."""
        self._dirty.pop(thing, None)

    async def settled(self) -> None:
        """Wait until no round is under way that may use files of something closed."""
        if self._running is not None:
            done: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(done)
            await done

    async def flush(self) -> None:
        """Sync everything that is dirty, and wait for it."""
        while (self._dirty or self._running is not None) and not self._failed:
            if self._running is None:
                self._start_round()
            await self.settled()

    async def stop(self) -> None:
        await self.flush()
        self._rounds.put(None)
        await asyncio.to_thread(self._thread.join)
        self._disk.close()

    def _start_round(self) -> None:
        self._round_requested = False
        if self._running is not None or not self._dirty or self._failed:
            return
        self._running = Round([(thing, thing.sync_point()) for thing in self._dirty])
        self._dirty = {}
        self._rounds.put(self._running)

    def _finish_round(self, error: Exception | None, seconds: float) -> None:
        finished, self._running = self._running, None
        assert finished is not None
        self.rounds += 1
        self.seconds += seconds
        if error is not None:
            # What reached the disk is unknown, and a second sync may report success without having
            # written anything. So nothing is synced or acknowledged any more until a restart.
            self._failed = True
            self._on_failure(error)
        else:
            for thing, point in finished.points:
                thing.synced(point)
                self._on_synced(thing)
            if self._dirty:
                self._start_round()
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()

    def _work(self) -> None:
        while (current := self._rounds.get()) is not None:
            started = time.perf_counter()
            error: Exception | None = None
            try:
                self._disk.sync([point for _, point in current.points])
            except Exception as caught:  # noqa: BLE001 - whatever it is, it was not synced, and nobody may wait for ever
                error = caught
            try:
                self._loop.call_soon_threadsafe(self._finish_round, error, time.perf_counter() - started)
            except RuntimeError:
                return  # the loop is closed: nobody waits for this any more


class DiskSync:
    """Chooses how to sync the files of a round; see the module's text."""

    def __init__(self) -> None:
        self._syncfs = _find_syncfs()
        self._pool: ThreadPoolExecutor | None = None
        self._seconds_per_file = 0.0
        self._rounds_until_syncfs = 0

    def sync(self, points: Sequence[DiskPoint]) -> None:
        """Raises `OSError` if anything could not be made durable."""
        files = [fd for point in points for fd in point.files]
        started = time.perf_counter()
        if len(files) <= _FILES_ONE_BY_ONE:
            for fd in files:
                sync_data(fd)
            self._note_cost((time.perf_counter() - started) / len(files))
        elif self._syncfs is not None and self._rounds_until_syncfs == 0 and _on_one_file_system(files):
            self._syncfs(files[0])
            confirm(files[0])
            if time.perf_counter() - started > self._seconds_per_file * len(files) > 0:
                self._rounds_until_syncfs = _SYNCFS_PAUSE_ROUNDS
        else:
            self._rounds_until_syncfs = max(0, self._rounds_until_syncfs - 1)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_PARALLEL_SYNCS, thread_name_prefix="holdfast-sync")
            for _ in self._pool.map(sync_data, files):
                pass
            self._note_cost((time.perf_counter() - started) / len(files))
        for point in points:
            if point.directory is not None:
                sync_directory(point.directory)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _note_cost(self, seconds: float) -> None:
        self._seconds_per_file = seconds if not self._seconds_per_file else 0.9 * self._seconds_per_file + 0.1 * seconds


def _on_one_file_system(files: list[int]) -> bool:
    """Somebody may have moved a topic to another disk with a link or a mount."""
    return len({os.fstat(fd).st_dev for fd in files}) == 1


def _find_syncfs() -> Callable[[int], None] | None:
    """`syncfs` of the C library, where the kernel reports errors through it."""
    if platform.system() != "Linux":
        return None
    version = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if version < _SYNCFS_LINUX_MIN or function is None:
        return None

    def syncfs(fd: int) -> None:
        if function(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return syncfs

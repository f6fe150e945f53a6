"""Bringing back what was spilled: oldest first, in order, exactly once, and without standing in the way of publishers.

One step is a stretch of lines of one file, stored in one go together with the number of lines that are done
(`ports.Target`). Within a step messages are grouped by partition; between steps the order of the file holds. So after
any crash the next step begins where the last one that the store knows of ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import UUID

import structlog

from holdfast.backends.spill import events, files
from holdfast.backends.spill.appending import Appender, CompletedFile
from holdfast.backends.spill.events import BadLine, Event
from holdfast.backends.spill.files import SpillDirectory, SpillFile
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.stats import SpillStats
from holdfast.backends.spill.waiting import ANY, Waiting
from holdfast.model.errors import CallerError, LeaderChanged, Unavailable
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.topics import Topic

log = structlog.get_logger("holdfast.spill")

# One step. Fewer while publishers want the store, too: what they wait for is not kept waiting for long.
_STEP_EVENTS_MAX: Final = 10_000
_STEP_EVENTS_BESIDE_TRAFFIC: Final = 5_000
# Of the time a step takes, so much is left to publishers afterwards.
_PAUSE_SHARE: Final = 0.2
# What a store refuses though it is there is tried so often before it goes to `failed`.
_TRIES_MAX: Final = 3
_PROGRESS_LOG_S: Final = 1.0
# So many files are deleted before that is made durable and the store forgets them.
_GONE_MAX: Final = 100
# A message waits for the disk before its file gets a name.
_OLDER_THAN_NAME_MS: Final = 1_000


class ReplaySettings(NamedTuple):
    batch_messages_max: int
    retry_s: float
    startup_s: float


class Replayer:
    """Stores completed files again, for as long as there are any."""

    def __init__(
        self,
        directory: SpillDirectory,
        target: Target,
        appender: Appender,
        waiting: Waiting,
        stats: SpillStats,
        settings: ReplaySettings,
        *,
        topic: Callable[[TopicName], Topic | None],
        ensure_topic: Callable[[TopicName], Awaitable[object]],
        is_busy: Callable[[], bool],
        keeps_time: bool = True,
    ) -> None:
        self.pending_files: deque[CompletedFile] = deque()
        self.is_replaying = False
        self._directory = directory
        self._target = target
        self._appender = appender
        self._waiting = waiting
        self._stats = stats
        self._settings = settings
        self._topic = topic
        self._ensure_topic = ensure_topic
        self._is_busy = is_busy
        # Whether other brokers' older messages come first, and these before their newer ones.
        self._keeps_time = keeps_time
        # Until when what an earlier broker left is stored at full speed; at once where it left nothing.
        self._startup_until_s = float("-inf")
        # Stretches that the store refuses are halved until the line is found.
        self._step_max = _STEP_EVENTS_MAX
        self._tries = 0
        self._begun: SpillFile | None = None
        # Up to which line of the current file messages do not count as waiting any more.
        self._passed_until: tuple[SpillFile | None, int] = None, 0
        # What is read while the store works: of which file, from where on.
        self._ahead: tuple[SpillFile, int, asyncio.Task[bytes]] | None = None
        self._gone: list[UUID] = []
        self._logged_s = 0.0

    @property
    def has_more_to_do(self) -> bool:
        """Whether there are files to store, or stored ones to be forgotten."""
        return bool(self.pending_files or self._gone)

    @property
    def pending_events(self) -> int:
        return self._waiting.total

    # --- what an earlier broker left --------------------------------------------------------------------

    async def look_at(self, found: Sequence[SpillFile]) -> None:
        """Count what there is, by partition, so that it is known what has to queue. Raises `OSError`."""
        old: list[CompletedFile] = []
        for file in found:
            counts, count = await asyncio.to_thread(_counted, file)
            old.append(CompletedFile(file, count, file.path.stat().st_size))
            for partition, of_partition in counts.items():
                self._waiting.add(partition, of_partition)
        self.pending_files.extendleft(reversed(old))
        self._waiting.is_known = True
        if old:
            self._startup_until_s = time.monotonic() + self._settings.startup_s
            log.info("spill_found", files=len(old), events=sum(each.events for each in old))
        self.announce()

    # --- one round ------------------------------------------------------------------------------------

    async def run_once(self) -> None:
        """Store all that may be stored now. Raises `Unavailable` where the store does not take it."""
        if not self.pending_files and self._appender.active_events:
            await self._appender.seal()
        while self.pending_files:
            self.is_replaying = True
            try:
                is_done = await self._replay_file(self.pending_files[0])
            finally:
                self.is_replaying = False
            if not is_done:
                return
            if not self.pending_files:
                # What was spilled meanwhile; or, at last, nothing.
                await self._appender.seal()
        if self._appender.is_idle and not self.pending_files:
            self._waiting.clear()
            self._startup_until_s = float("-inf")
            self.announce()
            await self._forget_gone()

    async def _replay_file(self, current: CompletedFile) -> bool:
        """Whether all of a file is stored; it is deleted then."""
        file = current.file
        done = await self._target.progress(file.id)
        await self._pass_stored(file, done)
        position = await asyncio.to_thread(files.position_of_line, file.path, done)
        self._replay_began(current, done)
        while True:
            read, bad, size = await self._piece(file, position)
            if not read:
                break
            self._read_ahead(current, position + size)
            await self._note_failed(file, [each._replace(place=done + each.place) for each in bad])
            place = 0
            while place < len(read):
                stretch = await self._allowed(read[place : place + self._step_events()])
                if not stretch:
                    return False
                if await self._step(file, done, stretch):
                    place += len(stretch)
                    done += len(stretch)
                    self._passed_until = file, done
                    self._log_progress(current, done)
            position += size
        file.path.unlink()
        self.pending_files.popleft()
        self._gone.append(file.id)
        log.info("spill_replay_complete", file=file.path.name, events=done)
        self.announce()
        if len(self._gone) >= _GONE_MAX:
            await self._forget_gone()
        return True

    async def _forget_gone(self) -> None:
        """Deleted for good first: a file that comes back after a power failure must be known to be stored."""
        if self._gone:
            await asyncio.to_thread(self._directory.sync)
            await self._target.forget(self._gone)
            self._gone = []

    async def _piece(self, file: SpillFile, position: int) -> _Piece:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[:2] == (file, position):
            data = await ahead[2]
        else:
            data = await asyncio.to_thread(files.read_piece, file.path, position)
        return _understood(data)

    def _read_ahead(self, current: CompletedFile, position: int) -> None:
        if position < current.size_bytes:
            file = current.file
        elif len(self.pending_files) > 1:
            file, position = self.pending_files[1].file, 0
        else:
            return
        self._ahead = file, position, asyncio.create_task(asyncio.to_thread(files.read_piece, file.path, position))

    def _step_events(self) -> int:
        return min(self._step_max, _STEP_EVENTS_BESIDE_TRAFFIC if self._makes_room() else _STEP_EVENTS_MAX)

    def _makes_room(self) -> bool:
        """Whether publishers want the store, too. What an earlier broker left comes first, for a while."""
        return self._is_busy() and time.monotonic() > self._startup_until_s

    async def _allowed(self, stretch: Sequence[Event | None]) -> Sequence[Event | None]:
        """As much of it as is not newer than what another broker keeps."""
        if not self._keeps_time:
            return stretch
        oldest = next((event.at for event in stretch if event is not None), None)
        self._target.announce(oldest if oldest is not None else self._oldest_ms())
        horizon_ms = await self._target.horizon_ms()
        newest = stretch[-1]
        if newest is not None and newest.at <= horizon_ms:
            return stretch  # times rise within a file
        late = (place for place, event in enumerate(stretch) if event is not None and event.at > horizon_ms)
        return stretch[: next(late, len(stretch))]

    async def _step(self, file: SpillFile, done: int, stretch: Sequence[Event | None]) -> bool:
        """Store a stretch; false where it has to be tried again, smaller."""
        began_s = time.monotonic()
        present = [event for event in stretch if event is not None]
        counts = _counts(present)
        fresh = await self._not_stored(present)
        try:
            await self._prepare(fresh)
            batches = events.batches_of(fresh, self._chosen, self._settings.batch_messages_max)
            await self._target.store(file.id, done + len(stretch), batches)
        except CallerError as error:
            return await self._refused(file, done, stretch, error)
        self._tries = 0
        self._step_max = min(_STEP_EVENTS_MAX, self._step_max * 2)
        self._stats.replayed_events += len(fresh)
        self._stats.already_stored_events += len(present) - len(fresh)
        self._passed(counts)
        if self._makes_room():
            await asyncio.sleep(_PAUSE_SHARE * (time.monotonic() - began_s))
        return True

    def _passed(self, counts: Counter[PartitionId]) -> None:
        for partition, count in counts.items():
            self._waiting.remove(partition, count)

    async def _pass_stored(self, file: SpillFile, done: int) -> None:
        """Lines that were stored by an earlier broker, or by a step whose answer was lost, wait no longer."""
        begin = self._passed_until[1] if self._passed_until[0] == file else 0
        position = await asyncio.to_thread(files.position_of_line, file.path, begin)
        while begin < done:
            read, _, size = await asyncio.to_thread(_read, file, position)
            some = read[: done - begin]
            self._passed(_counts(event for event in some if event is not None))
            if self._passed_until[0] == file:
                self._stats.replayed_events += len(some)
            begin += len(some)
            position += size
            if not read:
                break
        self._passed_until = file, done

    async def _not_stored(self, present: list[Event]) -> list[Event]:
        """Without those whose first try turns out to have worked."""
        if set(map(_tried, present)) == {None}:
            return present
        tried: dict[str, list[str]] = {}
        for event in present:
            if event.tried is not None:
                tried.setdefault(event.tried, []).extend([] if event.id is None else [event.id])
        stored = await self._target.committed(tried, tried)
        return [event for event in present if event.tried is None or not stored & {event.tried, event.id}]

    async def _prepare(self, fresh: list[Event]) -> None:
        """Make topics that are missing; a partition that is not there any more is chosen anew."""
        places = set(map(_place, fresh))
        for queue in {queue for queue, _ in places}:
            if self._topic(TopicName(queue)) is None:
                await self._ensure_topic(TopicName(queue))
        gone = {place for place in places if not self._is_there(*place)}
        for event in fresh if gone else ():
            if (event.queue, event.number) in gone:
                event.number = None

    def _is_there(self, queue: str, number: int | None) -> bool:
        topic = self._topic(TopicName(queue))
        return number is None or (topic is not None and number < topic.config.partitions)

    def _chosen(self, event: Event) -> PartitionId:
        topic = self._topic(TopicName(event.queue))
        assert topic is not None, "it was made before"
        return events.chosen_partition(event, topic)

    async def _refused(self, file: SpillFile, done: int, stretch: Sequence[Event | None], error: CallerError) -> bool:
        """The store is there and does not take it: the line is found, tried again for a while, and set aside."""
        if len(stretch) > 1:
            self._step_max = max(1, len(stretch) // 2)
            return False
        self._tries += 1
        if self._tries < _TRIES_MAX:
            log.warning("spill_line_refused", file=file.path.name, line=done + 1, problem=error.message)
            await asyncio.sleep(self._settings.retry_s)
            return False
        [event] = stretch
        assert event is not None, "what cannot be read is not stored"
        line = await asyncio.to_thread(_line, file, done)
        await self._note_failed(file, [BadLine(done, line, f"{error.message} [{error.code}]")])
        await self._target.store(file.id, done + 1, [])
        self._tries = 0
        self._passed(_counts([event]))
        return True

    async def _note_failed(self, file: SpillFile, bad: list[BadLine]) -> None:
        if bad:
            self._stats.failed_events += await asyncio.to_thread(self._directory.note_failed, file, bad)

    # --- words ----------------------------------------------------------------------------------------

    def _oldest_ms(self) -> int | None:
        """Not after the oldest message of the oldest file, which its name is a little younger than."""
        if self.pending_files:
            return (self.pending_files[0].file.id.int >> 80) - _OLDER_THAN_NAME_MS
        return None

    def announce(self) -> None:
        if not self._keeps_time:
            return
        if self.pending_files:
            self._target.announce(self._oldest_ms())
        elif self._appender.is_idle:
            self._target.announce(None)

    def _replay_began(self, current: CompletedFile, done: int) -> None:
        self._logged_s = time.monotonic()
        if self._begun != current.file:
            self._begun = current.file
            log.info("spill_replaying", file=current.file.path.name, events=current.events, done=done)

    def _log_progress(self, current: CompletedFile, done: int) -> None:
        if time.monotonic() - self._logged_s >= _PROGRESS_LOG_S:
            self._logged_s = time.monotonic()
            share = f"{100 * done / max(1, current.events):.1f}%"
            log.info("spill_progress", file=current.file.path.name, done=done, events=current.events, share=share)


_place = attrgetter("queue", "number")
_tried = attrgetter("tried")


class _Piece(NamedTuple):
    """Some lines of a file, the bad ones among them, and how many bytes they are."""

    events: list[Event | None]
    bad: list[BadLine]
    size_bytes: int


def _read(file: SpillFile, position: int) -> _Piece:
    return _understood(files.read_piece(file.path, position))


def _understood(data: bytes) -> _Piece:
    read, bad = events.events_of(data) if data else ([], [])
    return _Piece(read, bad, len(data))


def _counts(present: Iterable[Event]) -> Counter[PartitionId]:
    counts = Counter(map(_place, present))
    return Counter(
        {
            PartitionId(TopicName(queue), ANY if number is None else number): count
            for (queue, number), count in counts.items()
        }
    )


def _line(file: SpillFile, number: int) -> bytes:
    data = files.read_piece(file.path, files.position_of_line(file.path, number))
    return data[: data.index(b"\n")]


def _counted(file: SpillFile) -> tuple[Counter[PartitionId], int]:
    """The events of a file by partition, and its lines."""
    counts: Counter[PartitionId] = Counter()
    position = lines = 0
    while True:
        read, _, size = _read(file, position)
        if not size:
            return counts, lines
        lines += len(read)
        position += size
        counts.update(_counts(event for event in read if event is not None))


# What ends a round, to be tried again.
TROUBLE: Final = (Unavailable, LeaderChanged)

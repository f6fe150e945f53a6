"""The spill around a backend: a push that it does not take in time is kept on disk, acknowledged, and stored later.

**Where a push goes.** To the backend, while that is healthy and nothing of the same partition waits in the spill; else
to the spill. A push that was given to the backend and is refused, or not answered within the deadline, goes to the
spill with all that are under way, in their order: none of them may be overtaken. From then on nothing is tried until
the backend takes a write again, which is looked for every 100 ms (`health`).

**Nothing is stored twice.** A push whose fate is not known is kept with a mark that tells later whether it was stored.
A backend that has no such marks gets messages with ids only.

**Transactions wait for the store.** What is staged needs its place, and a commit is for all or nothing, so neither is
kept here; and a commit does not overtake what waits in the spill for the same partition.

**Publishing passes through `forward` alone.** `has_waiting` says yes to every fresh push, so the rules above the seam
hand all of them over there; `append` is for what a leader does with what was forwarded to it, and passes through.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import structlog

from holdfast.backends.spill import events, files, pushes, requeueing
from holdfast.backends.spill.appending import Appender, CompletedFile, Room
from holdfast.backends.spill.deadline import AdaptiveDeadline
from holdfast.backends.spill.files import SpillDirectory, SpillFile
from holdfast.backends.spill.health import Health
from holdfast.backends.spill.keeping import Keeping
from holdfast.backends.spill.last_lap import LastLap
from holdfast.backends.spill.losable import Losable
from holdfast.backends.spill.new_topics import NewTopics
from holdfast.backends.spill.pacing import Pacing
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.replay import TROUBLE, Replayer, ReplaySettings
from holdfast.backends.spill.retrying import Retrying
from holdfast.backends.spill.settings import SpillSettings
from holdfast.backends.spill.stats import SpillStats
from holdfast.backends.spill.stuck import Stuck
from holdfast.backends.spill.topic_memory import TopicMemory
from holdfast.backends.spill.trying import Attempts
from holdfast.backends.spill.waiting import ANY, Waiting
from holdfast.broker import admit, results
from holdfast.broker.backend import Backend
from holdfast.broker.passing import PassingBackend
from holdfast.model import names
from holdfast.model.errors import (
    DataDirectoryError,
    LeaderChanged,
    OutcomeUnknown,
    ShuttingDown,
    Unavailable,
)
from holdfast.model.ids import NO_OFFSET, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import BatchPublished
from holdfast.model.spill import FileBuffer
from holdfast.model.topics import Topic, TopicConfig
from holdfast.wire import stamps
from holdfast.wire.push_batch import Pushed

log = structlog.get_logger("holdfast.spill")

T = TypeVar("T")

# Publishers were there so short a time ago that they are still there.
_BUSY_S: Final = 1.0
_LOOK_AT_ROOM_S: Final = 1.0


class SpillBackend(PassingBackend):
    """Keeps the promises of `broker.backend.Backend`; a push gets no offset while it waits (`NO_OFFSET`)."""

    def __init__(
        self, inner: Backend, target: Target, settings: SpillSettings, *, now_ms: Callable[[], TimestampMs]
    ) -> None:
        super().__init__(inner)
        self.stats = SpillStats()
        self.deadline = AdaptiveDeadline(settings.deadline_ms_min / 1000, settings.deadline_ms_max / 1000)
        self.waiting = Waiting()
        self.directory = SpillDirectory.open(settings.directory)
        self.room = Room(self.directory, settings.free_bytes_min)
        self._target = target
        self._settings = settings
        self._now_ms = now_ms
        self._ensure_topic: Callable[[TopicName], Awaitable[object]] = self._create_plain
        self._pacing = Pacing(settings.deadline_ms_max / 1000)
        self._last_lap = self._new_last_lap()
        self._appender = self._new_appender(files.FAILOVER, is_synced=True)
        self.replayer = self._new_replayer(self._appender, self.waiting, self._last_lap, keeps_time=True)
        self._keeping = Keeping(
            self._appender,
            self.waiting,
            self._pacing,
            self.stats,
            now_ms=now_ms,
            on_first=self._announce_first,
        )
        self.health = Health(
            target,
            self.deadline,
            self.stats,
            pending=lambda: self.pending,
            on_away=self._let_all_go,
            pause_s=settings.flush_ms / 1000,
            pause_s_max=settings.retry_interval_s,
        )
        self._stuck = Stuck(settings.directory, self.replayer)
        self.replayer.on_read = self._stuck.is_over
        self.replayer.on_stored = self._on_stored
        self._losable_appender = self._new_appender(files.QOS0, is_synced=False)
        # Nobody queues behind what may be lost, so nobody waits for the last of it either.
        self._losable_waiting = Waiting()
        self._losable_replayer = self._new_replayer(
            self._losable_appender, self._losable_waiting, self._new_last_lap(), keeps_time=False
        )
        self._losable_replayer.on_stored = lambda count: self.health.recovered()
        self._retrying = Retrying(
            self.directory,
            target,
            self.stats,
            settings.retry_interval_s,
            {files.FAILOVER: self.replayer, files.QOS0: self._losable_replayer},
        )
        self.losable = Losable(self._losable_appender, self.stats, self._forward_losable, now_ms)
        self._attempts = Attempts(target, self.deadline, self.stats, on_trouble=self._give_up, keep=self._keep)
        self._remembered = TopicMemory(settings.directory)
        self._new_topics = NewTopics(
            inner,
            self._remembered,
            auto_create=settings.auto_create,
            is_away=lambda: not self.health.is_reached,
            now_ms=now_ms,
        )
        self._pushed_s = float("-inf")
        self._looked_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def _new_appender(self, kind: str, *, is_synced: bool) -> Appender:
        return Appender(
            self.directory,
            kind,
            events_per_file=self._settings.events_per_file,
            room=self.room,
            is_synced=is_synced,
            on_completed=self._on_completed,
        )

    def _new_last_lap(self) -> LastLap:
        return LastLap(self._forward_now, lambda: self.deadline.seconds, self._settings.deadline_ms_max / 1000)

    def _new_replayer(self, appender: Appender, waiting: Waiting, last_lap: LastLap, *, keeps_time: bool) -> Replayer:
        settings = self._settings
        return Replayer(
            self.directory,
            self._target,
            appender,
            waiting,
            self.stats,
            ReplaySettings(settings.max_batch, settings.retry_interval_s, settings.startup_recovery_timeout_s),
            topic=self.inner.topic,
            ensure_topic=lambda name: self._ensure_topic(name),
            is_busy=lambda: time.monotonic() - self._pushed_s < _BUSY_S,
            last_lap=last_lap,
            keeps_time=keeps_time,
        )

    def _announce_first(self, at_ms: int) -> None:
        if not self.replayer.is_stuck:
            self._target.announce(at_ms)

    def _on_completed(self, done: CompletedFile) -> None:
        replayer = self.replayer if done.file.kind == files.FAILOVER else self._losable_replayer
        replayer.pending_files.append(done)
        log.debug("spill_file_complete", file=done.file.path.name, events=done.events)

    # --- life -------------------------------------------------------------------------------------

    def create_with(self, ensure_topic: Callable[[TopicName], Awaitable[object]]) -> None:
        """A topic that is missing when its messages are stored is made with this."""
        self._ensure_topic = ensure_topic

    async def start(self) -> None:
        """Go on with what an earlier broker left. The backend may be away."""
        problem = self.inner.problem()
        if problem is not None:
            self.health.fell_back(problem)
        # Before the first file of this broker is begun: what is half written now was left by another.
        try:
            await asyncio.to_thread(requeueing.finish_requeues, self.directory)
            found = await asyncio.to_thread(self.directory.recover)
        except OSError as error:
            self.directory.close()
            raise DataDirectoryError(f"cannot read the spill in {self.directory.path}: {error.strerror}") from error
        await self._count(found)
        self.inner.watch_topics(self._remembered.add)
        self.inner.watch_deletions(self._remembered.remove)
        self._appender.start()
        self._losable_appender.start()
        if not found:
            # At once, so that the first push need not queue behind what may be there.
            await self._take_stock(found)
        self._task = asyncio.get_running_loop().create_task(self._run(found))

    async def _count(self, found: Sequence[SpillFile]) -> None:
        """Know how much waits before anybody asks; by partition it is counted later, while pushes are taken."""
        try:
            for replayer, kind in ((self.replayer, files.FAILOVER), (self._losable_replayer, files.QOS0)):
                left = [file for file in found if file.kind == kind]
                replayer.found(len(left), await asyncio.to_thread(files.about_lines, left))
            self.stats.failed_events = await asyncio.to_thread(files.count_failed, self.directory.path)
        except OSError as error:
            log.warning("spill_uncounted", directory=str(self.directory.path), problem=str(error))

    async def stop(self) -> None:
        """Make what waits durable; it is stored at the next start, as far as it is not by now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.replayer.reader.stop()
        self._losable_replayer.reader.stop()
        self._attempts.stop()
        self._pacing.release()
        self.losable.flush(is_healthy=False)
        await self._appender.stop()
        await self._losable_appender.stop()
        if self.pending:
            log.warning("spill_waits", messages=self.pending, hint="they are stored at the next start")
        self.directory.close()

    async def _run(self, found: Sequence[SpillFile]) -> None:
        while True:
            try:
                self.losable.flush(is_healthy=self.is_healthy)
                if not self.waiting.is_known:
                    await self._take_stock(found)
                await self.health.look()
                if self.health.is_reached:
                    await self._replay()
                await self._remembered.write()
                if time.monotonic() - self._looked_s > _LOOK_AT_ROOM_S:
                    self._looked_s = time.monotonic()
                    await asyncio.to_thread(self.room.look)
            except TROUBLE as error:
                self._give_up(error.message)
            except OSError as error:
                log.error("spill_upkeep_failed", problem=str(error), hint="it is tried again all the time")
            except Exception:
                # A bug of ours: what is kept stays kept, everything queues behind it, and somebody reads of it.
                log.exception("spill_replay_bug")
            self.health.tell_growth(self.room.free_bytes)
            await asyncio.sleep(self._settings.flush_ms / 1000)

    async def _take_stock(self, found: Sequence[SpillFile]) -> None:
        """Count what an earlier broker left. What cannot be read must not be overtaken: all queue until it can be."""
        try:
            failed = await asyncio.to_thread(files.count_failed, self.directory.path)
            if not self._losable_waiting.is_known:
                await self._losable_replayer.look_at([file for file in found if file.kind == files.QOS0])
            await self.replayer.look_at([file for file in found if file.kind == files.FAILOVER])
        except OSError as error:
            self._stuck.goes_on(error)
            return
        self.stats.failed_events = failed
        self._stuck.is_over()

    async def _replay(self) -> None:
        """Store what waits. As soon as some of it is stored, or none is there, the store has passed its trial."""
        try:
            if self.waiting.is_known:
                await self.replayer.run_once()
                self._stuck.is_over()
        except OSError as error:
            self._stuck.goes_on(error)
        else:
            await self._losable_replayer.run_once()
        finally:
            # It is empty, or not emptied any more for now.
            self._pacing.release()
        self.health.recovered(is_proven=not self.replayer.is_held_up)
        if self.replayer.is_drained:
            self._new_topics.clear()
            await self._retrying.look()

    def _on_stored(self, count: int) -> None:
        self.health.recovered()
        self._pacing.stored(count)

    def _let_all_go(self) -> None:
        """The store is away: those who wait for it go on, before anybody who comes later."""
        self._last_lap.end()
        self._pacing.release()

    # --- words ------------------------------------------------------------------------------------

    @property
    def is_healthy(self) -> bool:
        """Whether pushes go to the backend."""
        return self.health.is_well

    @property
    def pending(self) -> int:
        """Messages that are kept and not stored yet."""
        return self.replayer.pending_events + self._losable_replayer.pending_events

    @property
    def is_drained(self) -> bool:
        """Whether everything that was ever kept here is stored."""
        return (
            self.is_healthy
            and self.waiting.is_known
            and self._appender.is_idle
            and self._losable_appender.is_idle
            and not self.replayer.has_more_to_do
            and not self._losable_replayer.has_more_to_do
        )

    def problem(self) -> str | None:
        """None as long as pushes are taken, be it into the spill."""
        problem = self.inner.problem()
        if problem is None or (self._appender.failure is None and self.room.free_bytes > self.room.free_bytes_min):
            return None
        return f"{problem}; and the spill takes nothing: its disk is full or failed"

    def file_buffer(self) -> FileBuffer:
        is_there = self.is_healthy and self.inner.problem() is None
        return FileBuffer(
            pending=self.pending,
            flushed=self.stats.replayed_events + self.stats.already_stored_events,
            failed=self.stats.failed_events,
            db_healthy=is_there,
        )

    # --- pushes -----------------------------------------------------------------------------------

    def has_waiting(self, partition: PartitionId) -> bool:
        return True

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        if names.is_internal(partition.topic) or stamps.is_stamped(batch):
            return self._forward_own(partition, batch)
        if self._target.needs_ids and not has_ids:
            batch, has_ids = events.with_ids(batch), True
        if self._last_lap.is_on and (self.waiting.is_waiting(partition) or self._last_lap.has(partition)):
            held = self._last_lap.hold(partition, batch, has_ids=has_ids)
            if held is not None:
                return held
        return self._forward_now(partition, batch, has_ids)

    def _forward_now(
        self, partition: PartitionId, batch: bytearray, has_ids: bool, since_s: float | None = None
    ) -> asyncio.Future[BatchPublished]:
        """To the backend, or into the spill."""
        if not self.is_healthy or self.waiting.is_waiting(partition):
            return self._keep(partition, batch, since_s=since_s)
        self._pushed_s = time.monotonic()
        mark = self._target.mark(partition)
        try:
            future = self.inner.forward(partition, batch, has_ids=has_ids)
        except ShuttingDown:
            raise
        except Unavailable as error:
            self._give_up(error.message)
            return self._keep(partition, batch, since_s=since_s)
        except OutcomeUnknown as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        return self._attempts.wait_for(future, partition, batch, mark, since_s)

    def _forward_own(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        """What the broker stores for transactions. Raises `Unavailable` where it would have to be kept."""
        if not self.is_healthy:
            raise Unavailable(f"the store is away, and transactions wait for it: {self.health.reason}; try again later")
        if not names.is_internal(partition.topic) and self.waiting.is_waiting(partition):
            raise Unavailable(f"{partition} has messages in the spill, which transactions do not overtake; try again")
        return self.inner.forward(partition, batch, has_ids=True)

    def push_losable(self, partition: PartitionId, batch: bytearray) -> BatchPublished:
        """Acknowledge a push that may be lost (qos 0) before it is anywhere but in memory. Raises `Unavailable`."""
        if self._target.needs_ids:
            batch = events.with_ids(batch)
        return self.losable.push(partition, batch, is_chosen=self._new_topics.is_known(partition.topic))

    def _forward_losable(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        return self.forward(partition, batch, has_ids=self._target.needs_ids)

    def _give_up(self, reason: str) -> None:
        """The backend is in trouble: what it has not answered is kept here, in order."""
        self.health.fell_back(reason)
        self._attempts.give_up()

    def _keep(
        self, partition: PartitionId, batch: bytearray, mark: str | None = None, since_s: float | None = None
    ) -> asyncio.Future[BatchPublished]:
        """Have a batch on the disk; done once it is. Raises `Unavailable`, and fails with it."""
        is_chosen = self._new_topics.is_known(partition.topic)
        lines, count = events.lines_of(partition, batch, self._keeping.at_ms(), is_chosen=is_chosen, tried=mark)
        place = partition if is_chosen else PartitionId(partition.topic, ANY)
        kept = self._keeping.keep(lines, {place: count}, since_s)
        promise: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        results.then(kept, promise, lambda _: results.regular(partition.number, NO_OFFSET, count))
        return promise

    def keep_pushed(self, topic: Topic, pushed: Pushed) -> asyncio.Future[int] | None:
        """Keep a push as the columns it is, where all of it would be kept; see `broker.publishing.KeepPushed`.

        So it need not become batches first, one for each partition, of which nothing is left a moment later.
        """
        if pushed.labels is not None:
            return None  # lines of pushes have no place for them: they are kept as any other message
        numbers = admit.numbers_of(topic, pushed.names)
        places = {number: PartitionId(topic.name, number) for number in numbers.values()}
        # In the last lap those who push wait for it, whatever way they came.
        if self._last_lap.is_on or (self.is_healthy and not all(map(self.waiting.is_waiting, places.values()))):
            return None
        chosen: dict[str, int | None] = dict(numbers)
        counts = Counter(map(numbers.__getitem__, pushed.names))
        if not self._new_topics.is_known(topic.name):
            chosen = dict.fromkeys(numbers)
            counts, places = Counter({ANY: len(pushed.names)}), {ANY: PartitionId(topic.name, ANY)}
        at_ms = self._keeping.at_ms()
        lines = pushes.lines_of(topic.name, chosen, pushed, self._now_ms(), at_ms)
        return self._keeping.keep(lines, {places[number]: count for number, count in counts.items()})

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> Topic | None:
        """While nobody can say which topics there are, one that may be created by use is taken to be there."""
        return self._new_topics.topic(name)

    async def create_topic(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        """In time, or not known: whoever publishes to a new topic waits for it.

        Write it to `topics.json` before answering. A broker that is killed a moment later, and starts while the store
        is away, then chooses the same partitions as before.
        """
        topic = await self._in_time(lambda: self.inner.create_topic(name, config, maker), changes=True)
        self._remembered.add(topic)
        try:
            await self._remembered.write()
        except OSError as error:
            # The store has the topic. The memory is written again with the next round.
            log.error("spill_topics_unwritten", problem=str(error), hint="it is tried again all the time")
        return topic

    async def catch_up_cursors(self) -> None:
        """In time, or not at all: whoever asks for what is not known here is perhaps about to publish to it.

        A store that has no room for another topic is asked all the same: deleting one makes room.
        """
        if self.health.is_refusing and self.inner.problem() is None:
            await self.inner.catch_up_cursors()
        else:
            await self._in_time(self.inner.catch_up_cursors)

    async def _in_time(self, ask: Callable[[], Awaitable[T]], *, changes: bool = False) -> T:
        if not self.health.is_reached:
            raise Unavailable(f"the store is away: {self.health.reason}")
        limit_s = self.deadline.seconds
        try:
            async with asyncio.timeout(limit_s):
                return await ask()
        except TimeoutError:
            self.deadline.missed()
            self._give_up(f"it did not answer within {limit_s * 1000:.0f} ms")
            silent = f"the store did not answer within {limit_s * 1000:.0f} ms; try again"
            raise (LeaderChanged(f"this may be done or not: {silent}") if changes else Unavailable(silent)) from None
        except (Unavailable, OutcomeUnknown) as error:
            if not isinstance(error, ShuttingDown):
                self._give_up(error.message)
            raise

    async def _create_plain(self, name: TopicName) -> None:
        await self.inner.create_topic(name, TopicConfig())

"""Bringing back what was spilled: oldest first, in order, exactly once, and without standing in the way of publishers.

One step is a stretch of lines of one file, stored in one go together with the number of lines that are done
(`ports.Target`). Within a step messages are grouped by partition; between steps the order of the file holds. So after
any crash the next step begins where the last one that the store knows of ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import structlog

from holdfast.backends.spill import batches, files, stretches
from holdfast.backends.spill.appending import Appender, CompletedFile
from holdfast.backends.spill.batches import Place, place_of
from holdfast.backends.spill.events import Event
from holdfast.backends.spill.files import SpillDirectory, SpillFile
from holdfast.backends.spill.last_lap import LAP_EVENTS_MAX, LastLap
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.refusing import PAUSE_S, TRIES_MAX, Refusals
from holdfast.backends.spill.setting_aside import SetAside
from holdfast.backends.spill.stats import SpillStats
from holdfast.backends.spill.stretches import Reader, Stretch, counted, counted_between, tried_of
from holdfast.backends.spill.telling import Teller
from holdfast.backends.spill.turns import Turn, Turns
from holdfast.backends.spill.waiting import Waiting
from holdfast.model.errors import BadMessage, CallerError, OutcomeUnknown, Unavailable
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.spill import LinesMoved
from holdfast.model.topics import Topic

log = structlog.get_logger("holdfast.spill")

# One step. Fewer while publishers want the store, too: what they wait for is not kept waiting for long.
_STEP_EVENTS_MAX: Final = 10_000
_STEP_EVENTS_BESIDE_TRAFFIC: Final = 5_000
# A step that took longer is not made larger: the store cuts off what takes too long, and then nothing of it is stored.
_STEP_S_MAX: Final = 0.5
# Of the time a step takes, so much is left to publishers afterwards.
_PAUSE_SHARE: Final = 0.2
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
        last_lap: LastLap,
        keeps_time: bool = True,
    ) -> None:
        self.pending_files: deque[CompletedFile] = deque()
        # Called when something could be read, and with how many messages were stored.
        self.on_read: Callable[[], None] = lambda: None
        self.on_stored: Callable[[int], None] = lambda count: None
        self.is_replaying = False
        self._directory = directory
        self._target = target
        self._appender = appender
        self._waiting = waiting
        self._stats = stats
        self._settings = settings
        self._topic = topic
        self._set_aside = SetAside(directory, stats)
        # Nobody waits for what may be lost.
        self._refusals = Refusals(ensure_topic, settings.retry_s, waits_for_room=keeps_time)
        self._is_busy = is_busy
        self._last_lap = last_lap
        self._teller = Teller()
        # What is kept cannot be read: other brokers are not kept waiting for it any longer.
        self.is_stuck = False
        # Whether other brokers' older messages come first, and these before their newer ones.
        self._keeps_time = keeps_time
        # Until when what an earlier broker left is stored at full speed; at once where it left nothing.
        self._startup_until_s = float("-inf")
        # Stretches that the store refuses are halved until the line is found.
        self._step_max = _STEP_EVENTS_MAX
        self._tries = 0
        self._turns = Turns(target, self._aside)
        # Up to which line of the current file messages do not count as waiting any more.
        self._passed_until: tuple[SpillFile | None, int] = None, 0
        self._gone: list[UUID] = []
        self._found_files = self._found_events = 0
        # Messages that are stored in a second, as of late.
        self._rate = 0.0
        self.reader = Reader(settings.batch_messages_max)

    @property
    def has_more_to_do(self) -> bool:
        """Whether there are files to store, or stored ones to be forgotten."""
        return bool(self.pending_files or self._gone)

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits, neither here nor in a file that is still written."""
        return self._appender.is_idle and not self.pending_files

    @property
    def is_held_up(self) -> bool:
        """Whether others' older messages are waited for."""
        return self._turns.is_held_up

    @property
    def pending_events(self) -> int:
        return self._waiting.total + (0 if self._waiting.is_known else self._found_events)

    @property
    def file_count(self) -> int:
        """Completed files that wait to be stored."""
        return len(self.pending_files) + (0 if self._waiting.is_known else self._found_files)

    # --- what an earlier broker left --------------------------------------------------------------------

    def found(self, file_count: int, events: int) -> None:
        """What there is, until `look_at` has counted it by partition."""
        self._found_files, self._found_events = file_count, events

    async def look_at(self, found: Sequence[SpillFile]) -> None:
        """Count what there is, by partition, so that it is known what has to queue.

        Raises `OSError`: then nothing is counted, and it can be called again.
        """
        old: list[CompletedFile] = []
        counts: Counter[PartitionId] = Counter()
        for file in found:
            try:
                counts_of_file, lines = await asyncio.to_thread(counted, file)
                old.append(CompletedFile(file, lines, file.path.stat().st_size))
            except FileNotFoundError:
                self._tell_gone(CompletedFile(file, 0, 0))
            else:
                counts.update(counts_of_file)
        for partition, count in counts.items():
            self._waiting.add(partition, count)
        self.pending_files.extendleft(reversed(old))
        self._waiting.is_known = True
        if old:
            self._startup_until_s = time.monotonic() + self._settings.startup_s
            log.info("spill_found", files=len(old), events=sum(each.events for each in old))
        self.announce()

    def take_over(self, file: CompletedFile, counts: Counter[PartitionId]) -> None:
        """Store a file that was made of older ones before all others, which may have come meanwhile."""
        assert not self.is_replaying, "one file after the other"
        for partition, count in counts.items():
            self._waiting.add(partition, count)
        self.pending_files.appendleft(file)
        self.announce()

    async def store_alone(self, writer: UUID, number: int, event: Event) -> None:
        """Store one message, unless `writer` says that it did. Raises `CallerError`, and what storing raises."""
        if await self._target.progress(writer) == number:
            return
        fresh = await self._not_stored([event])
        _, refused = await self._prepare(fresh, set(map(place_of, fresh)))
        if refused:
            raise next(iter(refused.values()))
        made = batches.batches_of(fresh, self._chosen, self._settings.batch_messages_max)
        await self._target.store(writer, number, made)
        self._stats.replayed_events += 1

    # --- one round ------------------------------------------------------------------------------------

    async def run_once(self) -> None:
        """Store all that may be stored now. Raises `Unavailable` where the store does not take it."""
        try:
            if not self.pending_files and self._appender.active_events:
                await self._complete_active()
                if self._appender.failure is not None:
                    self.announce()
            while self.pending_files:
                self.is_replaying = True
                try:
                    is_done = await self._replay_file(self.pending_files[0])
                except FileNotFoundError:
                    is_done = self._without(self.pending_files[0])
                finally:
                    self.is_replaying = False
                if not is_done:
                    return
                if not self.pending_files:
                    # What was spilled meanwhile; or, at last, nothing.
                    await self._complete_active()
            if self.is_drained:
                self._last_lap.succeeded()
                self._waiting.clear()
                self._startup_until_s = float("-inf")
                self.announce()
                self._teller.complete()
        except BaseException:
            self._turns.reset()
            raise
        finally:
            self._last_lap.end()
        if self.is_drained:
            await self._forget_gone()

    async def _complete_active(self) -> None:
        """Complete the file that is being written; where little is in it, nobody adds to what waits from here on."""
        is_little = self._appender.active_events <= max(LAP_EVENTS_MAX, self._rate * self._last_lap.seconds / 4)
        if self._appender.active_events and is_little and self._appender.failure is None:
            self._last_lap.begin()
        await self._appender.seal()

    def _without(self, current: CompletedFile) -> bool:
        """Go on without a file that somebody took away. Raises `FileNotFoundError` where it is the whole directory."""
        self._tell_gone(current)
        self._turns.reset()
        self.pending_files.popleft()
        self.announce()
        return True

    def _tell_gone(self, current: CompletedFile) -> None:
        if current.file.path.exists() or not self._directory.is_there:
            raise FileNotFoundError(f"{current.file.path} cannot be read")
        log.critical(
            "spill_file_gone",
            file=current.file.path.name,
            messages=current.events,
            hint="somebody removed it while this broker ran: its messages are not stored; put it back and restart, "
            "and they are",
        )

    async def _replay_file(self, current: CompletedFile) -> bool:
        """Whether all of a file is stored; it is deleted then."""
        file = current.file
        if self._keeps_time and await self._turns.is_still_held_up(file):
            await self._tell_held_up()
            return False
        while True:
            try:
                if not await self._replay_lines(current):
                    return False
            except LinesMoved:
                self._turns.reset()
                continue
            break
        file.path.unlink(missing_ok=True)
        self._turns.reset()
        self.pending_files.popleft()
        self._gone.append(file.id)
        self._teller.file_done()
        self.announce()
        if len(self._gone) >= _GONE_MAX:
            await self._forget_gone()
        return True

    async def _replay_lines(self, current: CompletedFile) -> bool:
        """Whether all lines of a file are stored. Raises `LinesMoved` where another broker stores some of them."""
        file = current.file
        done = await self._target.progress(file.id)
        await self._pass_stored(file, done)
        await self._set_aside.begin(file)
        position = await asyncio.to_thread(files.position_of_line, file.path, done)
        self._teller.began(files=len(self.pending_files), pending=self._waiting.total)
        while position < current.size_bytes:
            waiting, bad, size = await self.reader.piece(file, position)
            if not waiting:
                await self._set_aside.rest(file, position, done)
                break
            self.on_read()
            position += size
            self._read_ahead(current, position)
            await self._set_aside.bad(file, [each._replace(place=done + each.place) for each in bad])
            while waiting:
                stretch = stretches.next_of(waiting, self._step_events())
                turn = await self._turn(file, done, self._set_aside.left_of(stretch, done))
                if turn is None:
                    await self._tell_held_up()
                    return False
                own = self._set_aside.left_of(stretch.first(turn.own), done)
                if turn.is_done:
                    self._passed(own.counts)
                    self._stats.replayed_events += own.present
                    if turn.own:
                        self.on_stored(own.counts.total())
                elif not await self._step(file, done, own, turn):
                    continue
                stretches.drop(waiting, turn.own)
                done += turn.own
                self._passed_until = file, done
                self._teller.stored(turn.own, files=len(self.pending_files), pending=self._waiting.total)
        return True

    async def _forget_gone(self) -> None:
        """Deleted for good first: a file that comes back after a power failure must be known to be stored."""
        if self._gone:
            await asyncio.to_thread(self._directory.sync)
            await self._target.forget(self._gone)
            self._gone = []

    def _read_ahead(self, current: CompletedFile, position: int) -> None:
        if position < current.size_bytes:
            file = current.file
        elif len(self.pending_files) > 1:
            file, position = self.pending_files[1].file, 0
        else:
            return
        self.reader.read_ahead(file, position)

    def _step_events(self) -> int:
        return min(self._step_max, _STEP_EVENTS_BESIDE_TRAFFIC if self._makes_room() else _STEP_EVENTS_MAX)

    def _makes_room(self) -> bool:
        """Whether publishers want the store, too. What an earlier broker left comes first, for a while."""
        return self._is_busy() and time.monotonic() > self._startup_until_s

    async def _turn(self, file: SpillFile, done: int, stretch: Stretch) -> Turn | None:
        """What is stored next; none where other brokers' older messages come first."""
        if not self._keeps_time:
            return Turn(len(stretch.events))
        oldest = next((event.at for event in stretch.events if event is not None), None)
        if not self.is_stuck:
            self._target.announce(oldest if oldest is not None else self._oldest_ms())
        return await self._turns.next(file, done, stretch.events, self._step_events())

    async def _tell_held_up(self) -> None:
        if self.is_held_up and self._teller.is_worth_a_word():
            self._teller.held_up(await self._target.held_up_by())

    async def _step(self, file: SpillFile, done: int, own: Stretch, turn: Turn) -> bool:
        """Store lines, perhaps with others' among them; false where it has to be tried again, smaller or with less."""
        began_s = time.monotonic()
        lines = turn.events if turn.others else own.events
        present = [event for event in lines if event is not None]
        is_made = own.batches is not None and not turn.others
        fresh = present if is_made else await self._not_stored(present)
        known = len(present) - len(fresh)
        try:
            places = set(own.counts if is_made else map(place_of, fresh))
            is_as_it_was, refused = await self._prepare(fresh, places)
            if refused and turn.others:
                raise next(iter(refused.values()))
            if refused:
                await self._withdraw(file, done)
                await self._set_aside.of_topics(file, done, own.events, fresh, refused)
                return False
            made = own.batches if is_made and is_as_it_was else None
            if made is None:
                made = batches.batches_of(fresh, self._chosen, self._settings.batch_messages_max)
            repeated = await self._target.store(file.id, done + len(own.events), made, turn.others)
        except CallerError as error:
            return await self._refused(file, done, own.events, turn, error)
        except TROUBLE:
            # It may be too much for the time a step has.
            self._step_max = max(1, len(lines) // 2)
            raise
        self._tries = 0
        if time.monotonic() - began_s < _STEP_S_MAX:
            self._step_max = min(_STEP_EVENTS_MAX, self._step_max * 2)
        # The brokers of others' lines count those; of repeated ones nobody knows whose they are.
        kept = own.present
        there = min(kept, known + repeated)
        self._stats.replayed_events += min(kept, len(fresh)) - min(kept, repeated)
        self._stats.already_stored_events += there
        self._passed(own.counts)
        self.on_stored(own.counts.total())
        rate = len(lines) / max(1e-3, time.monotonic() - began_s)
        self._rate = rate if not self._rate else (3 * self._rate + rate) / 4
        if self._makes_room():
            await asyncio.sleep(_PAUSE_SHARE * (time.monotonic() - began_s))
        return True

    def _passed(self, counts: Counter[PartitionId]) -> None:
        for partition, count in counts.items():
            self._waiting.remove(partition, count)

    async def _pass_stored(self, file: SpillFile, done: int) -> None:
        """Lines wait no longer that an earlier broker stored, another one, or a step whose answer was lost.

        And those wait again that a store lacks which took the place of the one before.
        """
        is_known = self._passed_until[0] == file
        begin = self._passed_until[1] if is_known else 0
        first, end = sorted((begin, done))
        counts, lines = await asyncio.to_thread(counted_between, file, first, end)
        if done < begin:
            for partition, count in counts.items():
                self._waiting.add(partition, count)
        else:
            self._passed(counts)
            self._stats.replayed_events += lines if is_known else 0
            if lines and is_known:
                self.on_stored(lines)
        self._passed_until = file, done

    async def _not_stored(self, present: list[Event]) -> list[Event]:
        """Without those whose first try turns out to have worked."""
        if set(map(tried_of, present)) == {None}:
            return present
        tried: dict[str, list[str]] = {}
        for event in present:
            if event.tried is not None:
                tried.setdefault(event.tried, []).extend([] if event.id is None else [event.id])
        stored = await self._target.committed(tried, tried)
        return [event for event in present if event.tried is None or not stored & {event.tried, event.id}]

    async def _prepare(self, fresh: list[Event], places: set[Place]) -> tuple[bool, dict[str, CallerError]]:
        """Make topics that are missing. A partition that is not there any more is chosen anew: then it is false.

        And which topics are refused, if any.
        """
        refused: dict[str, CallerError] = {}
        for queue in {queue for queue, _ in places}:
            if self._topic(TopicName(queue)) is None:
                error = await self._refusals.made(queue)
                if error is not None:
                    refused[queue] = error
                elif self._topic(TopicName(queue)) is None:
                    # Whoever makes topics takes one to be there while nobody can say.
                    raise Unavailable(f"the store went away while topic {queue} was made")
        gone = {place for place in places if not self._is_there(*place)}
        for event in fresh if gone else ():
            if (event.queue, event.number) in gone:
                event.number = None
        return not gone, refused

    async def _aside(self, file: SpillFile, first: int, lines: Sequence[Event | None]) -> bool:
        """Set aside those lines whose topics are refused, before others are offered the rest; whether there are any."""
        present = [event for event in lines if event is not None]
        _, refused = await self._prepare(present, set(map(place_of, present)))
        if refused:
            await self._set_aside.of_topics(file, first, lines, present, refused)
        return bool(refused)

    def _is_there(self, queue: str, number: int | None) -> bool:
        topic = self._topic(TopicName(queue))
        return number is None or (topic is not None and number < topic.config.partitions)

    def _chosen(self, event: Event) -> PartitionId:
        topic = self._topic(TopicName(event.queue))
        assert topic is not None, "it was made before"
        return batches.chosen_partition(event, topic)

    async def _refused(
        self, file: SpillFile, done: int, stretch: Sequence[Event | None], turn: Turn, error: CallerError
    ) -> bool:
        """The store is there and does not take it: the line is found, tried again for a while, and set aside."""
        tried = max(len(stretch), len(turn.events))
        if tried > 1:
            self._step_max = max(1, tried // 2)
            return False
        if turn.others:
            self._turns.give_way()
            return False
        self._tries += 1
        # A message that the store cannot take it will never take; anything else may be about to change.
        if self._tries < TRIES_MAX and not isinstance(error, BadMessage):
            log.warning("spill_line_refused", file=file.path.name, line=done + 1, problem=error.message)
            await asyncio.sleep(PAUSE_S)
            return False
        assert stretch[0] is not None, "what cannot be read is not stored"
        await self._withdraw(file, done)
        await self._set_aside.one(file, done, error)
        self._tries = 0
        return False

    async def _withdraw(self, file: SpillFile, done: int) -> None:
        """Before lines are set aside: no other broker may store them as well. Raises `LinesMoved` where one has."""
        if not self._keeps_time:
            return
        await self._target.withdraw()
        self._turns.reset()
        if await self._target.progress(file.id) != done:
            raise LinesMoved("another broker has stored lines of the file")

    # --- words ----------------------------------------------------------------------------------------

    def _oldest_ms(self) -> int | None:
        """Not after the oldest message of the oldest file, which its name is a little younger than."""
        if self.pending_files:
            return (self.pending_files[0].file.id.int >> 80) - _OLDER_THAN_NAME_MS
        return None

    def announce(self) -> None:
        if not self._keeps_time:
            return
        if self.is_stuck:
            self._target.announce(None)
        elif self.pending_files:
            self._target.announce(self._oldest_ms())
        elif self._appender.is_idle or self._appender.failure is not None:
            # What is in a file that a failed disk holds is stored after a restart: nobody can wait for that.
            self._target.announce(None)


# What ends a round, to be tried again.
TROUBLE: Final = (Unavailable, OutcomeUnknown)

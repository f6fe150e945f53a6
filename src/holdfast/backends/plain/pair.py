"""Who of two is the primary, what the other one is worth to it, and when that changes.

The rules are in `consensus/plain_standing.py` (who gives way) and `plain_sending.py` (what may be acknowledged); here
they meet files, sockets and clocks. What a broker does next it decides by what its partner answers over the connection
that this one dialled, and by nothing a stranger could say.

*Asking*: a primary that was started, until its partner has answered or was silent for the misses. *Giving*: it follows
somebody else than before, who lacks what it gives. *Taking over*: it puts what was not delivered into the topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import structlog

from holdfast.backends.plain.deliveries import Deliveries
from holdfast.backends.plain.draining import Draining
from holdfast.backends.plain.giving import give_all
from holdfast.backends.plain.holding import Holding, PublishHere
from holdfast.backends.plain.intake import Intake
from holdfast.backends.plain.journal import Journal
from holdfast.backends.plain.link import Link, Snapshot
from holdfast.backends.plain.note import Note, NoteFile
from holdfast.backends.plain.orphans import with_orphans, without
from holdfast.backends.plain.serving import Serving
from holdfast.backends.plain.settings import PlainSettings
from holdfast.broker.backend import Backend
from holdfast.consensus.plain_standing import NO_REIGN, Reign, Role, Standing, Verdict, common_end, decide
from holdfast.model.cluster import refusal_of_backup
from holdfast.model.errors import HoldfastError, LeaderChanged, NotBackup, Replaced, ShuttingDown, Unavailable
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.wire.replication import standing_line

log = structlog.get_logger("holdfast.pair")

# So often is noted how far this broker has come, and what nobody needs any more is thrown away.
_UPKEEP_S: Final = 0.5
# Beside the misses, what it takes at most to take over.
_HELD_S: Final = 10.0


class Phase(Enum):
    ASKING = "asking"
    SERVING = "serving"
    FOLLOWING = "following"
    GIVING = "giving"
    TAKING_OVER = "taking over"


class PlainPair:
    """One of the two."""

    def __init__(
        self,
        backend: Backend,
        directory: Path,
        settings: PlainSettings,
        deliveries: Deliveries,
        *,
        is_synced: bool,
        message_bytes_max: int,
        now_ms: Callable[[], TimestampMs],
        on_change: Callable[[], None],
        on_fatal: Callable[[HoldfastError], None],
    ) -> None:
        self.settings = settings
        self._backend = backend
        self._deliveries = deliveries
        self._on_change = on_change
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._file = NoteFile(directory, settings.first_role)
        self.journal = Journal(directory, is_synced=is_synced, on_synced=self._on_synced, on_failure=self._failed)
        if self.note.cut is not None:
            self._cut(self.note.cut)
        self._draining = Draining(backend, self.journal, self.note.drained, self._on_drained)
        self.intake = Intake(
            self.journal,
            self._draining,
            deliveries,
            self,
            is_bare=settings.is_bare,
            message_bytes_max=message_bytes_max,
            now_ms=now_ms,
        )
        # The empty fields are needed: the other broker of the `ack` dialect closes the connection on a bare PING.
        heartbeat = b"PING||\n" if settings.is_bare else b"HEARTBEAT\n"
        self.link = Link(
            settings.address, heartbeat, settings.pair, self, self._snapshot, may_be_silent=settings.is_bare
        )
        self._holding = Holding(settings.pair.patience_s + _HELD_S, lambda: self.takes_publishes)
        self.phase = Phase.ASKING if self.note.role == "primary" else Phase.FOLLOWING
        self.serving: Serving | None = None
        # Added to the number of a reign: what is remembered of messages may have to be read again in between.
        self.generation = 0
        self.failovers, self.last_gap_s = 0, 0.0
        self._seen_epoch = 0
        self._asks_until_s = self._loop.time() + settings.pair.patience_s
        self._change: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        backend.watch_deletions(self._on_deleted)

    @property
    def note(self) -> Note:
        return self._file.note

    @property
    def takes_publishes(self) -> bool:
        return self.phase is Phase.SERVING and self.serving is not None and self.serving.is_settled

    def refusal(self) -> Unavailable:
        """Why nothing is published here now."""
        if self.serving is not None and self.settings.pair.requires_backup and self.serving.is_alone:
            return self.serving.missing_backup()
        if self.phase is Phase.SERVING:
            return Unavailable("this broker makes sure of what it has; try again in a moment")
        if self.note.role == "backup":
            return Unavailable(refusal_of_backup(self.settings.partner))
        return Unavailable(
            f"it is not known yet whether the backup took over; try again, or at {self.settings.partner}"
        )

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look for the partner. Front ends must be listening: it may answer at once."""
        if self.phase is Phase.FOLLOWING:
            self._change = self._spawn(self._begin_following(self.note.drained))
        for each in (self.link.dial_on(), self.link.beat_on(), self.link.look_on(), self._keep_up()):
            self._spawn(each)

    async def stop(self) -> None:
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._holding.refuse_below(self._holding.count, ShuttingDown("the broker stopped before it served"))
        await self._draining.stop(LeaderChanged("the broker stopped before the backup was known to have this"))
        await self.journal.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """The disk, or a bug of ours: whatever it is, nothing more may be promised."""
        if not self._is_stopping:
            log.critical("plain_pair_failed", problem=f"{type(error).__name__}: {error}", exc_info=error)
            self._on_fatal(error if isinstance(error, HoldfastError) else Unavailable(str(error)))

    # --- publishing -----------------------------------------------------------------------------------

    def publish(
        self, partition: PartitionId, messages: list[NewMessage], timestamp_ms: TimestampMs
    ) -> asyncio.Future[Offset]:
        """Raises `Unavailable`."""
        if not self.takes_publishes or self.serving is None:
            raise self.refusal()
        return self.serving.publish(partition, messages, timestamp_ms)

    def publish_with(self, publish_here: PublishHere) -> None:
        self._holding.publish_with(publish_here)

    def hold(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        """A publish that came while this broker takes none. Raises `Unavailable` if that does not change soon."""
        is_lacking = self.serving is not None and self.settings.pair.requires_backup and self.serving.is_alone
        if is_lacking or (self.phase is Phase.FOLLOWING and not self.note.has_met):
            raise self.refusal()
        promise = self._holding.hold(partition, batch)
        if self.takes_publishes:
            self._holding.publish()
        elif not self.link.is_asking:
            self.link.beat()
        return promise

    @property
    def is_holding(self) -> bool:
        """Whether publishes wait here that a later one must not overtake."""
        return not self._holding.is_empty

    def _look_after_held(self, before: Snapshot, standing: Standing | None) -> None:
        """The partner has answered: what was held before it was asked is refused, where it serves itself."""
        if self.phase is Phase.FOLLOWING and (standing is None or standing.role is Role.PRIMARY):
            self._holding.refuse_below(before.held, self.refusal())
            if not self._holding.is_empty and not self.link.is_asking:
                self.link.beat()

    def _on_deleted(self, topic: TopicName) -> None:
        # What was in it must not come back with the next start.
        if self.phase is Phase.SERVING or self._following is not None:
            self._file.write(drained=self._draining.drained, void=without(self.note.void, topic))
        if self.serving is not None:
            self.serving.topic_deleted()

    def _on_synced(self) -> None:
        self.intake.on_synced()
        if self.serving is not None:
            self.serving.on_synced()

    def _on_drained(self) -> None:
        if self.serving is not None:
            self.serving.on_drained()

    def _on_settled(self, is_settled: bool) -> None:
        """The ids of everything in the journal are in the topics, or are not any more."""
        self.generation += is_settled
        self._on_change()
        self._holding.publish()

    # --- what the partner says ------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        said = Snapshot(0, 0) if self.serving is None else self.serving.snapshot()
        return said._replace(held=self._holding.count)

    @property
    def standing(self) -> Standing:
        note = self.note
        role = Role.BACKUP if note.role == "backup" else Role.ASKING if self.phase is Phase.ASKING else Role.PRIMARY
        mark = self.intake.marks.mark if note.role == "backup" else 0
        return Standing(
            role, note.token, note.reign, note.previous, note.base, self.journal.start, self.journal.stored, mark
        )

    def greeting(self) -> bytes:
        return standing_line(self.standing)

    def on_beat(self, standing: Standing | None, before: Snapshot) -> None:
        self._file.write(has_met=True)
        self._look_after_held(before, standing)
        if self.serving is not None:
            self.serving.on_beat(before)
        if self._change is not None and not self._change.done():
            return
        if standing is None:
            self._on_foreign()
            return
        self._seen_epoch = max(self._seen_epoch, standing.reign.epoch)
        verdict = decide(self.standing, standing)
        if verdict is Verdict.GIVE_WAY:
            self._change = self._spawn(self._give_way())
        elif self.phase is Phase.ASKING and verdict is not Verdict.WAIT:
            self._change = self._spawn(self._serve())
        elif verdict is Verdict.SERVE and self.serving is not None:
            # It has to give something first, which must not wait for a backup.
            self.serving.gone()
        elif verdict is Verdict.SEND and self.serving is not None:
            self.serving.stream(max(standing.end, self.journal.start), standing.mark, is_ours=True)
        elif verdict is Verdict.TAKE_ON or (verdict is Verdict.FOLLOW and self.journal.end < standing.start):
            self._change = self._spawn(self._take_on(standing))
        elif verdict is Verdict.TAKE_OVER and self.phase is Phase.FOLLOWING:
            self._take_over("it is a backup, too, and has less")

    def _on_foreign(self) -> None:
        """A partner that says nothing of itself is what this broker is not."""
        if self.phase is Phase.ASKING:
            self._change = self._spawn(self._serve())
        elif self.serving is not None:
            # It may keep nothing over its restarts: everything that is not delivered is sent again.
            kept = max(self.note.kept, self.journal.start)
            self.serving.stream(kept, kept, is_ours=False)

    def on_silent(self, before: Snapshot | None) -> None:
        """It may be a backup that answers nothing: it is sent everything, and nothing depends on it."""
        if self.serving is not None:
            if before is not None:
                self.serving.on_beat(before)
            self._on_foreign()

    def on_lines(self, lines: Sequence[bytes]) -> None:
        if self.serving is not None:
            self.serving.on_lines(lines)

    def on_down(self) -> None:
        if self.serving is not None:
            self.serving.on_down()

    def on_back(self) -> None:
        log.info("partner_is_back", partner=self.settings.partner)

    def on_gone(self, why: str) -> None:
        log.warning("partner_is_gone", partner=self.settings.partner, why=why)
        self.link.drop()
        if self.serving is not None:
            self.serving.gone()
        elif self.phase in (Phase.FOLLOWING, Phase.GIVING):
            self._take_over(why)

    def on_look(self, now_s: float) -> None:
        busy = self._change is not None and not self._change.done()
        if self.phase is Phase.ASKING and now_s > self._asks_until_s and not busy:
            self._change = self._spawn(self._serve())
        elif self.phase is Phase.FOLLOWING and self.link.is_away and not busy:
            self._take_over("it is gone")
        if self.serving is not None:
            self.serving.look(now_s)

    # --- changing roles -------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Nobody has replaced this primary."""
        await self._deliveries.catch_up()
        if self.note.reign == NO_REIGN:
            # What was here before there was a pair is nobody's business any more.
            await self._deliveries.settle_all()
            self._file.write(reign=Reign(1, self.note.token), base=self.journal.end, kept=self.journal.end)
        await self.journal.settled()
        self._begin_to_serve(committed=self._draining.drained, has_taken_over=False)
        self.link.beat()

    def _begin_to_serve(self, *, committed: int, has_taken_over: bool) -> None:
        self.serving = Serving(
            self._backend,
            self.journal,
            self._draining,
            self._deliveries,
            self.link,
            self.settings,
            self.note,
            committed=committed,
            has_taken_over=has_taken_over,
            spawn=self._spawn,
            on_ended=self._ended,
            on_settled=self._on_settled,
        )
        self.phase = Phase.SERVING
        self.serving.advance()
        self.serving.on_drained()
        self._on_change()

    async def _give_way(self) -> None:
        log.error("replaced", by=self.settings.partner, hint="this is its backup from now on")
        self.phase = Phase.FOLLOWING
        if self.serving is not None:
            self.serving.end_stream()
        kept = max(self.note.kept, self.journal.start)
        self._file.write(role="backup", drained=kept, apart=[])
        self.serving = None
        self._on_change()
        await self._draining.stop(
            LeaderChanged(f"the other broker took over; send this to {self.settings.partner}, with its id")
        )
        await self.journal.settled()
        await self._begin_following(kept)
        self.link.drop()

    async def _begin_following(self, mark: int) -> None:
        """Whatever is in the topics is delivered, or somebody else's to deliver; the journal has what is not."""
        await self._deliveries.catch_up()
        await self._deliveries.settle_all()
        self.intake.begin(mark, is_foreign=self.note.reign == NO_REIGN)
        self._follow()

    def _follow(self) -> None:
        self._following = self._spawn(self.intake.run(lambda: self.note.reign))

    async def _end_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        await self.intake.idle()

    async def _take_on(self, winner: Standing) -> None:
        """Follow a primary of another reign: give it what it does not have, and cut the journal to what it has."""
        self.phase = Phase.GIVING
        await self.journal.settled()
        own = self.standing
        common = common_end(own, winner)
        given = self.note.given
        first = max(common, given[1] if given is not None and given[0] == winner.reign else 0)
        # One that requires a backup has acknowledged nothing of its own that the other one does not have; unless it did
        # not do so before, or the other one has lost its disk. What was acknowledged is in the topics then.
        is_strict = self.settings.pair.requires_backup and own.reign.owner == own.token
        if not is_strict or await with_orphans({}, self._backend, self.journal, own.reign, common):
            await self._give(winner.reign, first)
        await self._end_following()
        void = await with_orphans(self.note.void, self._backend, self.journal, own.reign, common)
        is_joined = self.journal.start <= common and winner.start <= common
        cut = common if is_joined else winner.start
        mark = min(self._draining.drained, cut) if is_joined else cut
        self._file.write(
            reign=winner.reign, previous=winner.previous, base=winner.base, cut=cut, drained=mark, given=None, void=void
        )
        self._cut(cut)
        self.intake.begin(mark, is_foreign=False)
        self._follow()
        self.phase = Phase.FOLLOWING
        self.link.beat()

    def _cut(self, position: int) -> None:
        self.journal.cut(position)
        self._file.write(cut=None)

    async def _give(self, to: Reign, first: int) -> None:
        given = 0

        def on_given(position: int, count: int) -> None:
            nonlocal given
            given += count
            self._file.write(given=(to, position))

        marks = self.intake.marks
        await give_all(self.journal, first, lambda position: not marks.has(position), self.settings, on_given)
        if given:
            log.info("gave_to_partner", partner=self.settings.partner, messages=given)

    def _take_over(self, why: str) -> None:
        if not self.note.has_met or self.phase is Phase.TAKING_OVER:
            return
        if self._change is not None and not self._change.done():
            if self.phase is not Phase.GIVING:
                return
            # It was about to follow somebody who is gone: what it has, it keeps.
            self._change.cancel()
        self.phase = Phase.TAKING_OVER
        self._change = self._spawn(self._take_over_now(why, self.link.heard_at_s, self._change))

    async def _take_over_now(self, why: str, heard_at_s: float, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        await self._end_following()
        await self.journal.settled()
        await self.intake.put_all_delivered(self.note.reign)
        await self._deliveries.settle_all()
        note, apart = self.note, self.intake.marks.apart
        if note.reign == NO_REIGN and (first := await self.intake.put_in_order()) is not None:
            await self.journal.settled()
            self._draining.drained, apart = first, []
        reign = Reign(max(note.reign.epoch, self._seen_epoch) + 1, note.token)
        self._file.write(
            role="primary",
            previous=note.reign,
            reign=reign,
            base=self.journal.end,
            drained=self._draining.drained,
            apart=apart,
            kept=self._draining.drained,
            given=None,
        )
        log.warning("alone", partner=self.settings.partner, epoch=reign.epoch, took_over=True, why=why)
        self.failovers += 1
        self.last_gap_s = self._loop.time() - heard_at_s
        self._begin_to_serve(committed=self.journal.end, has_taken_over=True)
        self.link.drop()

    # --- taking replicas ------------------------------------------------------------------------------

    def check_takes(self, reign: Reign | None) -> None:
        if self.note.role == "primary":
            if self.phase is Phase.ASKING:
                raise NotBackup("this broker is a primary that does not know yet whether it was replaced")
            raise Replaced(f"this broker is the primary, in epoch {self.note.reign.epoch}")
        if self.phase is not Phase.FOLLOWING or self._following is None:
            raise NotBackup(f"this broker is no backup now: it is {self.phase.value}")
        if reign is not None and reign != self.note.reign:
            raise NotBackup("this broker does not follow that primary yet")
        if reign is None and self.note.reign != NO_REIGN:
            raise NotBackup("this is the backup of a primary that says where it stands (ROLE); connect again")

    def on_replicas(self) -> None:
        self._file.write(has_met=True)
        self.link.heard()

    # --- upkeep ---------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(_UPKEEP_S)
            self._holding.refuse_late(self.refusal())
            serving = self.serving
            if serving is not None:
                kept = max(self.note.kept, await serving.needed_from())
                if self.serving is serving:
                    drained = self._draining.drained
                    apart = self.note.apart if drained < self.note.base else []
                    self._file.write(drained=drained, kept=kept, apart=apart)
                    self.journal.prune(kept)
            elif self.phase is Phase.FOLLOWING and self._following is not None:
                self._file.write(drained=self._draining.drained)
                self.journal.prune(self._draining.drained)

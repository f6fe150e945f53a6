"""The primary's part for one reign: takes publishes, sends them to the backup, and knows what that one is worth.

Together or alone: a primary waits for its backup with every publish while it takes it to be there. It goes on alone
when the backup is gone, refuses something, confirms what it cannot have, or does not do its part for the misses. An
error is never a confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from holdfast.backends.plain.deliveries import Deliveries
from holdfast.backends.plain.draining import Draining, Waiting
from holdfast.backends.plain.journal import Journal
from holdfast.backends.plain.link import Link, Snapshot
from holdfast.backends.plain.marking import Marking
from holdfast.backends.plain.note import Note
from holdfast.backends.plain.settings import PlainSettings
from holdfast.backends.plain.streaming import Streaming
from holdfast.broker.backend import Backend
from holdfast.consensus.plain_marks import Marks
from holdfast.consensus.plain_sending import BadConfirmation, Mode, Sending
from holdfast.model.errors import BadCommand, LeaderChanged, Unavailable
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import NewMessage
from holdfast.wire.replication import confirmed_number

log = structlog.get_logger("holdfast.pair")

Spawn = Callable[..., asyncio.Task[None]]


class Serving:
    """Of one broker, from the moment it is in charge until it gives way."""

    def __init__(
        self,
        backend: Backend,
        journal: Journal,
        draining: Draining,
        deliveries: Deliveries,
        link: Link,
        settings: PlainSettings,
        note: Note,
        *,
        committed: int,
        has_taken_over: bool,
        spawn: Spawn,
        on_ended: Callable[[asyncio.Task[None]], None],
        on_settled: Callable[[bool], None],
    ) -> None:
        self._journal = journal
        self._draining = draining
        self._link = link
        self._settings = settings
        self._reign = note.reign
        self._spawn = spawn
        self._on_settled = on_settled
        self._loop = asyncio.get_running_loop()
        self._marking = Marking(backend, journal, draining, deliveries, note.reign)
        self.sending = Sending(
            stored=journal.stored,
            committed=max(committed, journal.start),
            confirmed=note.kept,
            requires_backup=settings.pair.requires_backup,
        )
        self._streaming: Streaming | None = None
        # While there is something in the journal whose ids are not known to be in the topics, nothing is taken.
        self.is_settled = False
        self.delivered_below = note.kept
        # Below this everything is delivered and was told; and below that, the backup has read so, too.
        self._told_below = self._marks_read = 0
        # Since when something was sent that is not confirmed, and since when there is no backup to send to.
        self._waits_since_s: float | None = None
        self._misses_since_s = self._loop.time()
        self._has_confirmed = False
        # Whether a foreign backup answers with confirmations; not known before it did, or was waited for in vain.
        self._foreign_confirms: bool | None = None
        self._told_mode = Mode.ALONE if has_taken_over else None
        self._complaint = ""
        draining.start(note.reign, Marks(note.drained, note.apart).has, on_ended)
        if not link.is_up:
            self.sending.gone()

    @property
    def is_alone(self) -> bool:
        """Whether what is acknowledged now is on this broker only."""
        return self.sending.mode is not Mode.TOGETHER

    # --- publishing -----------------------------------------------------------------------------------

    def publish(
        self, partition: PartitionId, messages: list[NewMessage], timestamp_ms: TimestampMs
    ) -> asyncio.Future[Offset]:
        """Into the journal, to the backup, into the topic; then the future is done. Raises `Unavailable`."""
        if self._settings.pair.requires_backup and self.is_alone:
            raise self.missing_backup()
        entries = [(partition.topic, message.id or "", message.value) for message in messages]
        first = self._journal.append(entries, self._reign.epoch, timestamp_ms)
        promise: asyncio.Future[Offset] = self._loop.create_future()
        self._draining.wait_for(Waiting(first, first + len(messages), partition, messages, timestamp_ms, promise))
        return promise

    def missing_backup(self) -> Unavailable:
        partner = self._settings.partner
        return Unavailable(f"there is no backup, and one is required: {partner} is away, or does not have everything")

    def on_synced(self) -> None:
        self.sending.stored_to(self._journal.stored)
        self.advance()

    def on_drained(self) -> None:
        self._marking.look_again()
        if not self.is_settled and self._draining.drained >= self._journal.end:
            self.is_settled = True
            self._on_settled(True)

    def advance(self) -> None:
        """What may be acknowledged, sent or told now that something has changed."""
        sending = self.sending
        if sending.has_open and self._waits_since_s is None:
            self._waits_since_s = self._loop.time()
        elif not sending.has_open:
            self._waits_since_s = None
        self._draining.drain_to(sending.committed)
        if self._streaming is not None:
            self._streaming.look_again()
        if sending.mode is self._told_mode or sending.mode is Mode.CATCHING_UP:
            return
        self._told_mode = sending.mode
        if sending.mode is Mode.TOGETHER:
            self._complaint = ""
            log.info("in_step", partner=self._settings.partner, epoch=self._reign.epoch)
            return
        log.warning("alone", partner=self._settings.partner, epoch=self._reign.epoch, took_over=False)
        lost = LeaderChanged("the backup was lost before it was known to have this; send it again, with its id")
        if self._settings.pair.requires_backup and self._draining.fail(lost):
            # It is stored here, and its ids must be known before anything else is taken.
            self.is_settled = False
            self._on_settled(False)

    # --- the backup -----------------------------------------------------------------------------------

    def stream(self, position: int, mark: int, *, is_ours: bool) -> None:
        """There is a backup that has everything below `position`, and knows what is delivered below `mark`."""
        if self._streaming is not None:
            return
        is_bare = self._settings.is_bare and not is_ours
        self._told_below = 0
        self._marking.is_told = False
        self.sending.opened(position, confirms=not is_bare and (is_ours or self._may_confirm()))
        self._streaming = Streaming(
            self._journal, self._link, self.sending, self._marking, mark=mark, is_bare=is_bare, spawn=self._spawn
        )
        self.advance()

    def _may_confirm(self) -> bool:
        """Of a foreign backup of the numbered packets, whether confirmations are waited for.

        One that refuses the packet of ours is the original, or like it: that has no confirmations. With a required
        backup nothing would ever be sent to it then, so one that does confirm could not show it.
        """
        if (
            self._foreign_confirms is None
            and self._link.is_greeting_refused
            and not self._settings.pair.requires_backup
        ):
            self._never_confirms("it refuses ROLE, so it has no REPLICATED either")
        return self._foreign_confirms is not False

    def _never_confirms(self, why: str) -> None:
        self._foreign_confirms = False
        log.warning(
            "backup_does_not_confirm",
            partner=self._settings.partner,
            why=why,
            hint="messages are acknowledged when this broker alone has them",
        )

    def on_beat(self, before: Snapshot) -> None:
        self._marks_read = max(self._marks_read, before.told)
        self.sending.read_to(before.sent)
        self.advance()

    def snapshot(self) -> Snapshot:
        return Snapshot(self.sending.sent or 0, self._told_below if self._streaming is not None else 0)

    def on_lines(self, lines: Sequence[bytes]) -> None:
        if self._streaming is None:
            return
        refused = next((place for place, line in enumerate(lines) if line.startswith(b"ERROR|")), None)
        try:
            # What is confirmed behind a refusal would speak for what was refused.
            numbers = [number for number in map(confirmed_number, lines[:refused]) if number is not None]
            if numbers:
                # What it has said before is no news: it would be waited for without an end.
                if self.sending.confirm(max(numbers)):
                    self._foreign_confirms = self._has_confirmed = True
                    self._waits_since_s = None
                self.advance()
        except (BadConfirmation, BadCommand) as error:
            self._give_up_on_link("backup_is_confused", str(error))
            return
        if refused is not None:
            self._give_up_on_link("backup_refuses", lines[refused][:200].decode("utf-8", "replace"))

    def _give_up_on_link(self, event: str, why: str) -> None:
        """Nothing more comes of this connection."""
        if self._complaint != why:
            self._complaint = why
            log.error(event, partner=self._settings.partner, why=why, hint="alone until it takes what it is sent")
        self._link.drop()
        self.gone()

    def on_down(self) -> None:
        self.end_stream()
        self.sending.closed()

    def gone(self) -> None:
        """The backup is away, or of no use."""
        self.end_stream()
        self.sending.gone()
        self.advance()

    def end_stream(self) -> None:
        self._waits_since_s = None
        self._has_confirmed = False
        if self._streaming is not None:
            self._streaming.end()
            self._streaming = None
            self._misses_since_s = self._loop.time()

    def look(self, now_s: float) -> None:
        """Do not wait for ever for one that is there and does not do its part."""
        before_s = now_s - self._settings.pair.patience_s
        if self._streaming is None:
            if self.sending.mode is not Mode.ALONE and self._misses_since_s < before_s:
                self.gone()
        elif self._waits_since_s is None or self._waits_since_s >= before_s:
            return
        elif self._link.is_ours or self._has_confirmed:
            self._give_up_on_link("backup_is_stuck", "it does not confirm any more")
        elif self.sending.confirms:
            self._never_confirms("it reads, but answers no REPLICATED")
            self.sending.never_confirms()
            self.advance()

    # --- what is delivered ----------------------------------------------------------------------------

    def cursor_moved(self, topic: TopicName) -> None:
        self._marking.moved(topic)

    def topic_deleted(self) -> None:
        self._marking.forget()

    async def needed_from(self) -> int:
        """Below this nobody needs the journal: it is in the topics, at the backup, delivered, and that was read."""
        self.delivered_below = await self._marking.delivered_below()
        if self._marking.is_told:
            self._told_below = min(self.delivered_below, self.sending.reached)
        return min(self._marks_read, self.sending.reached, self._draining.drained)

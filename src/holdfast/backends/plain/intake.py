"""The backup's end: keeps what its primary hands over in the journal, and notes what that one has delivered.

A primary of ours numbers without gaps and says in which reign it does: what comes again is known by its number alone,
however long ago it came. A foreign one's numbers are its own and may begin again; its messages are known by id and
number while they are held, and by id, topic and value where an older version of this broker kept them. What is
delivered up to the mark goes into the topics as history, and out of the journal.

A replica that was refused is told with an error, and no later number is confirmed on that connection: confirmations
speak for everything up to a number. What a foreign primary sends after that is kept all the same: it may not listen.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from holdfast.backends.plain.deliveries import Deliveries
from holdfast.backends.plain.draining import Draining
from holdfast.backends.plain.journal import Entry, Journal
from holdfast.backends.plain.ordering import Numbering, put_in_order
from holdfast.consensus.plain_marks import Marks, Names, name_of_id, name_of_value
from holdfast.consensus.plain_standing import Reign, Standing
from holdfast.model import names
from holdfast.model.errors import BadCommand, HoldfastError, NotBackup, TooLarge, TooManyTopics, WorldError
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.wire.replication import Clear, MarkDelivered, Replicate, confirmation, parse_packet
from holdfast.wire.text import error_line

log = structlog.get_logger("holdfast.pair")

_READ_BYTES: Final = 256 * 1024
_AGAIN_S: Final = 0.25


class Standings(Protocol):
    """What the intake needs of the broker it belongs to."""

    def check_takes(self, reign: Reign | None) -> None:
        """Raises `NotBackup` where replicas of that reign, or of a foreign primary, are not taken."""
        ...

    def greeting(self) -> bytes: ...

    def on_replicas(self) -> None:
        """The primary was heard. Raises `OSError` if that cannot be noted."""
        ...


class _Step(NamedTuple):
    """What one packet asks to be answered once the journal is durable up to there."""

    behind: int
    number: int | None
    answer: bytes


class Intake:
    """What one backup holds for its primary."""

    def __init__(
        self,
        journal: Journal,
        draining: Draining,
        deliveries: Deliveries,
        standings: Standings,
        *,
        is_bare: bool,
        message_bytes_max: int,
        now_ms: Callable[[], TimestampMs],
    ) -> None:
        self.journal = journal
        self.is_bare = is_bare
        self.standings = standings
        self._draining = draining
        self._deliveries = deliveries
        self._message_bytes_max = message_bytes_max
        self._now_ms = now_ms
        self.marks = Marks(draining.drained)
        self.names = Names()
        self._numbering = Numbering()
        self._made = 0
        self._stem = secrets.token_hex(6)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: set[asyncio.Future[None]] = set()

    def begin(self, drained: int, *, is_foreign: bool) -> None:
        """This broker is a backup from now on, and what is below is history already."""
        self.marks = Marks(max(drained, self.journal.start))
        self._draining.drained = self.marks.mark
        self.names = Names()
        self._numbering = Numbering()
        position = self.marks.mark if is_foreign else self.journal.end
        while entries := self.journal.read(position, _READ_BYTES):
            for entry in entries:
                if entry.number is not None and entry.number.is_copy:
                    # This broker was about to take over: the entries themselves are still there.
                    self.journal.cut(entry.position)
                    return
                if entry.number is not None:
                    self._numbering.held(entry.number)
                number = None if entry.number is None else entry.number.number
                self._know(entry.position, entry.message_id, entry.topic, entry.value, number)
            position = entries[-1].position + 1

    def session(self) -> Session:
        return Session(self)

    def _know(self, position: int, message_id: str, topic: str, value: bytes, number: int | None) -> None:
        """Have a foreign primary's message found by whichever name it may be called."""
        name = name_of_value(topic, value) if self.is_bare else name_of_id(message_id)
        self.names.add(name, position, number)

    # --- storing --------------------------------------------------------------------------------------

    def store(self, packet: Replicate, reign: Reign | None) -> int:
        """The position behind it, once it is written or found. Raises `HoldfastError`."""
        self._check(packet)
        if reign is not None:
            if not packet.number:
                raise BadCommand("one that says where it stands numbers its replicas from 1 on")
            position = packet.number - 1
            if position < self.journal.end:
                return position + 1
            if position > self.journal.end:
                raise BadCommand(f"number {self.journal.end + 1} is expected next, not {packet.number}")
        elif packet.number is not None and packet.message_id is not None:
            found = self._found(packet, packet.message_id, packet.number)
            if found is not None:
                return found + 1
        message_id = packet.message_id or self._made_id()
        topic = TopicName(packet.topic)
        epoch = 0 if reign is None else reign.epoch
        is_numbered = reign is None and packet.number is not None
        number = self._numbering.next(packet.number or 0) if is_numbered else None
        position = self.journal.append([(topic, message_id, packet.value)], epoch, self._now_ms(), number)
        if reign is None:
            self._know(position, message_id, topic, packet.value, packet.number)
        return position + 1

    def _found(self, packet: Replicate, message_id: str, number: int) -> int | None:
        """Where a foreign primary's message stands that came before.

        Of one that came before a restart of this broker the number is not known: it is the same if all the rest is.
        """
        name = name_of_id(message_id)
        found = self.names.find(name, number)
        if found is None:
            for position in self.names.unnumbered(name):
                held = self.journal.read(position, 1, position + 1)
                if held and (held[0].topic, held[0].value) == (packet.topic, packet.value):
                    self.names.number(name, position, number)
                    return position
        return found

    def _made_id(self) -> str:
        self._made += 1
        return f"{self._stem}-{self._made}"

    def _check(self, packet: Replicate) -> None:
        names.topic_name(packet.topic)
        if packet.message_id is not None:
            names.message_id(packet.message_id)
        if len(packet.value) > self._message_bytes_max:
            raise TooLarge(f"a message may have {self._message_bytes_max} bytes here, not {len(packet.value)}")

    def mark(self, packet: MarkDelivered | Clear, reign: Reign | None) -> None:
        """A message is called delivered; one that is not held was called so before."""
        if isinstance(packet, Clear):
            position = self.names.take(name_of_value(packet.topic, packet.value), None)
        elif reign is not None:
            position = packet.number - 1 if 0 < packet.number <= self.journal.end else None
        else:
            position = self.names.take(name_of_id(packet.message_id), packet.number)
        if position is not None:
            self.marks.add(position)
            self._work.set()

    # --- what is delivered ----------------------------------------------------------------------------

    async def run(self, reign: Callable[[], Reign]) -> None:
        """Put what is delivered into the topics, as long as this is a backup."""
        while True:
            self._work.clear()
            if self._draining.drained >= min(self.marks.mark, self.journal.stored):
                await self._work.wait()
                continue
            # Not to be ended in the middle: what is in a topic must count as delivered there.
            await asyncio.shield(asyncio.ensure_future(self.put_delivered(reign())))

    async def idle(self) -> None:
        """Until nothing is being put into topics."""
        await self._idle.wait()

    async def put_delivered(self, reign: Reign) -> None:
        """A piece of what is below the mark becomes history."""
        self._idle.clear()
        try:
            end = min(self.marks.mark, self.journal.stored)
            entries = self.journal.read(self._draining.drained, _READ_BYTES, end)
            if entries:
                await self._as_history(entries, reign)
                self._draining.drained = entries[-1].position + 1
        finally:
            self._idle.set()

    async def put_all_delivered(self, reign: Reign) -> None:
        """Before it takes over: everything up to the mark, and what was delivered apart from it."""
        await self._idle.wait()
        while self._draining.drained < min(self.marks.mark, self.journal.end):
            await self.put_delivered(reign)
        for first, behind in self.marks.apart:
            position = first
            while entries := self.journal.read(position, _READ_BYTES, behind):
                await self._as_history(entries, reign)
                position = entries[-1].position + 1

    async def put_in_order(self) -> int | None:
        """Before it takes over from a foreign primary, and after what is delivered: where the rest stands, in order."""
        return await put_in_order(self.journal, self.marks.mark, self.marks.has)

    async def _as_history(self, entries: Sequence[Entry], reign: Reign) -> None:
        while True:
            try:
                await self._draining.put_delivered(entries, reign)
                for topic in {entry.topic for entry in entries}:
                    await self._deliveries.settle(topic)
                return
            except TooManyTopics as error:
                # It is delivered: history is all that is missed. Deletions are not told, so a backup has more topics.
                log.warning("no_history", problem=error.message, hint="delete topics here; replicas are kept as before")
                entries = [entry for entry in entries if self._draining.has_topic(entry.topic)]
            except WorldError as error:
                log.warning("cannot_drain", problem=error.message, hint="it is tried again")
                await asyncio.sleep(_AGAIN_S)

    # --- waiting for the disk -------------------------------------------------------------------------

    def on_synced(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for each in waiting:
            if not each.done():
                each.set_result(None)
        self._work.set()

    async def stored(self, position: int) -> None:
        while self.journal.stored < position:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(turn)
            await turn


class Session:
    """One connection of a primary."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._reign: Reign | None = None
        self._last: asyncio.Future[bytes] | None = None
        self._is_broken = False

    def close(self) -> None:
        if self._last is not None:
            self._last.cancel()

    def take(self, lines: Sequence[bytes]) -> asyncio.Future[bytes]:
        steps = [self._step(line) for line in lines]
        self._last = asyncio.ensure_future(self._finish(self._last, steps))
        return self._last

    def _step(self, line: bytes) -> _Step:
        intake = self._intake
        is_replica = line[:9].upper() == b"REPLICATE"
        try:
            packet = parse_packet(line, is_bare=intake.is_bare and self._reign is None)
            if isinstance(packet, Standing):
                self._reign = packet.reign
                return _Step(0, None, intake.standings.greeting())
            intake.standings.check_takes(self._reign)
            if isinstance(packet, Replicate) and self._is_broken and self._reign is not None:
                raise NotBackup("a replica before this one was refused; connect again")
            intake.standings.on_replicas()
            if isinstance(packet, Replicate):
                behind = intake.store(packet, self._reign)
                if self._is_broken and packet.number is not None:
                    unconfirmed = NotBackup("it is kept, but one before it was refused: nothing is confirmed here")
                    return _Step(behind, None, error_line(unconfirmed))
                return _Step(behind, packet.number, b"")
            intake.mark(packet, self._reign)
        except HoldfastError as error:
            self._is_broken |= is_replica
            return _Step(0, None, error_line(error))
        return _Step(0, None, b"")

    async def _finish(self, before: asyncio.Future[bytes] | None, steps: Sequence[_Step]) -> bytes:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        behind = max(step.behind for step in steps)
        await self._intake.stored(behind)
        answers: list[bytes] = []
        number: int | None = None
        for step in steps:
            if step.answer:
                # What is confirmed is what came before the refusal.
                answers += [confirmation(number)] if number is not None else []
                answers.append(step.answer)
                number = None
            elif step.number is not None:
                number = step.number
        answers += [confirmation(number)] if number is not None else []
        return b"".join(answers)

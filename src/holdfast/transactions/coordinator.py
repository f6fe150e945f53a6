"""One partition of decisions, while this node leads it: what was decided is done, one decision after the other.

For a commit: nothing, if the writer has that number already, or if any piece that it names is not there any more; else
its pieces are copied, and then the writer's number is noted, which is what makes it known. The cursor behind the
decision follows.

A crash at any point repeats a decision. Before the number is noted, the copying is repeated, and whoever leads the
targets recognises the batches that are there. Afterwards the number says that there is nothing to do. A node that was
stopped in the middle and wakes up does the same decisions in the same order: it finds everything done already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from holdfast.broker.broker import Broker
from holdfast.broker.reign import Reign
from holdfast.broker.results import failure
from holdfast.model.errors import DamagedData, OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TimestampMs
from holdfast.model.names import DONE_CURSOR
from holdfast.transactions.copying import Copying, FloorExpired
from holdfast.transactions.settings import LogEvent, Settings, TransactionStats
from holdfast.transactions.sweeping import Sweeping, staged_from
from holdfast.transactions.writers import Forgotten, Writers, WriterState
from holdfast.wire import record_batch
from holdfast.wire.transactions import DECISIONS, STAGED, Abort, Commit, Forget, decode_decision

_READ_BYTES: Final = 256 * 1024
# How often it is looked whether something has expired, while nothing else happens.
_SWEEP_S_MAX: Final = 10.0


class Coordinator:
    """Does the decisions of one partition in one reign. `run` again after an error."""

    def __init__(
        self,
        broker: Broker,
        partition: PartitionId,
        reign: Reign,
        writers: Writers,
        settings: Settings,
        stats: TransactionStats,
        now_ms: Callable[[], TimestampMs],
        log: LogEvent,
    ) -> None:
        self._broker = broker
        self._backend = broker.backend
        self._partition = partition
        self._staged = PartitionId(STAGED, partition.number)
        self._reign = reign
        self._writers = writers
        self._settings = settings
        self._stats = stats
        self._now_ms = now_ms
        self._log = log
        self._sweeping = Sweeping(self._backend, partition.number, writers, settings, stats, log)
        # The commit whose copying was begun and is not done: it goes on where it was.
        self._copying: Copying | None = None
        self._done = Offset(0)
        self._noting: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Until it is cancelled, or raises `WorldError`."""
        await self._reign.confirm()
        await self._backend.catch_up_cursors()
        notes = self._writers.notes(self._partition.number)
        await self._backend.catch_up(self._partition)
        await self._backend.catch_up(self._staged)
        if taken := await self._writers.take_back(notes):
            self._log("transaction_notes_taken_back", partition=self._partition.number, notes=taken)
        self._sweeping.begin(self._writers.forgotten(self._partition.number))
        self._done = self._begin()
        news = asyncio.Event()
        unwatch = self._backend.watch(self._partition, news.set)
        try:
            while True:
                news.clear()
                # Taken first: whatever is decided later is later than this.
                clock_ms = self._now_ms()
                await self._do_all()
                await self._reign.confirm()
                await self._sweeping.sweep(clock_ms)
                self._note_done()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_SWEEP_S_MAX, self._settings.expiry_ms / 4000)):
                        await news.wait()
        finally:
            unwatch()

    def _begin(self) -> Offset:
        start, end = self._backend.start_offset(self._partition), self._backend.end_offset(self._partition)
        done = (self._backend.cursor(DECISIONS, DONE_CURSOR) or {}).get(self._partition.number, start)
        return min(max(done, start), end)

    async def _do_all(self) -> None:
        while self._done < self._backend.end_offset(self._partition):
            try:
                batches = await self._backend.read(self._partition, self._done, _READ_BYTES)
            except (DamagedData, OffsetOutOfRange) as error:
                self._log("transaction_data_lost", partition=self._partition.number, error=error.message)
                self._done = self._backend.next_readable(self._partition, Offset(self._done + 1))
                continue
            for batch in batches:
                for message in record_batch.decode(batch, self._partition.number, start=self._done):
                    await self._reign.confirm()
                    await self._do(message.offset, message.value)
                    self._done = Offset(message.offset + 1)
            self._note_done()

    async def _do(self, offset: Offset, value: bytes) -> None:
        decision = decode_decision(value)
        if isinstance(decision, Abort):
            await self._writers.dropped(decision.writer, decision.below, offset)
            self._stats.aborted += 1
            self._log("transaction_aborted", writer=decision.writer, reason=decision.reason)
            return
        if isinstance(decision, Forget):
            await self._forget(offset, decision)
            return
        state = self._writers.state(decision.writer)
        if decision.number <= state.number:
            self._stats.repeated += 1
            await self._writers.looked_at(decision.writer, offset)
        elif (copying := await self._begun(offset, decision, state)) is None:
            self._stats.refused += 1
            self._log("transaction_refused", writer=decision.writer, number=decision.number)
            await self._writers.looked_at(decision.writer, offset)
        else:
            await self._copy(copying, decision)
            await self._reign.confirm()
            await self._writers.committed(
                decision.writer, decision.number, offset, decision.decided_ms, decision.contents
            )
            self._stats.committed += 1
            self._log(
                "transaction_committed", writer=decision.writer, number=decision.number, pieces=len(decision.parts)
            )
            self._sweeping.committed(copying.sizes)
            await self._reign.confirm()
            # Whose clock is ahead of this one must not make others' pieces old.
            await self._sweeping.sweep(min(decision.decided_ms, self._now_ms()))

    async def _begun(self, offset: Offset, commit: Commit, state: WriterState) -> Copying | None:
        """The copying of a commit; none where a piece that it names is not there, or may be deleted at any time.

        That is found before anything is copied. Later nothing is let go of before the commit is done.
        """
        if self._copying is not None and self._copying.decision == offset:
            return self._copying
        kept_from = max(state.dropped_below, staged_from(self._backend, self._partition.number))
        if any(part.offset < kept_from for part in commit.parts):
            return None
        copying = Copying(self._broker, self._partition.number, offset, commit, self._stats, self._log)
        self._copying = copying if await copying.is_whole() else None
        return self._copying

    async def _copy(self, copying: Copying, commit: Commit) -> None:
        while True:
            try:
                await copying.run()
                break
            except FloorExpired as expired:
                # Sure to be the coordinator, and that this is not done: what is kept is all that counts.
                await self._backend.catch_up(self._partition)
                await self._backend.catch_up_cursors()
                await self._reign.confirm()
                if self._writers.state(commit.writer).number >= commit.number:
                    break
                await self._backend.catch_up(expired.partition)
                copying.floors[expired.target] = self._backend.start_offset(expired.partition)
                self._log("transaction_floor_expired", writer=commit.writer, topic=expired.partition.topic)
        self._copying = None

    async def _forget(self, offset: Offset, forget: Forget) -> None:
        """First nothing before it may be done again: a commit that is repeated would bring the writer back.

        Then what it staged is noted as dropped: a commit that comes late would find it, and no number to tell it by.
        """
        await self._note_at(offset)
        await self._reign.confirm()
        if staged_from(self._backend, self._partition.number) < forget.below:
            forgotten = Forgotten(forget.below, forget.writer)
            await self._writers.note_forgotten(forgotten)
            self._sweeping.forgot(forgotten)
            await self._reign.confirm()
        await self._writers.forget(forget.writer)
        self._log("transaction_writer_forgotten", writer=forget.writer)
        await self._note_at(Offset(offset + 1))

    async def _note_at(self, done: Offset) -> None:
        noted = self._backend.set_cursor(DECISIONS, DONE_CURSOR, {self._partition.number: done}, only_forward=True)
        await asyncio.shield(noted)

    def _note_done(self) -> None:
        """Let the cursor follow; where it is behind after a crash, the writers' numbers say what was done."""
        if self._noting is not None and not self._noting.done():
            return
        noted = (self._backend.cursor(DECISIONS, DONE_CURSOR) or {}).get(self._partition.number, Offset(-1))
        if self._done > noted:
            self._noting = self._backend.set_cursor(
                DECISIONS, DONE_CURSOR, {self._partition.number: self._done}, only_forward=True
            )
            self._noting.add_done_callback(failure)

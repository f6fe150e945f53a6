"""The control group: the log of commands, applied in order to the state of this node.

Whoever leads it writes commands into it; every node applies what is committed, one entry after the other, and
the file follows lazily: the log keeps what the file does not have yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from holdfast.backends.cluster import commands, telling
from holdfast.backends.cluster.commands import COMMANDS_MAX, Command, Decision, Outcome
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.state import Statement, StateStore, applied_row
from holdfast.broker.results import failure, refuse
from holdfast.model.entries import KIND_COMMAND, NOTE_HEAD_BYTES, Entry
from holdfast.model.errors import BadValue, BuildTooOld, DiskFull, HoldfastError, LeaderChanged, StorageFailed
from holdfast.model.ids import GroupId, LogIndex, Term
from holdfast.storage.entries import DamagedEntries
from holdfast.wire.peer_errors import encode_error

log = structlog.get_logger("holdfast.cluster")

CONTROL: Final = GroupId(0)
# The file may be so far behind the log; after a crash that much is applied again.
_FILE_DELAY_S: Final = 0.2
_READ_BYTES: Final = 256 * 1024


class Answered(NamedTuple):
    """What to write to the file, for a command whose outcome is more than that it was done."""

    statements: list[Statement]
    outcome: Outcome


# Makes one command true here, given its own number; returns what to write to the file. Raises `HoldfastError` as
# its outcome.
Apply = Callable[[Command, int], Awaitable[list[Statement] | Answered]]


class Control:
    """Applies the control log, and tells those who proposed what became of it."""

    def __init__(
        self,
        replica: Replica,
        store: StateStore,
        applied: LogIndex,
        apply: Apply,
        on_failure: Callable[[HoldfastError], None],
    ) -> None:
        self.replica = replica
        self.applied = applied
        # Up to here the file has everything.
        self.kept = applied
        self._store = store
        self._apply = apply
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._outcomes: dict[LogIndex, tuple[Term, asyncio.Future[list[Outcome]]]] = {}
        self._applied_waiters: list[tuple[LogIndex, asyncio.Future[None]]] = []
        self._statements: list[Statement] = []
        self._writer: asyncio.Task[None] | None = None
        self._applier: asyncio.Task[None] | None = None
        # Why nothing is applied any more.
        self._failed: HoldfastError | None = None
        replica.on_reign = self._on_reign
        self._tells = telling.is_on()
        if self._tells:
            replica.on_stored = lambda entries: telling.tell_entries("change_stored", entries)

    def _on_reign(self, replica: Replica) -> None:
        """Who leads no more does not know what becomes of what it wrote: its proposers have to ask again."""
        if replica.raft.leading is None:
            for _, future in self._outcomes.values():
                refuse(future, LeaderChanged("the leader changed before this was known to be decided"))

    def start(self) -> None:
        self._applier = self._loop.create_task(self._apply_on())
        self._applier.add_done_callback(self._notice_failure)

    def _notice_failure(self, applier: asyncio.Task[None]) -> None:
        """A node that cannot do what was decided must not serve as if it had."""
        if not applier.cancelled() and (error := applier.exception()) is not None:
            failed: HoldfastError = StorageFailed(f"what was decided cannot be applied here: {error!r}")
            if isinstance(error, BuildTooOld):
                failed = error
            else:
                log.error("control_failed", problem=repr(error), applied=self.applied)
            self._failed = failed
            for _, applied in self._applied_waiters:
                refuse(applied, failed)
            self._on_failure(failed)

    async def stop(self) -> None:
        for task in (self._applier, self._writer):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for _, future in self._outcomes.values():
            refuse(future, LeaderChanged("this node stopped before it was known to be decided"))
        await self.keep()

    async def close_store(self) -> None:
        await self._store.close()

    # --- the leader's part ----------------------------------------------------------------------------

    async def decide(self, wanted: Sequence[Command]) -> Decision:
        """Write commands into the log and wait until they are applied here. Raises `NotLeader`, `LeaderChanged`."""
        if len(wanted) > COMMANDS_MAX:
            raise BadValue(f"an entry takes {COMMANDS_MAX} commands, not {len(wanted)}")
        if self._tells:
            telling.tell("change_proposed", wanted)
        index = self.replica.append_note(KIND_COMMAND, commands.encode(wanted))
        applied: asyncio.Future[list[Outcome]] = self._loop.create_future()
        self._outcomes[index] = (self.replica.raft.term, applied)
        try:
            return Decision(index, await applied)
        finally:
            self._outcomes.pop(index, None)

    # --- everybody's part -------------------------------------------------------------------------------

    async def _apply_on(self) -> None:
        while True:
            first = LogIndex(self.applied + 1)
            await self.replica.wait_until_shown(first)
            shown = self.replica.shown_index
            try:
                entries = await self.replica.read_entries(first, _READ_BYTES, shown)
            except DamagedEntries as damage:
                if not self.replica.is_alone:
                    raise
                # There is nobody to ask: what these commands changed is lost, the rest is not.
                log.error("control_log_damaged", first=damage.first_index, next=damage.next_index)
                self.applied = LogIndex(damage.next_index - 1)
                continue
            for entry in entries:
                await self._apply_entry(LogIndex(self.applied + 1), entry)

    async def _apply_entry(self, index: LogIndex, entry: Entry) -> None:
        outcomes: list[Outcome] = []
        if self._tells and index in self._outcomes:
            telling.tell_entries("change_decided", [entry])
        if entry.kind == KIND_COMMAND:
            for place, command in enumerate(commands.decode(entry.payload[NOTE_HEAD_BYTES:])):
                try:
                    done = await self._apply(command, index * COMMANDS_MAX + place)
                    statements, outcome = done if isinstance(done, Answered) else (done, None)
                    self._statements += statements
                    outcomes.append(outcome)
                except BuildTooOld:
                    raise  # what follows is not for this build
                except HoldfastError as error:
                    outcomes.append(encode_error(error))
        self._statements.append(applied_row(index, entry.term))
        self.applied = index
        term, waiting = self._outcomes.get(index, (None, None))
        if waiting is not None and not waiting.done():
            if term == entry.term:
                waiting.set_result(outcomes)
            else:
                waiting.set_exception(LeaderChanged("another leader's entry took this place"))
        self._tell_applied()
        if self._writer is None:
            self._writer = self._loop.create_task(self._keep_later())

    def _tell_applied(self) -> None:
        for wanted, applied in self._applied_waiters:
            if wanted <= self.applied and not applied.done():
                applied.set_result(None)
        self._applied_waiters = [waiter for waiter in self._applied_waiters if not waiter[1].done()]

    async def wait_until_applied(self, index: LogIndex) -> None:
        if self.applied < index:
            if self._failed is not None:
                raise self._failed
            applied: asyncio.Future[None] = self._loop.create_future()
            self._applied_waiters.append((index, applied))
            await applied

    # --- the file ---------------------------------------------------------------------------------------

    async def _keep_later(self) -> None:
        await asyncio.sleep(_FILE_DELAY_S)
        self._writer = None
        await self.keep()

    async def keep(self) -> None:
        """Have the file follow now. Where the disk is full it stays behind: the log has it all."""
        if not self._statements:
            return
        statements, self._statements = self._statements, []
        applied = self.applied
        written = self._store.write(statements)
        await asyncio.wait([written])
        error = failure(written)
        if error is None:
            self.kept = max(self.kept, applied)
        elif isinstance(error, DiskFull):
            self._statements = statements + self._statements
            if self._writer is None:
                self._writer = self._loop.create_task(self._keep_later())

    async def replace_store(
        self, exchange: Callable[[], tuple[StateStore, LogIndex]], take_over: Callable[[], Awaitable[None]]
    ) -> None:
        """Go on with another file, which is further than this one. Nothing is applied before it is taken over.

        Until then nobody is told either that this much is applied: else the log would be begun behind it.
        """
        await self.stop()
        await self._store.close()
        self._statements.clear()
        # One that was ended while it waited would be waited for: nothing would be written any more.
        self._writer = None
        self._store, applied = exchange()
        await take_over()
        self.applied = self.kept = applied
        self._tell_applied()
        self.start()

    def drop_kept(self) -> None:
        """Let go of segments whose entries the file has."""
        log = self.replica.log
        through = min(self.kept, self.replica.shown_index)
        if log.drop_below(log.written_end, through_index=through):
            self.replica.compact_to_log()

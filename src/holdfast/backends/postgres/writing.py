"""Group commit: everything that waits, over all partitions and connections, becomes one transaction.

The steps of a transaction are in `transaction`. While the database works on them, what comes next is taken in and taken
apart.

A connection that breaks before the commit was sent has stored nothing: it is tried once more, or refused with
`Unavailable`. Afterwards nobody knows, so the writer's row is asked: locking it waits for the transaction that nobody
listens to, and its number says whether it was committed. Only where the database does not come back in time is that
`LeaderChanged`. A transaction is never guessed to have failed, and never run again before that is known.

Whoever cannot wait that long gives up on all that is under way (`abandon`) and is told which transaction may have
stored it. The writer then goes on under another name, so the row of the old one keeps the answer for as long as it is
needed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Final

import asyncpg
import structlog
from asyncpg import Connection

from holdfast.backends.postgres.database import CROSSED, NOT_TAKEN, TROUBLE, Database, is_away
from holdfast.backends.postgres.planning import Stored, Write
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import PartitionState
from holdfast.backends.postgres.transaction import IdsExpected, Mark, Unregistered, is_given_up, prepare
from holdfast.model.errors import BadMessage, HoldfastError, LeaderChanged, ShuttingDown, Unavailable
from holdfast.model.limits import MIB
from holdfast.model.messages import BatchPublished

log = structlog.get_logger("holdfast.postgres")

# So much at most is one transaction: what waits behind it is not kept waiting for long.
_ROUND_MESSAGES_MAX: Final = 10_000
_ROUND_BYTES_MAX: Final = 8 * MIB
# What may wait for the database before publishers are refused.
WAITING_BYTES_MAX: Final = 64 * MIB
# Taken apart, a small message takes ten times its bytes.
WAITING_MESSAGES_MAX: Final = 500_000
_GATHER_S_MAX: Final = 0.002
# Enough for a transaction of its own: what comes meanwhile is taken apart while the database works.
_GATHER_MESSAGES_MAX: Final = 500


class Writer:
    """Stores batches, in the order in which they come, in one transaction at a time."""

    def __init__(self, database: Database, *, dedupe_age_ms: int, on_stored: Callable[[Write, int, int], None]) -> None:
        self.id = uuid.uuid4()
        # Why the last transaction failed; none once one has succeeded.
        self.problem: str | None = None
        self.transactions = 0
        self.stored_messages = 0
        self.duplicates = 0
        self.unknown_commits = 0
        self.seconds = 0.0
        self.waiting_bytes = 0
        self._database = database
        self._ids = IdsExpected(dedupe_age_ms)
        self._on_stored = on_stored
        self._waiting: deque[Write] = deque()
        self._waiting_messages = 0
        self._has_some = asyncio.Event()
        self._number = 0
        # How many writes the last transaction had, and how long is waited for as many.
        self._gathered = 0
        self._gather_s = 0.0
        self._connection: Connection | None = None
        # What was taken for storing; of these, what the transaction has that is being run, and whether its commit was
        # sent.
        self._under_way: list[Write] = []
        self._tried: list[Write] = []
        self._storing: asyncio.Task[None] | None = None
        self._is_sent = False
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        database.on_down.append(self._refuse_waiting)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Store what waits, if the database is there, and leave."""
        self._is_stopping = True
        self._has_some.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._database.close(self._connection)

    def write(self, state: PartitionState, batch: bytearray) -> asyncio.Future[BatchPublished]:
        """Store a batch; the future says where its messages stand. Raises `Unavailable`."""
        if self._is_stopping:
            raise ShuttingDown("the broker is shutting down")
        if not self._database.is_up:
            raise self._database.unavailable()
        if self.waiting_bytes + len(batch) > WAITING_BYTES_MAX and self._waiting:
            raise Unavailable(f"{self.waiting_bytes} bytes wait for the database already; try again in a moment")
        if self._waiting_messages > WAITING_MESSAGES_MAX:
            raise Unavailable(f"{self._waiting_messages} messages wait for the database already; try again in a moment")
        write = Write(state, batch, asyncio.get_running_loop().create_future())
        self.waiting_bytes += len(batch)
        self._waiting_messages += write.count
        self._waiting.append(write)
        self._has_some.set()
        return write.future

    def abandon(self) -> dict[asyncio.Future[BatchPublished], str | None]:
        """Give up on everything that is under way, at once: each with the mark of what may have stored it.

        `None`: nothing of it is stored, and nothing will be.
        """
        marks = self._marks()
        fates = {write.future: marks.get(write) for write in self._under_way if not write.future.done()}
        given_up = list(self._under_way)
        while self._waiting:
            write = self._next()
            fates[write.future] = None
            given_up.append(write)
        if self._storing is not None:
            self._storing.cancel()
        self._let_go()
        self._retire()
        for write in given_up:
            write.refuse(LeaderChanged("the database did not answer in time"))
        return fates

    def _marks(self) -> dict[Write, str]:
        """Of those writes that the transaction which is being run may have stored."""
        return dict.fromkeys(self._tried, str(Mark(self.id, self._number))) if self._is_sent else {}

    def _retire(self) -> None:
        """Go on under another name.

        A later transaction of this one would take the place of a number that is still asked for. And the next one shall
        not wait for one that may still be under way.
        """
        self.id = uuid.uuid4()
        self._number = 0
        self._is_sent = False

    def _refuse_waiting(self) -> None:
        while self._waiting:
            self._next().refuse(self._database.unavailable())

    def _refuse_late(self) -> None:
        """What could not be begun within the deadline: the database is there, and slower than publishers are."""
        deadline_s = time.monotonic() - self._database.timeout_s
        while self._waiting and self._waiting[0].since_s < deadline_s:
            self._next().refuse(Unavailable("too much waits for the database; try again in a moment"))

    def _next(self) -> Write:
        write = self._waiting.popleft()
        self.waiting_bytes -= len(write.batch)
        self._waiting_messages -= write.count
        return write

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                if self._is_stopping:
                    return
                self._has_some.clear()
                await self._has_some.wait()
            if len(self._waiting) < self._gathered and self._waiting_messages < _GATHER_MESSAGES_MAX:
                # Those who were answered a moment ago are about to ask again: one transaction for all of them.
                await asyncio.sleep(self._gather_s)
            self._refuse_late()
            if not self._waiting:
                continue
            writes = self._round()
            began_s = time.perf_counter()
            self._under_way = writes
            self._storing = asyncio.get_running_loop().create_task(self._store(writes))
            # Not awaited itself: to give up on one transaction is not to end this task.
            await asyncio.wait((self._storing,))
            finished, self._storing, self._under_way = self._storing, None, []
            error = None if finished.cancelled() else finished.exception()
            if error is not None:
                # A bug of ours: nobody may be left waiting for it, and the next ones may fare better.
                log.error("writer_failed", exc_info=error)
                marks = self._marks()
                self._let_go()
                self._retire()
                for write in writes:
                    told = f"nobody knows whether this was stored: {type(error).__name__}"
                    write.refuse(LeaderChanged(told, marks.get(write)))
            self._tried = []
            self._gathered = len(writes)
            self._gather_s = min(_GATHER_S_MAX, (time.perf_counter() - began_s) / 4)

    def _round(self) -> list[Write]:
        taken = [self._next()]
        messages, size = taken[0].count, len(taken[0].batch)
        while self._waiting:
            write = self._waiting[0]
            messages += write.count
            size += len(write.batch)
            if messages > _ROUND_MESSAGES_MAX or size > _ROUND_BYTES_MAX:
                break
            taken.append(self._next())
        return taken

    # --- one transaction ------------------------------------------------------------------------------

    async def _store(self, writes: list[Write]) -> None:
        self._tried = writes
        for is_last_try in (False, True):
            self._number += 1
            self._is_sent = False
            began_s = time.perf_counter()
            connection: Connection | None = None
            try:
                async with asyncio.timeout(self._database.timeout_s):
                    connection = await self._connected()
                    stored = await prepare(connection, writes, Mark(self.id, self._number), self._ids)
                    self._is_sent = True
                    ended_with = await connection.execute("COMMIT")
                assert ended_with == "COMMIT", ended_with
            except (*TROUBLE, Unregistered) as error:
                if is_given_up():
                    # Whoever gave up was told that nothing of it will be stored from then on.
                    raise asyncio.CancelledError from error
                self._let_go()
                if not self._is_sent:
                    if not is_last_try and connection is not None and _is_worth_another_try(error):
                        continue
                    if len(writes) > 1 and isinstance(error, NOT_TAKEN):
                        await self._store_apart(writes)
                    else:
                        self._refuse(writes, error, connected=connection is not None)
                    return
                log.warning("commit_unanswered", number=self._number, problem=type(error).__name__)
                is_committed = await self._find_out(self._number)
                if is_committed is None:
                    self._give_up(writes, error)
                    return
                if not is_committed:
                    if not is_last_try:
                        continue
                    self._refuse(writes, error, connected=True)
                    return
            self.seconds += time.perf_counter() - began_s
            self.settle(stored)
            # Only now: should telling go wrong, whoever waits must hear that this may be stored.
            self._is_sent = False
            return

    async def _store_apart(self, writes: list[Write]) -> None:
        """One of them is nothing that the database takes: the others are not refused for it."""
        for write in writes:
            if self._database.is_up:
                await self._store([write])
            else:
                write.refuse(self._database.unavailable())

    async def reach(self) -> None:
        """Be connected before there is something to store. Raises what the driver raises."""
        if self._storing is None:
            await self._connected()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            connection = await self._database.connect()
            try:
                registered: uuid.UUID | None = None
                while registered != self.id:  # it may get another name meanwhile
                    registered = self.id
                    await connection.execute(sql("register_writer"), registered)
            except BaseException:
                connection.terminate()
                raise
            if self._connection is not None and not self._connection.is_closed():
                connection.terminate()  # somebody else was faster
                return self._connection
            self._connection = connection
        return self._connection

    def _let_go(self) -> None:
        """The transaction is over, or will be when the database finds nobody listening."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    # --- what became of it ----------------------------------------------------------------------------

    async def _find_out(self, number: int) -> bool | None:
        """Whether a transaction was committed; none where the database does not say so in time."""
        try:
            async with asyncio.timeout(self._database.timeout_s):
                while True:
                    try:
                        connection = await self._connected()
                        last = await connection.fetchval(sql("last_written"), self.id)
                    except TROUBLE:
                        self._let_go()
                        await asyncio.sleep(0.1)
                        continue
                    return bool(last == number)
        except TimeoutError:
            return None

    def settle(self, stored: list[Stored]) -> None:
        """A transaction was committed: everybody is told who waits for it, or wants to know of it."""
        self.problem = None
        self.transactions += 1
        for part in stored:
            self.stored_messages += part.fresh
            self.duplicates += part.published.duplicates
            part.write.state.size_bytes += part.size
            self._on_stored(part.write, part.base, part.fresh)
            if not part.write.future.done():
                part.write.future.set_result(part.published)

    def _refuse(self, writes: list[Write], error: BaseException, *, connected: bool) -> None:
        """Nothing of it was stored."""
        if isinstance(error, NOT_TAKEN) and not isinstance(error, CROSSED):
            refusal: HoldfastError = BadMessage(f"the database does not take it: {error}")
        elif isinstance(error, Unregistered):
            refusal = Unavailable("the database forgot this broker; try again")
        else:
            refusal = self._database.failed(error, connected=connected)
        if not isinstance(refusal, BadMessage):
            self.problem = refusal.message
        for write in writes:
            write.refuse(refusal)

    def _give_up(self, writes: list[Write], error: BaseException) -> None:
        self.unknown_commits += 1
        self._database.lost(error)
        mark = str(Mark(self.id, self._number))
        self._retire()
        log.error("commit_unknown", messages=sum(write.count for write in writes), hint="publishers are told so")
        for write in writes:
            write.refuse(
                LeaderChanged(
                    "the database was lost while it stored this, and does not come back to say whether it did; "
                    "with ids, send it again",
                    mark,
                )
            )


def _is_worth_another_try(error: BaseException) -> bool:
    """Whether a new connection may do at once what this one could not."""
    if isinstance(error, TimeoutError):
        return False
    return is_away(error) or isinstance(error, Unregistered | asyncpg.DeadlockDetectedError)

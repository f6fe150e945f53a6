"""Storing streams of a recovery, exactly once: each of them is a writer of its own, as each file of a spill is.

The number in a stream's row of `holdfast.writers` says how many of its messages are done. It moves in the transaction
that stores them, and only from where whoever stores them found it: of two tasks that store the same stream one finds
that the other was faster. The recovery itself is a writer, too: 0 when it has begun, and 1 when all is stored.

**Ids.** What the index of ids remembers is recognised as ever, however old it is. That index forgets after minutes, and
a backlog is older: so the ids of messages that were stored since shortly before the backlog are gathered first, once
for each stream, and looked at as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID, uuid5

import uuid_utils
from asyncpg import Connection, IdleInTransactionSessionTimeoutError, QueryCanceledError

from holdfast.backends.postgres import address, rows
from holdfast.backends.postgres.database import CROSSED, NOT_TAKEN, TROUBLE, Database
from holdfast.backends.postgres.planning import Write
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import PartitionState
from holdfast.backends.postgres.transaction import IdsExpected, Mark, Unregistered, prepare
from holdfast.model.errors import BadMessage, TopicNotFound, Unavailable
from holdfast.model.ids import PartitionId, TopicName
from holdfast.wire.push_batch import TimedPush

Result = TypeVar("Result")

# One transaction. A task that fell silent within one keeps its partition from live brokers for no longer: as long as
# they wait for the database themselves. Where the database is slower than that, it is given more.
STEP_S: Final = 5.0
_STEP_S_MAX: Final = 60.0
# How long the database may be away before a task gives up. Spark tries it again, a few times.
_AWAY_S_MAX: Final = 120.0
_PAUSE_S: Final = 0.5
# Ids that are there count, however old they are: 35 years, since PostgreSQL subtracts no more than its calendar has.
_ANY_AGE_MS: Final = 1 << 40
# In the row of a file: all of its lines, however many it has.
_ALL_LINES: Final = 1 << 62
_DONE: Final = 1
# Of transactions without an answer, whose fates are remembered.
_MARKS_MAX: Final = 10_000
_NO_LIMIT: Final = "SET LOCAL statement_timeout = 0"


class Target(NamedTuple):
    """Where a stream goes: which topic of that name it is."""

    topic_id: int
    partition: PartitionId


class Stored(NamedTuple):
    """What became of a step: how many messages are new, or that somebody else was faster."""

    new: int
    is_overtaken: bool = False


class RecoveryDatabase:
    """One connection to the database, for whoever does one thing after the other. All raise `Unavailable`.

    `known_since_ms`: from when on messages of the store are compared by id.
    """

    def __init__(self, url: str, application: str, known_since_ms: int = 0, *, timeout_s: float = _STEP_S_MAX) -> None:
        address.check(url)
        self._database = Database(url, timeout_s=timeout_s, application=application)
        self._loop = asyncio.new_event_loop()
        self._connection: Connection | None = None
        self._ids = IdsExpected(_ANY_AGE_MS)
        self._known_since = rows.timestamp(known_since_ms)
        self._target: Target | None = None
        # How many ids were gathered for the stream; none: they were not yet.
        self._known_count: int | None = None
        self._committed: dict[str, bool] = {}
        # Since when no step could be stored, for whatever reason.
        self._failing_since_s: float | None = None

    @property
    def place(self) -> str:
        return self._database.place

    def close(self) -> None:
        if self._connection is not None:
            self._loop.run_until_complete(self._database.close(self._connection))
        # One that was let go is closed in the loop's next turn.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    # --- what the driver asks ---------------------------------------------------------------------------

    def prepare_schema(self) -> str:
        """Make the tables where they are missing; returns which store it is. Raises `ConfigError`, too."""
        self._loop.run_until_complete(self._database.start())
        try:
            if not self._database.is_up:
                raise self._database.unavailable()
        finally:
            self._loop.run_until_complete(self._database.stop())
        return str(self._run(lambda connection: connection.fetchval(sql("store_id"))))

    def topics(self) -> dict[str, int]:
        found = self._run(lambda connection: connection.fetch(sql("all_topics")))
        return {row["name"]: row["partitions"] for row in found}

    def stored_lines(self, files: Sequence[UUID]) -> dict[UUID, int]:
        """How many lines of each file its broker has stored, where it has begun."""
        found = self._run(lambda connection: connection.fetch(sql("stored_lines"), files))
        return {UUID(bytes=row["writer_id"].bytes): row["number"] for row in found}

    def recovery_number(self, recovery: UUID) -> int | None:
        number: int | None = self._run(lambda connection: connection.fetchval(sql("writer_number"), recovery))
        return number

    def begin(self, recovery: UUID) -> None:
        self._run(lambda connection: connection.fetchval(sql("register_writer"), recovery))

    def end(self, recovery: UUID, files: Sequence[UUID]) -> None:
        self._run(lambda connection: connection.execute(sql("end_recovery"), recovery, files, _ALL_LINES))

    def is_done(self, recovery: UUID) -> bool:
        return self.recovery_number(recovery) == _DONE

    # --- what a task does -------------------------------------------------------------------------------

    def reached(self, recovery: UUID, topic: str, number: int, partitions: int) -> int:
        """How many of a stream are done, which is the one that is stored from now on.

        The topic is made, with so many partitions, where it is missing. Waits for a transaction that nobody listens to.
        """
        self._known_count = None

        async def ask(connection: Connection) -> int:
            self._target = await _made(connection, PartitionId(TopicName(topic), number), partitions)
            reached: int = await connection.fetchval(sql("register_writer"), _stream(recovery, self._target.partition))
            return reached

        return self._run(ask)

    def store(self, recovery: UUID, before: int, after: int, batches: Sequence[bytearray | TimedPush]) -> Stored:
        """Store batches, and that `after` messages of the stream are done. Raises `BadMessage`, too.

        Where the answer is lost that counts as overtaken: `reached` tells.
        """
        try:
            stored = self._loop.run_until_complete(self._store(recovery, before, after, batches))
        except (Unregistered, TopicNotFound, *TROUBLE) as error:
            self._let_go()
            if isinstance(error, NOT_TAKEN) and not isinstance(error, CROSSED):
                raise BadMessage(f"the database does not take a message: {error}") from error
            self._give_more_time(error)
            self._failing_since_s = self._failing_since_s or time.monotonic()
            if time.monotonic() - self._failing_since_s > _AWAY_S_MAX:
                raise Unavailable(f"the database does not store this ({self.place}): {error}") from error
            if not isinstance(error, Unregistered):
                time.sleep(_PAUSE_S)
            return Stored(0, is_overtaken=True)
        self._failing_since_s = None
        return stored

    async def _store(self, recovery: UUID, before: int, after: int, batches: Sequence[bytearray | TimedPush]) -> Stored:
        connection, target = await self._connected(), self._target
        assert target is not None, "it was asked how far the stream is"
        state = PartitionState(target.topic_id, target.partition)
        writes = [Write(state, batch, self._loop.create_future()) for batch in batches]
        mark = Mark(_stream(recovery, target.partition), after)
        async with asyncio.timeout(self._database.timeout_s):
            stored = await prepare(connection, writes, mark, self._ids, number_before=before)
            for write in writes:
                if write.future.done() and (error := write.future.exception()):
                    await connection.execute("ROLLBACK")
                    raise error
            ended_with = await connection.execute("COMMIT")
            assert ended_with == "COMMIT", ended_with
        return Stored(sum(part.fresh for part in stored))

    def known(self, keys: Sequence[str]) -> set[str]:
        """Those of the ids, by which messages are recognised, that messages of the store have."""
        if not keys:
            return set()

        async def ask(connection: Connection) -> set[str]:
            if self._known_count is None:
                self._known_count = await self._gather(connection)
            if not self._known_count:
                return set()
            found = await connection.fetch(sql("known_of_recovery"), "\n".join(sorted(keys)))
            return {str(row["key"]) for row in found}

        return self._run(ask)

    async def _gather(self, connection: Connection) -> int:
        assert self._target is not None, "it was asked how far the stream is"
        place = self._target.topic_id, self._target.partition.number
        await connection.execute(sql("make_known_ids"))
        async with connection.transaction():
            # As long as it takes: it looks at everything since then, once.
            await connection.execute(_NO_LIMIT)
            await connection.execute(sql("clear_known_ids"))
            first = await connection.fetchval(sql("offset_at"), *place, self._known_since)
            gathered = await connection.execute(sql("gather_known_ids"), *place, first)
        return int(gathered.rpartition(" ")[2])

    def committed(self, marks: Iterable[str]) -> set[str]:
        """Those of transactions, named by their marks, that were committed: brokers had no answer for them."""
        if len(self._committed) > _MARKS_MAX:
            self._committed.clear()
        for text in marks:
            if text not in self._committed:
                try:
                    mark = Mark.parse(text)
                except ValueError:
                    self._committed[text] = False  # of another kind of store
                    continue
                ask = _last_written(mark.writer)
                self._committed[text] = self._run(ask) == mark.number
        return {text for text in marks if self._committed[text]}

    # --- the connection ---------------------------------------------------------------------------------

    def _run(self, ask: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Ask something that may be asked again, for as long as a database may be away."""
        return self._loop.run_until_complete(self._asked(ask))

    async def _asked(self, ask: Callable[[Connection], Awaitable[Result]]) -> Result:
        until_s = time.monotonic() + _AWAY_S_MAX
        while True:
            try:
                return await ask(await self._connected())
            except TROUBLE as error:
                self._let_go()
                self._give_more_time(error)
                if time.monotonic() > until_s:
                    raise Unavailable(f"the database cannot do this now ({self.place}): {error}") from error
            await asyncio.sleep(_PAUSE_S)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect()
            self._known_count = None
        return self._connection

    def _give_more_time(self, error: BaseException) -> None:
        if isinstance(error, TimeoutError | QueryCanceledError | IdleInTransactionSessionTimeoutError):
            self._database.timeout_s = min(2 * self._database.timeout_s, _STEP_S_MAX)

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _stream(recovery: UUID, partition: PartitionId) -> UUID:
    return uuid5(recovery, str(partition))


def _last_written(writer: UUID) -> Callable[[Connection], Awaitable[object]]:
    async def ask(connection: Connection) -> object:
        return await connection.fetchval(sql("last_written"), writer)

    return ask


async def _made(connection: Connection, partition: PartitionId, partitions: int) -> Target:
    """The topic of that name, made where it is missing. Raises `TopicNotFound` where it has no such partition."""
    found = await connection.fetchrow(sql("topic_named"), partition.topic)
    if found is None:
        created_ms = time.time_ns() // 1_000_000
        values = partition.topic, str(uuid_utils.uuid7()), partitions, None, None, created_ms
        await connection.fetch(sql("create_topic"), *values)
        found = await connection.fetchrow(sql("topic_named"), partition.topic)
    if found is None or partition.number >= found["partitions"]:
        raise TopicNotFound(
            f"topic {partition.topic} was deleted, or made anew without partition {partition.number}, while its "
            "messages are recovered; create it as it was"
        )
    return Target(found["topic_id"], partition)

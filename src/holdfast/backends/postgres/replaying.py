"""Storing what a spill has kept, exactly once: each of its files is a writer of its own.

The number in a file's row of `holdfast.writers` says how many of its lines are stored. It moves in the transaction that
stores them, so whoever is cut off at any point asks for it and goes on from there; nothing else needs to be remembered.
It has one connection of its own, so publishers keep theirs.

Where several brokers keep messages, each offers the next lines of its file in `holdfast.spill_chunks`. One of them
stores the lines of all brokers in the order of time: the numbers of all files move in the one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final
from uuid import UUID

import asyncpg
import structlog
from asyncpg import Connection

from holdfast.backends.postgres.database import CROSSED, NOT_TAKEN, TROUBLE, Database
from holdfast.backends.postgres.holding import Holding
from holdfast.backends.postgres.planning import Write
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import KnownTopics
from holdfast.backends.postgres.transaction import IdsExpected, Mark, Unregistered, prepare
from holdfast.backends.postgres.writing import Writer
from holdfast.model.errors import BadMessage, TopicNotFound, Unavailable
from holdfast.model.ids import PartitionId
from holdfast.model.limits import MIB
from holdfast.model.messages import BatchPublished
from holdfast.model.spill import Chunk, LinesMoved, Others, OtherSpill, Rank
from holdfast.wire.push_batch import TimedPush

log = structlog.get_logger("holdfast.postgres")

# How long ago a broker may have been there that is waited for, where this one has only just started.
_AWAY_S_UNKNOWN: Final = 60.0
# After so much was offered, the room it took in the database is made free.
_OFFERED_BYTES_MAX: Final = 64 * MIB


class Replaying:
    """What a spill asks of this backend. All calls raise `Unavailable`."""

    # A message without an id needs none: the number of a transaction says what became of it.
    needs_ids = False

    def __init__(
        self,
        database: Database,
        known: KnownTopics,
        holding: Holding,
        broker_id: UUID,
        writer: Writer,
        *,
        dedupe_age_ms: int,
    ) -> None:
        self._database = database
        self._known = known
        self._holding = holding
        self._me = broker_id
        self._writer = writer
        self._ids = IdsExpected(dedupe_age_ms)
        self._connection: Connection | None = None
        self._has_offered = False
        self._offered_bytes = 0
        # How far the file is that is being stored, as this broker knows.
        self._reached: tuple[UUID, int] | None = None
        # The last beat before the database was lost; when it was found to be there again, and how long it was away.
        self._is_away = True
        self._beat_before_s: float | None = None
        self._back_s = 0.0
        self._away_s = 0.0
        database.on_down.append(self._on_down)

    async def stop(self) -> None:
        if self._connection is not None:
            await self._database.close(self._connection)
            self._connection = None

    def _on_down(self) -> None:
        """Whoever noticed it, and whether a push was under way or not."""
        self._is_away = True
        # There may be another one before the spill sees that it is back: the first of them counts.
        if self._beat_before_s is None:
            self._beat_before_s = self._holding.beat_s

    def abandon(self) -> dict[asyncio.Future[BatchPublished], str | None]:
        self._is_away = True
        return self._writer.abandon()

    async def reach(self) -> None:
        """Connect, publishers' writer as well: their deadline is for what is done with a connection."""
        async with self._in_time():
            await self._writer.reach()

    async def probe(self) -> None:
        """See that the database takes writes."""
        async with self._in_time() as connection:
            await connection.execute(sql("register_writer"), self._me)
        if self._is_away:
            self._is_away = False
            self._holding.hurry()
            self._back_s = time.monotonic()
            beat_s = self._holding.beat_s if self._beat_before_s is None else self._beat_before_s
            self._away_s = _AWAY_S_UNKNOWN if beat_s is None else self._back_s - beat_s
            self._beat_before_s = None

    async def progress(self, file: UUID) -> int:
        """How many lines of a file are stored; waits for a transaction that nobody listens to any more.

        The file's row is made here and committed at once: one that came with the first lines could not be seen, and
        so not waited for, until they are committed.
        """
        async with self._in_time() as connection:
            number: int = await connection.fetchval(sql("register_writer"), file)
        self._reached = file, number
        return number

    async def unsettled(self, file: UUID) -> int:
        """None: `progress` waits until it is known."""
        return 0

    def mark(self, partition: PartitionId) -> str | None:
        """A transaction gets its number when it is run."""
        return None

    async def committed(self, marks: Iterable[str], ids: dict[str, list[str]]) -> set[str]:
        """Those of transactions, named by their marks, that were committed."""
        found: set[str] = set()
        async with self._in_time() as connection:
            for text in marks:
                mark = Mark.parse(text)
                if await connection.fetchval(sql("last_written"), mark.writer) == mark.number:
                    found.add(text)
        return found

    async def store(
        self,
        file: UUID,
        number: int,
        batches: Sequence[tuple[PartitionId, bytearray | TimedPush]],
        others: Sequence[tuple[UUID, int, int]] = (),
    ) -> int:
        """Store batches, and that `number` lines of the file are stored now. Raises `TopicNotFound`, `LinesMoved`, too.

        `others`: files of other brokers, of which lines are among the batches: from which line on, and up to which.

        It was asked for its `progress` before. Where this is cut off, `progress` says whether it was done. Where
        somebody else stores lines of one of the files at the same time, one of the two has to ask again.
        """
        assert self._reached is not None and self._reached[0] == file, "its progress was asked for"
        loop = asyncio.get_running_loop()
        writes = [Write(self._known.found(partition), batch, loop.create_future()) for partition, batch in batches]
        async with self._in_time() as connection:
            stored = await prepare(connection, writes, Mark(file, number), self._ids, number_before=self._reached[1])
            gone = [(write, error) for write in writes if write.future.done() and (error := write.future.exception())]
            if gone:
                await connection.execute("ROLLBACK")
                for write, error in gone:
                    if isinstance(error, TopicNotFound):
                        # Nobody told yet: whoever tries again finds that it is gone, or made anew.
                        self._known.deleted(write.state.topic_id)
                raise gone[0][1]
            if others and len(await connection.fetch(sql("finish_chunks"), *zip(*others, strict=True))) < len(others):
                raise Unregistered
            ended_with = await connection.execute("COMMIT")
            assert ended_with == "COMMIT", ended_with
        self._reached = file, number
        self._writer.settle(stored)
        return sum(part.published.duplicates for part in stored)

    async def forget(self, files: Sequence[UUID]) -> None:
        """Their rows stay for a year, as those of all writers: whoever stores a copy of a file stores nothing twice."""
        await self.withdraw()

    # --- other brokers of the same store --------------------------------------------------------------

    @property
    def rank(self) -> Rank:
        return self._holding.name, str(self._me)

    def announce(self, oldest_ms: int | None) -> None:
        """Other brokers shall wait with what is newer than this; none: this one keeps nothing."""
        if self._holding.spilled_since != oldest_ms:
            self._holding.spilled_since = oldest_ms
            self._holding.hurry()

    async def others(self, file: UUID) -> Others:
        """What other brokers keep, and how far this broker's file is.

        For the length of a lease, brokers are waited for that were there before and have not been heard of again.
        """
        beat_s, since_s = self._holding.beat_s, time.monotonic() - self._back_s
        if beat_s is None or beat_s < self._back_s:
            return Others(is_known=False)  # the next beat says to others what this broker keeps
        async with self._in_time() as connection:
            rows = await connection.fetch(
                sql("spills_of_others"),
                self._me,
                file,
                self._holding.lease_s,
                since_s + self._away_s,
                since_s,
                self._holding.name,
            )
        done = rows[0]["done"]
        if done is not None:
            self._reached = file, done
        spills: dict[UUID, OtherSpill] = {}
        is_known = True
        for _, broker_id, name, oldest_ms, is_missing, of_file, first, end, newest_ms, number in rows:
            if is_missing and since_s < self._holding.lease_s:
                is_known = False
            if oldest_ms is None:
                continue
            spill = spills.get(broker_id, OtherSpill((name, str(broker_id)), oldest_ms))
            if of_file is not None and number is not None and first <= max(number, spill.end):
                spill = spill._replace(chunks=(*spill.chunks, Chunk(of_file, first, end, newest_ms)), done=number)
            spills[broker_id] = spill
        return Others(is_known, tuple(spills.values()), done)

    async def offer(self, chunk: Chunk, lines: bytes, oldest_ms: int, done: int) -> None:
        """Let other brokers store some lines. `oldest_ms`: of the line at `done`, the first that is not stored."""
        self._holding.spilled_since = oldest_ms
        self._has_offered = True
        async with self._in_time() as connection:
            await connection.execute(sql("offer_chunk"), self._me, *chunk, lines, oldest_ms, done)
            self._offered_bytes += len(lines)
            if self._offered_bytes > _OFFERED_BYTES_MAX:
                self._offered_bytes = 0
                try:
                    await connection.execute(sql("clean_chunks"))
                except (asyncpg.QueryCanceledError, asyncpg.InsufficientPrivilegeError) as error:
                    # It took too long or is not allowed. Autovacuum does it later.
                    log.info("spill_chunks_not_cleaned", problem=str(error))

    async def withdraw(self) -> None:
        if self._has_offered:
            async with self._in_time() as connection:
                await connection.execute(sql("withdraw_chunks"), self._me)
            self._has_offered = False

    async def offered(self, rank: Rank, chunk: Chunk) -> bytes | None:
        """The lines of a chunk; none where it is not there any more."""
        async with self._in_time() as connection:
            lines: bytes | None = await connection.fetchval(
                sql("chunk_lines"), UUID(rank[1]), chunk.file, chunk.first, chunk.end
            )
        return lines

    async def held_up_by(self) -> str:
        """The broker that keeps the oldest messages, or those that were there before and did not come back yet."""
        async with self._in_time() as connection:
            row = await connection.fetchrow(sql("oldest_spill_of_others"), self._me, self._holding.lease_s)
        return "brokers that are not back yet" if row is None else f"{row[0]} ({row[1]})"

    # --- the connection -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[Connection]:
        """The connection, for a call that has a deadline; after any trouble the next one is new."""
        is_connected = False
        try:
            async with asyncio.timeout(self._database.timeout_s):
                connection = await self._connected()
                is_connected = True
                yield connection
        except (Unregistered, asyncpg.DeadlockDetectedError) as error:
            self._let_go()
            raise LinesMoved("another broker stores lines of the same file; it is tried again") from error
        except CROSSED as error:
            self._let_go()
            raise Unavailable(f"somebody else changed the same at the same time; it is tried again: {error}") from error
        except NOT_TAKEN as error:
            self._let_go()
            raise BadMessage(f"the database does not take it: {error}") from error
        except TROUBLE as error:
            self._is_away = True
            self._let_go()
            raise self._database.failed(error, connected=is_connected) from error
        except BaseException:
            self._let_go()
            raise

    async def _connected(self) -> Connection:
        if not self._database.is_up:
            raise self._database.unavailable()
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect()
        return self._connection

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

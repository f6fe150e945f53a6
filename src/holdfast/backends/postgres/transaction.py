"""One transaction that stores writes, up to its commit.

1. lock the partitions' rows, in the order of their key, and read their next offsets: from here on this broker alone
   decides what comes next in them;
2. where messages have ids, or batches a stamp: see which are there already;
3. COPY the ids and the rows of all that are new;
4. note the stamps, the partitions' new ends and this transaction's number in the writer's row, and send the notice.

Ids are hardly ever there already, and their index refuses those that are: so nobody asks for them first, until that
proves to be wrong. Then the transaction is rolled back and begins again, and asks.

Whoever calls commits, and knows what to do where the answer is lost: the number in the writer's row tells.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from asyncpg import Connection, UniqueViolationError

from holdfast.backends.postgres import copying, planning, rows
from holdfast.backends.postgres.planning import Key, Offsets, Stored, Write
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.stamping import Stamps
from holdfast.model.errors import TopicNotFound, Unavailable

# After an id that was there already, others are likely: in so many transactions they are asked for.
_ASK_TRANSACTIONS: Final = 100
# The database takes notices below 8000 bytes.
_NOTICE_BYTES_MAX: Final = 7_900


class Mark(NamedTuple):
    """Names one transaction: who ran it, and its number among those of that writer."""

    writer: UUID
    number: int

    def __str__(self) -> str:
        return f"{self.writer}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Raises `ValueError`."""
        writer, _, number = text.partition(":")
        return cls(UUID(writer), int(number))


class Unregistered(Exception):
    """The writer's row was pruned while the broker was away for days, or has another number than it should have."""


class IdsExpected:
    """Whether ids are expected to be new, by what one writer has seen of late; and for how long they are recognised."""

    def __init__(self, dedupe_age_ms: int) -> None:
        self.age_ms = dedupe_age_ms
        self._asks = 0

    def are_new(self) -> bool:
        """Called once for a transaction."""
        self._asks = max(0, self._asks - 1)
        return not self._asks

    def were_known(self) -> None:
        self._asks = _ASK_TRANSACTIONS


async def prepare(
    connection: Connection, writes: Sequence[Write], mark: Mark, ids: IdsExpected, *, number_before: int | None = None
) -> list[Stored]:
    """BEGIN, and all steps up to COMMIT. Raises `Unregistered`, and what the driver raises.

    `number_before`: what the writer's number has to be, where somebody else may write under its name, too.
    """
    if ids.are_new():
        try:
            return await _prepared(connection, writes, mark, None, number_before)
        except UniqueViolationError:
            ids.were_known()
            await connection.execute("ROLLBACK")
            # What was refused has its answer, which another try must not make untrue.
            writes = [write for write in writes if not write.future.done()]
    return await _prepared(connection, writes, mark, ids, number_before)


async def _prepared(
    connection: Connection, writes: Sequence[Write], mark: Mark, asked: IdsExpected | None, number_before: int | None
) -> list[Stored]:
    """`asked`: none where nobody asks which ids are there."""
    await connection.execute("BEGIN")
    keys = sorted({write.key for write in writes})
    locked = await connection.fetch(sql("lock_partitions"), [key[0] for key in keys], [key[1] for key in keys])
    ends: dict[Key, int] = {(topic_id, number): end for topic_id, number, end in locked}
    present: list[Write] = []
    for write in writes:
        if write.key not in ends:
            write.refuse(TopicNotFound(f"topic {write.state.id.topic} was deleted"))
        else:
            present.append(write)
    newest = await Stamps.read(connection, present)
    known: Offsets = {}
    looked_up = [write for write in present if write.is_looked_up]
    if asked is not None and looked_up:
        known = await _known_ids(connection, looked_up, asked.age_ms)
        if known:
            asked.were_known()
    stored = _plan(present, ends, known, newest)
    if any(part.keys for part in stored):
        await _copy(connection, "id_keys", copying.KEY_COLUMNS, planning.key_rows(stored))
    if any(part.fresh and part.pushed is None for part in stored):
        with told_of_breaks(connection):
            await connection.copy_records_to_table(
                "messages", schema_name="holdfast", columns=rows.COLUMNS, records=planning.driver_rows(stored)
            )
    if any(part.pushed is not None for part in stored):
        await _copy(connection, "messages", rows.COLUMNS, planning.pushed_rows(stored))
    await newest.keep(connection)
    await _finish(connection, ends, stored, mark, number_before)
    return stored


def _plan(writes: list[Write], ends: dict[Key, int], known: Offsets, newest: Stamps) -> list[Stored]:
    """What is stored of the writes; `ends` become those after it."""
    fresh: Offsets | None = None if not known and planning.are_all_different(writes) else {key: {} for key in ends}
    stored: list[Stored] = []
    for write in writes:
        end = ends[write.key]
        try:
            is_new = newest.is_new(write, end)
        except Unavailable as error:
            write.refuse(error)
            continue
        if not is_new:
            part = planning.repeated(write)
        elif fresh is None:
            part = planning.planned_as_new(write, end)
        else:
            part = planning.planned(write, end, known.get(write.key, {}), fresh[write.key])
        ends[write.key] = end + part.fresh
        stored.append(part)
    return stored


async def _copy(connection: Connection, table: str, columns: Sequence[str], parts: Iterable[bytes]) -> None:
    source = copying.stream(parts)
    with told_of_breaks(connection):
        await connection.copy_to_table(table, schema_name="holdfast", columns=columns, format="binary", source=source)


def is_given_up() -> bool:
    """Whether the task that asks is being cancelled, though the driver may have made another error of that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def told_of_breaks(connection: Connection) -> Iterator[None]:
    """A connection that is closed in the middle of a COPY makes the driver, or the loop, trip over its transport."""
    try:
        yield
    except (RuntimeError, AttributeError) as error:
        if is_given_up():
            raise asyncio.CancelledError from error
        if not connection.is_closed() and "closed" not in str(error):
            raise
        raise ConnectionResetError("the connection was closed while rows were sent") from error


async def _known_ids(connection: Connection, writes: list[Write], dedupe_age_ms: int) -> Offsets:
    """Where messages stand whose ids are there already. Ids that are too old are made free."""
    asked: dict[Key, list[str]] = {}
    for write in writes:
        asked.setdefault(write.key, []).extend(filter(None, write.keys))
    found = await connection.fetch(
        sql("known_ids"),
        [key[0] for key in asked],
        [key[1] for key in asked],
        ["\n".join(sorted(keys)) for keys in asked.values()],
        dedupe_age_ms,
    )
    known: Offsets = {}
    for topic_id, number, key, offset, counts in found:
        if counts:
            known.setdefault((topic_id, number), {})[str(key)] = offset
    too_old = [row[:3] for row in found if not row[4]]
    if too_old:
        await connection.execute(sql("forget_ids"), *zip(*too_old, strict=True))
    return known


async def _finish(
    connection: Connection, ends: dict[Key, int], stored: list[Stored], mark: Mark, number_before: int | None
) -> None:
    sizes = dict.fromkeys(ends, 0)
    for part in stored:
        sizes[part.write.key] += part.size
    finished = await connection.fetch(
        sql("finish"),
        [key[0] for key in ends],
        [key[1] for key in ends],
        list(ends.values()),
        list(sizes.values()),
        mark.writer,
        mark.number,
        _notices(ends),
        number_before,
    )
    if not finished:
        raise Unregistered


def _notices(ends: dict[Key, int]) -> list[str]:
    """The ends after a transaction, in as many notices as they need: others learn them without asking for all."""
    found: list[str] = []
    words: list[str] = ["end"]
    size = 3
    for (topic_id, number), end in ends.items():
        told = f"{topic_id} {number} {end}"
        if size + 1 + len(told) > _NOTICE_BYTES_MAX:
            found.append(" ".join(words))
            words, size = ["end"], 3
        words.append(told)
        size += 1 + len(told)
    found.append(" ".join(words))
    return found

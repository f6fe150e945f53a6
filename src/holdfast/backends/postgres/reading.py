"""Reading: from the tail in memory, else from the database; and asking it how far the partitions are.

Those who want the same at the same time share one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Final

from holdfast.backends.postgres import rows
from holdfast.backends.postgres.database import Database
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import KnownTopics, PartitionState
from holdfast.backends.postgres.tail import Tails
from holdfast.model.errors import DamagedData, OffsetOutOfRange, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TimestampMs
from holdfast.model.limits import MIB
from holdfast.wire import record_batch

# One answer of the database; whoever wants more asks again.
_READ_BYTES_MAX: Final = 4 * MIB
_READ_ROWS_MAX: Final = 10_000
# A row is not smaller than this, so fewer of them are looked at where little is wanted.
_ROW_BYTES_MIN: Final = 16


class Reading:
    """Reads of all partitions of a store."""

    def __init__(self, database: Database, topics: KnownTopics, on_state: Callable[[Any], None]) -> None:
        self.tails = Tails()
        self.queries = 0
        self._database = database
        self._topics = topics
        self._on_state = on_state
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        # Partitions that somebody wants to be current, in the question that is asked next.
        self._asked: dict[PartitionId, PartitionState] = {}

    async def read(self, state: PartitionState, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        """Whole batches, the first one holding `offset`; see `Backend.read`."""
        if offset > state.end:
            await self.catch_up(state)
        self._check(state, offset)
        if offset == state.end:
            return []
        found = self.tails.read(state.id, offset, bytes_max)
        if found:
            return found
        bytes_max = min(max(1, bytes_max), _READ_BYTES_MAX)
        key = (state, offset, bytes_max)
        queried: list[memoryview] = await self._together(key, lambda: self._query(state, offset, bytes_max))
        return queried

    def _check(self, state: PartitionState, offset: Offset) -> None:
        if not state.start <= offset <= state.end:
            raise OffsetOutOfRange(f"offset {offset} is not in {state.id}, which has {state.start} to {state.end}")

    async def _query(self, state: PartitionState, offset: Offset, bytes_max: int) -> list[memoryview]:
        self.queries += 1
        rows_max = min(_READ_ROWS_MAX, bytes_max // _ROW_BYTES_MIN + 1)
        end = state.end
        # Offsets have no gaps, so the range says how many rows there are, whatever the planner makes of it.
        up_to = min(end, offset + rows_max)
        found = await self._database.fetch(sql("read"), state.topic_id, state.id.number, offset, up_to, bytes_max)
        if not found or found[0][0] != offset:
            await self._explain_hole(state, offset, found)
        last = found[-1][0]
        if last - offset + 1 != len(found):
            found = [row for place, row in enumerate(found) if row[0] == offset + place]
        batches = rows.batches_of(found)
        # The topic may have been deleted meanwhile, and one of the same name be there: these are not its messages.
        if end == last + 1 and self._topics.partitions.get(state.id) is state:
            for batch in batches:
                head = record_batch.header(batch)
                self.tails.add(state.id, head.base_offset, head.next_offset, batch)
        return [memoryview(batch) for batch in batches]

    async def _explain_hole(self, state: PartitionState, offset: Offset, found: Sequence[Any]) -> None:
        """Nothing stands at an offset below the end: retention was faster, or somebody deleted rows by hand."""
        await self.catch_up(state)
        if self._topics.partitions.get(state.id) is not state:
            raise TopicNotFound(f"topic {state.id.topic} was deleted")
        self._check(state, offset)
        next_offset = found[0][0] if found else state.end
        raise DamagedData(
            f"{state.id} has no message at offset {offset}: rows are missing up to {next_offset}", next_offset
        )

    async def offset_at(self, state: PartitionState, timestamp_ms: TimestampMs) -> Offset:
        found = await self._database.fetch(
            sql("offset_at"), state.topic_id, state.id.number, rows.timestamp(timestamp_ms)
        )
        return Offset(found[0][0]) if found else state.end

    # --- being current --------------------------------------------------------------------------------

    async def catch_up(self, state: PartitionState) -> None:
        """Know everything that was committed before this call. Raises `Unavailable`."""
        self._asked[state.id] = state
        await self._together("catch_up", self._ask)

    async def _ask(self) -> None:
        # One turn of the loop for others to join; whoever comes later is in the next question.
        await asyncio.sleep(0)
        del self._shared["catch_up"]
        asked, self._asked = self._asked, {}
        self.queries += 1
        found = await self._database.fetch(
            sql("partition_states"),
            [state.topic_id for state in asked.values()],
            [state.id.number for state in asked.values()],
        )
        for row in found:
            self._on_state(row)

    async def _together(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = asyncio.get_running_loop().create_task(ask())
            task.add_done_callback(lambda done: self._asked_all(key, done))
        return await asyncio.shield(task)

    def _asked_all(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if self._shared.get(key) is task:
            del self._shared[key]
        # Whoever asked may have given up already; then nobody wants the reason, and that is fine.
        if not task.cancelled():
            task.exception()

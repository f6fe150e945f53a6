"""Deleting what is too old or too much, ids that are out of the window, and the rows of deleted topics.

In small steps, each a transaction of its own: a step holds its partition's row for some milliseconds only. Every broker
does this; a step that another one has taken already does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from holdfast.backends.postgres import rows
from holdfast.backends.postgres.database import Database
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import KnownTopics, PartitionState
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName
from holdfast.model.limits import MIB
from holdfast.model.names import DONE_CURSOR, is_internal
from holdfast.model.waiting import NOBODY, Kept, RetentionWait

log = structlog.get_logger("holdfast.postgres")

# Messages of one step.
_STEP: Final = 5_000
# And their bytes: a large value is hundreds of rows of its own, and a step has to end within the deadline.
_STEP_BYTES: Final = 16 * MIB
_IDS_STEP: Final = 10_000
# Of an internal topic, whose messages may have megabytes each.
_DONE_STEP: Final = 10


class Retention:
    """Looks after all partitions of a store."""

    def __init__(
        self,
        database: Database,
        known: KnownTopics,
        *,
        now_ms: Callable[[], TimestampMs],
        dedupe_age_ms: int,
        cursor: Callable[[TopicName, CursorName], Mapping[int, Offset] | None],
        wait: RetentionWait = NOBODY,
    ) -> None:
        self.deleted_messages = 0
        self._database = database
        self._known = known
        self._now_ms = now_ms
        self._dedupe_age_ms = dedupe_age_ms
        self._cursor = cursor
        self.wait = wait
        self._sweeping = asyncio.Lock()

    async def run_on(self, pause_s: float) -> None:
        """Again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(pause_s)
            try:
                deleted = await self.expire()
                await self.prune_ids()
                await self.sweep()
                await self._database.change(sql("forget_brokers"))
                # What other brokers stored is heard of, but not how large it was.
                for row in await self._database.fetch(sql("all_partitions")):
                    self._known.told(*row)
            except HoldfastError as error:
                log.warning("retention_failed", problem=error.message)
                continue
            if deleted:
                log.info("retention", deleted_messages=deleted)

    async def expire(self) -> int:
        """Delete what retention no longer keeps; returns the number of messages."""
        deleted = 0
        for state in list(self._known.partitions.values()):
            if is_internal(state.id.topic):
                deleted += await self._drop_done(state)
                continue
            topic = self._known.by_id.get(state.topic_id)
            if topic is None or (topic.config.retention_ms is None and topic.config.retention_bytes is None):
                continue
            before_ms = None
            now_ms = self._now_ms()
            if topic.config.retention_ms is not None:
                before_ms = TimestampMs(now_ms - topic.config.retention_ms)
            kept = self.wait.kept(state.id, topic.config, self._cursor, now_ms)
            expired = 0
            while step := await self._expire_step(state, before_ms, topic.config.retention_bytes, kept):
                expired += step
            deleted += expired
            if expired and kept is not None and state.start > kept.from_offset:
                log.warning(
                    "retention_overtook_reader",
                    partition=str(state.id),
                    reader_at=kept.from_offset,
                    starts_at=state.start,
                )
        self.deleted_messages += deleted
        return deleted

    async def _drop_done(self, state: PartitionState) -> int:
        """Delete what the brokers themselves need no more of an internal topic."""
        done = (self._cursor(state.id.topic, DONE_CURSOR) or {}).get(state.id.number, Offset(0))
        deleted = 0
        while state.start < min(done, state.end):
            cut = min(done, state.end, state.start + _DONE_STEP)
            step = await self._delete_below(state, state.start, cut)
            if step is None:
                break
            deleted += step
        return deleted

    async def _expire_step(
        self,
        state: PartitionState,
        before_ms: TimestampMs | None,
        bytes_max: int | None,
        kept: Kept | None,
    ) -> int:
        rows_of_state = await self._database.fetch(sql("partition_states"), [state.topic_id], [state.id.number])
        if not rows_of_state:
            return 0
        _, _, start, end, size_bytes, *_ = rows_of_state[0]
        place = (state.topic_id, state.id.number, start)
        # Where nothing of the oldest is to stay, all of it goes.
        all_of_step = min(end, start + _STEP)
        cut = start
        if before_ms is not None:
            found = await self._database.fetch(sql("expired_by_age"), *place, rows.timestamp(before_ms), _STEP)
            cut = max(cut, found[0][0] if found else all_of_step)
        if bytes_max is not None and size_bytes > bytes_max:
            found = await self._database.fetch(sql("expired_by_size"), *place, size_bytes - bytes_max, _STEP)
            cut = max(cut, found[0][0] if found else all_of_step)
        if kept is not None and cut > kept.from_offset:
            found = await self._database.fetch(sql("expired_by_age"), *place, rows.timestamp(kept.since_ms), _STEP)
            cut = min(cut, max(kept.from_offset, found[0][0] if found else all_of_step))
        if cut <= start:
            return 0
        if size_bytes > _STEP_BYTES:
            found = await self._database.fetch(sql("expired_by_size"), *place, _STEP_BYTES, cut - start)
            cut = max(start + 1, found[0][0]) if found else cut
        return await self._delete_below(state, start, cut) or 0

    async def _delete_below(self, state: PartitionState, start: int, cut: int) -> int | None:
        """How many messages were deleted; none where another broker was faster."""
        moved = await self._database.change(sql("expire"), state.topic_id, state.id.number, start, cut)
        if not moved:
            return None
        messages, start, size_bytes, _ = moved[0]
        state.start, state.size_bytes = Offset(start), size_bytes
        return int(messages)

    async def prune_ids(self) -> None:
        while await self._delete("prune_ids", self._dedupe_age_ms, _IDS_STEP) == _IDS_STEP:
            pass

    async def sweep(self) -> None:
        """Delete the rows of deleted topics."""
        async with self._sweeping:
            for (topic_id,) in await self._database.fetch(sql("deleted_topics")):
                while await self._delete("sweep_messages", topic_id, _STEP, _STEP_BYTES):
                    pass
                while await self._delete("sweep_ids", topic_id, _STEP):
                    pass
                await self._database.change(sql("swept"), topic_id)

    async def _delete(self, statement: str, *values: object) -> int:
        async with self._database.connection() as connection:
            ended_with: str = await connection.execute(sql(statement), *values)
        return int(ended_with.rpartition(" ")[2])

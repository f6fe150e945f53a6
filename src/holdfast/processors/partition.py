"""One partition on its way through the workers: read, process side by side, release in order.

    T/p from the cursor ──▶ up to N messages in the workers ──▶ in order ──▶ outputs, then the cursor

Reading goes on while results are being stored, so the workers do not wait for a disk. Nothing is kept
here that is not in the log or the cursor: after an error, a crash or a change of leader a new run begins at
the cursor, on whichever node leads then. That node shows everything that was committed, so it reads what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.broker.broker import Broker
from holdfast.broker.processing import COMMIT_MESSAGES_MAX, PROCESSOR_CURSOR, AlreadyOut, Dropped, InOrder, Outcome
from holdfast.broker.reign import Reign
from holdfast.model.errors import DamagedData, OffsetOutOfRange, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TimestampMs
from holdfast.model.limits import MIB
from holdfast.model.messages import StoredMessage
from holdfast.model.topics import Topic
from holdfast.processors.outputs import Outputs, StageStats
from holdfast.processors.pool import LogEvent, WorkerPool
from holdfast.processors.protocol import ProcessorMessage
from holdfast.wire.record_batch import decode, header

# A read gives whole batches; they are decoded once, however slowly the workers take them.
_READ_BYTES: Final = 1 * MIB
# Only a bound: the wait ends with the first message.
_WAIT_S: Final = 60.0


class PartitionStage:
    """Runs once, from the cursor until it is told to finish, its topic is deleted, or it is cancelled.

    Cancelled, it drops what is in the workers: another node processes that again.
    """

    def __init__(
        self,
        broker: Broker,
        pool: WorkerPool,
        topic: Topic,
        partition: int,
        reign: Reign,
        stats: StageStats,
        log: LogEvent,
    ) -> None:
        self._broker = broker
        self._pool = pool
        self._id = PartitionId(topic.name, partition)
        self._stats = stats
        self._log = log
        self._outputs = Outputs(broker, topic, partition, reign, stats, log)
        self._window: InOrder[Outcome] = InOrder(pool.settings.inflight_per_partition)
        self._room = asyncio.Event()
        self._results = asyncio.Event()
        self._finishing = False
        self._feeder: asyncio.Task[None] | None = None
        self._recent: dict[str, TimestampMs] = {}
        self._recent_end = Offset(0)

    async def run(self) -> None:
        """Process until told to finish; returns with everything that was begun stored."""
        try:
            await self._outputs.open()
            position = await self._begin()
            async with asyncio.TaskGroup() as tasks:
                self._feeder = tasks.create_task(self._feed(position, tasks))
                if self._finishing:
                    self._feeder.cancel()
                await self._release()
        except* TopicNotFound:
            self._log("processor_topic_gone", topic=self._id.topic, partition=self._id.number)

    def finish(self) -> None:
        """Read nothing more; `run` returns when what is in the workers is stored."""
        self._finishing = True
        if self._feeder is not None:
            self._feeder.cancel()
        self._results.set()

    async def _begin(self) -> Offset:
        """Where to read first, and which of the messages there have an output already."""
        start, end = self._broker.partition_range(*self._id)
        positions = self._broker.backend.cursor(self._id.topic, PROCESSOR_CURSOR) or {}
        cursor = positions.get(self._id.number)
        if cursor is None:
            await self._outputs.move_cursor(start)
            return start
        if cursor > end:
            self._log(
                "processor_cursor_past_end", topic=self._id.topic, partition=self._id.number, cursor=cursor, end=end
            )
            # Back to where the log really ends: progress alone never moves it there.
            await self._outputs.move_cursor(end, only_forward=False)
            return end
        self._recent = await self._outputs.recent()
        self._recent_end = Offset(cursor + COMMIT_MESSAGES_MAX)
        return cursor

    async def _feed(self, position: Offset, tasks: asyncio.TaskGroup) -> None:
        """Read on and on, and let in what there is room for."""
        while True:
            batches = await self._read(position)
            if not batches:
                position = self._broker.backend.next_readable(self._id, position)
                await self._broker.wait_for(self._id.topic, {self._id.number: position}, _WAIT_S)
            for batch in batches:
                for message in decode(batch, self._id.number):
                    if message.offset < position:
                        continue
                    while not self._window.room:
                        self._room.clear()
                        await self._room.wait()
                    self._admit(message, tasks)
                position = header(batch).next_offset

    async def _read(self, position: Offset) -> Sequence[memoryview]:
        try:
            return await self._broker.read_batches(*self._id, position, _READ_BYTES, stale=True)
        except (OffsetOutOfRange, DamagedData) as error:
            next_position = self._broker.backend.next_readable(self._id, position)
            if next_position <= position:
                raise
            self._stats.skipped += next_position - position
            self._log(
                "processor_skipped",
                topic=self._id.topic,
                partition=self._id.number,
                offset=position,
                next_offset=next_position,
                error=error.message,
            )
            return ()

    def _admit(self, message: StoredMessage, tasks: asyncio.TaskGroup) -> None:
        self._window.admit(message)
        if self._recent:
            if message.offset >= self._recent_end:
                self._recent = {}
            elif self._outputs.is_output_of(message, self._recent):
                self._stats.repeated += 1
                self._complete(message.offset, AlreadyOut())
                return
        tasks.create_task(self._process(message))

    async def _process(self, message: StoredMessage) -> None:
        outcome = await self._pool.run(
            ProcessorMessage(
                offset=message.offset,
                timestamp_ms=message.timestamp_ms,
                id=message.id,
                key=message.key,
                value=message.value,
                headers=message.headers,
                topic=self._id.topic,
                partition=self._id.number,
            )
        )
        self._stats.dropped += isinstance(outcome, Dropped)
        self._complete(message.offset, outcome)

    def _complete(self, offset: Offset, outcome: Outcome) -> None:
        if self._window.complete(offset, outcome):
            self._results.set()

    async def _release(self) -> None:
        """Store results as they become free, until told to finish and nothing is inside."""
        while True:
            ready = self._window.release()
            if ready:
                self._room.set()
                await self._outputs.store(ready)
            elif self._finishing and not len(self._window):
                return
            else:
                self._results.clear()
                await self._results.wait()

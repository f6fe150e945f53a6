"""Transactions as front ends see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.broker.broker import Broker
from holdfast.model import names
from holdfast.model.errors import Unavailable, WriterNotFound
from holdfast.model.ids import PartitionId, TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.model.names import DONE_CURSOR
from holdfast.model.transactions import CommitResult, Contents, StageReceipt, WriterDescription
from holdfast.transactions.coordinators import Coordinators
from holdfast.transactions.deciding import Deciding
from holdfast.transactions.settings import LogEvent, Settings, TransactionStats
from holdfast.transactions.staging import Staging
from holdfast.transactions.writers import Writers
from holdfast.wire import record_batch
from holdfast.wire.transactions import DECISIONS


class Transactions:
    """All that a writer may do. `start` once the broker is there, `stop` before its store."""

    def __init__(
        self,
        broker: Broker,
        *,
        now_ms: Callable[[], TimestampMs],
        settings: Settings = Settings(),  # noqa: B008 - it never changes
        log: LogEvent = lambda event, /, **fields: None,
    ) -> None:
        self.stats = TransactionStats()
        self._backend = broker.backend
        self._writers = Writers(broker.backend)
        self._staging = Staging(broker, self._writers, settings, self.stats, now_ms)
        self._deciding = Deciding(broker, self._staging, self._writers, settings, now_ms)
        self._coordinators = Coordinators(broker, self._writers, settings, self.stats, now_ms, log)

    def start(self) -> None:
        self._coordinators.start()

    async def stop(self) -> None:
        await self._coordinators.stop()

    def waiting(self) -> int:
        """Decisions that are not done yet, as far as this node knows."""
        try:
            topic = self._backend.topic(DECISIONS)
        except Unavailable:
            return 0  # a store that was not reached yet: nothing is known of anything
        if topic is None:
            return 0
        done = self._backend.cursor(DECISIONS, DONE_CURSOR) or {}
        partitions = [PartitionId(DECISIONS, number) for number in range(topic.config.partitions)]
        return sum(max(0, self._backend.end_offset(each) - done.get(each.number, 0)) for each in partitions)

    async def stage_batches(
        self,
        writer: str,
        number: int,
        topic: str,
        partition: int,
        batches: Sequence[record_batch.Buffer],
        attempt: str = "",
    ) -> StageReceipt:
        """Store record batches for one partition where nobody sees them; durable on return."""
        return await self._staging.stage_batches(writer, number, topic, partition, batches, attempt)

    async def stage_messages(
        self,
        writer: str,
        number: int,
        topic: str,
        messages: Sequence[NewMessage],
        partition: int | None = None,
        attempt: str = "",
    ) -> list[StageReceipt]:
        """Store messages where nobody sees them; durable on return."""
        return await self._staging.stage_messages(writer, number, topic, messages, partition, attempt)

    async def commit(
        self, writer: str, number: int, receipts: Sequence[str], contents: Contents | None = None
    ) -> CommitResult:
        """Make everything that the receipts stand for visible, or nothing; done on return.

        A number at or below the writer's last is recognised: nothing is stored again. `contents` is kept with the
        number, for the writer to compare when it commits that number again.
        """
        return await self._deciding.commit(writer, number, receipts, contents)

    async def abort(self, writer: str, reason: str = "") -> None:
        """Drop what the writer has staged and not committed; the reason stands in the log."""
        await self._deciding.abort(writer, reason)

    async def writer(self, writer: str) -> WriterDescription:
        """Where a writer stands, as decided anywhere before this call."""
        checked = names.writer_name(writer)
        await self._backend.catch_up_cursors()
        if not self._writers.is_known(checked):
            raise WriterNotFound(f"there is no writer {checked}: it has neither committed nor aborted anything")
        return self._writers.describe(checked)

    async def writers(self) -> list[WriterDescription]:
        await self._backend.catch_up_cursors()
        return [self._writers.describe(name) for name in self._writers.names()]

    async def under_way(self) -> int:
        """Decisions that are not done yet, anywhere: while there are none, no transaction is visible in part."""
        topic = self._backend.topic(DECISIONS)
        if topic is not None:
            numbers = range(topic.config.partitions)
            await asyncio.gather(*(self._backend.catch_up(PartitionId(DECISIONS, number)) for number in numbers))
            await self._backend.catch_up_cursors()
        return self.waiting()

    async def forget(self, writer: str) -> None:
        """Forget a writer that writes no more, and what it has staged; one of that name begins anew."""
        description = await self.writer(writer)
        await self._deciding.forget(description.writer)

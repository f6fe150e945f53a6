"""A broker with transactions over a store that can be restarted; short names for long calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testkit.batches import values_batch

from holdfast.broker.backend import Backend
from holdfast.broker.broker import Broker
from holdfast.model.ids import Offset, PartitionId, TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.model.transactions import CommitResult, StageReceipt
from holdfast.transactions.service import Transactions
from holdfast.transactions.settings import Settings
from tests.contract.stores import Store

EXPIRY_MS = 60_000


class Desk:
    """One broker process as a test sees it: `open`, `close`, and `open` again."""

    def __init__(self, store: Store, **settings: int) -> None:
        self.store = store
        self.settings = Settings(**{"expiry_ms": EXPIRY_MS, **settings})
        self.events: list[tuple[str, dict[str, object]]] = []
        self.broker: Broker
        self.transactions: Transactions

    def open(self, backend: Backend | None = None) -> None:
        used = self.store.backend if backend is None else backend
        self.broker = Broker(used, now_ms=self.store.clock)
        self.transactions = Transactions(self.broker, now_ms=self.store.clock, settings=self.settings, log=self._log)
        self.transactions.start()

    async def close(self) -> None:
        await self.transactions.stop()

    async def restart(self) -> None:
        await self.close()
        await self.store.restart()
        self.open()

    def _log(self, event: str, /, **fields: object) -> None:
        self.events.append((event, fields))

    async def create(self, topic: str = "t", partitions: int = 1) -> None:
        await self.broker.create_topic(topic, TopicConfig(partitions=partitions))

    async def stage(
        self, number: int, *values: bytes, writer: str = "w", topic: str = "t", partition: int = 0
    ) -> StageReceipt:
        batch = values_batch(*values, timestamp_ms=self.store.clock())
        return await self.transactions.stage_batches(writer, number, topic, partition, [batch])

    async def stage_messages(self, number: int, messages: Sequence[NewMessage], topic: str = "t") -> list[StageReceipt]:
        return await self.transactions.stage_messages("w", number, topic, messages)

    async def commit(self, number: int, *receipts: StageReceipt, writer: str = "w") -> CommitResult:
        return await self.transactions.commit(writer, number, [each.receipt for each in receipts])

    async def values(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        return await read_values(self.broker, topic, partition)


async def read_values(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    """Everything that a reader finds."""
    found: list[bytes] = []
    offset = broker.backend.start_offset(PartitionId(topic, partition))  # type: ignore[arg-type]
    while True:
        messages, offset = await broker.read(topic, partition, Offset(offset), 10_000, 1 << 20)
        if not messages:
            return found
        found += [message.value for message in messages]


def later(store: Store, milliseconds: int) -> TimestampMs:
    store.clock.now += milliseconds
    return store.clock()


Fields = dict[str, Any]

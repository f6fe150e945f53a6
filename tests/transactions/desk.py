"""A broker with transactions over a store that can be restarted; short names for long calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from testkit.batches import values_batch
from testkit.inprocess import Store, now_ms
from testkit.reading import values_in

from holdfast.broker.backend import Backend
from holdfast.broker.broker import Broker
from holdfast.model.ids import TimestampMs, WriterName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.model.transactions import CommitResult, StageReceipt
from holdfast.transactions.service import Transactions
from holdfast.transactions.settings import Settings
from holdfast.wire.transactions import partition_of
from tests.contract.stores import KINDS

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

    async def reopen(self, **settings: int) -> None:
        """A broker with other settings over the same store."""
        await self.close()
        self.settings = self.settings._replace(**settings)
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
        return await values_in(self.broker, topic, partition)


@asynccontextmanager
async def desk_over(kind: str, path: Path, **settings: int) -> AsyncIterator[Desk]:
    """One of the stores of `KINDS`, empty, with a broker that runs transactions."""
    made = Desk(KINDS[kind](path / "data"), **settings)
    await made.store.open()
    made.open()
    yield made
    await made.close()
    await made.store.stop()


@asynccontextmanager
async def transacting(brokers: Mapping[str, Broker]) -> AsyncIterator[dict[str, Transactions]]:
    """Transactions on several brokers of one store, by node; one that a test takes out stops when the test says so."""
    made = {name: Transactions(broker, now_ms=now_ms) for name, broker in brokers.items()}
    for each in made.values():
        each.start()
    try:
        yield made
    finally:
        for each in made.values():
            await each.stop()


async def stage_values(
    transactions: Transactions, number: int, *values: bytes, writer: str = "w", topic: str = "t", partition: int = 0
) -> str:
    """Each value in a batch of its own; returns the receipt."""
    batches = [values_batch(value, timestamp_ms=now_ms()) for value in values]
    return (await transactions.stage_batches(writer, number, topic, partition, batches)).receipt


def writer_of(coordinator: int, prefix: str = "w") -> str:
    """The name of a writer whose decisions are in that partition."""
    names = (f"{prefix}{i}" for i in range(1000))
    return next(name for name in names if partition_of(WriterName(name)) == coordinator)


W = partition_of(WriterName("w"))
# Another writer of the same coordinator.
OTHER = writer_of(W, "v")


def later(store: Store, milliseconds: int) -> TimestampMs:
    store.clock.now += milliseconds
    return store.clock()

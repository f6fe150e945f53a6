"""A store as the spill should see it, in which nothing goes wrong by itself: the oracle of the crash tests."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from holdfast.backends.spill.ports import Batch
from holdfast.model.errors import Unavailable
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import BatchPublished
from holdfast.model.spill import Chunk, Others, Rank
from holdfast.model.topics import Topic, TopicConfig
from holdfast.wire import push_batch, record_batch


class ModelStore:
    """What is stored, how far each file is, and which transactions were committed. Outlives brokers."""

    def __init__(self) -> None:
        self.stored: dict[PartitionId, list[bytes]] = defaultdict(list)
        self.lines: dict[UUID, int] = {}
        self.transactions: set[str] = set()
        self.is_up = True
        # How many more transactions work before one is cut off: before it is committed, or after.
        self.cut_after: int | None = None
        self.is_cut_after_commit = False
        self._numbers = 0

    def take(self, batches: Iterable[tuple[PartitionId, Any]]) -> None:
        for partition, batch in batches:
            self.stored[partition] += record_batch.decode_values(batch)

    def transact(self, commit: Any) -> None:
        """Raises `Unavailable`; what happened then is not told."""
        if not self.is_up:
            raise Unavailable("it is away")
        if self.cut_after == 0:
            self.cut_after, self.is_up = None, False
            if self.is_cut_after_commit:
                commit()
            raise Unavailable("it was cut off")
        if self.cut_after is not None:
            self.cut_after -= 1
        commit()

    def next_mark(self) -> str:
        self._numbers += 1
        return f"w:{self._numbers}"


class ModelTarget:
    """`ports.Target` over the model."""

    needs_ids = False

    def __init__(self, store: ModelStore, backend: ModelBackend) -> None:
        self._store = store
        self._backend = backend

    def mark(self, partition: PartitionId) -> str | None:
        return None

    def abandon(self) -> dict[asyncio.Future[BatchPublished], str | None]:
        under_way, self._backend.under_way = self._backend.under_way, {}
        for future in under_way:
            future.cancel()
        return under_way

    async def reach(self) -> None:
        """Nothing connects."""

    async def probe(self) -> None:
        await asyncio.sleep(0)
        if not self._store.is_up:
            raise Unavailable("it is away")

    async def committed(self, marks: Iterable[str], ids: dict[str, list[str]]) -> set[str]:
        await self.probe()
        return set(marks) & self._store.transactions

    async def progress(self, file: UUID) -> int:
        await self.probe()
        return self._store.lines.get(file, 0)

    async def unsettled(self, file: UUID) -> int:
        return 0

    async def store(
        self, file: UUID, number: int, batches: Sequence[Batch], others: Sequence[tuple[UUID, int, int]] = ()
    ) -> int:
        def commit() -> None:
            assert number > self._store.lines.get(file, 0), "a stretch is stored once"
            self._store.take([(partition, push_batch.as_batch(batch)) for partition, batch in batches])
            self._store.lines[file] = number

        await asyncio.sleep(0)
        self._store.transact(commit)
        return 0

    async def forget(self, files: Sequence[UUID]) -> None:
        await self.probe()
        for file in files:
            self._store.lines.pop(file, None)

    def announce(self, oldest_ms: int | None) -> None:
        """There are no others."""

    @property
    def rank(self) -> Rank:
        return "", ""

    async def others(self, file: UUID) -> Others:
        return Others(is_known=True)

    async def offer(self, chunk: Chunk, lines: bytes, oldest_ms: int, done: int) -> None:
        raise AssertionError("there is nobody to offer it to")

    async def withdraw(self) -> None:
        """Nothing is offered."""

    async def offered(self, rank: Rank, chunk: Chunk) -> bytes | None:
        raise AssertionError("nobody offers anything")

    async def held_up_by(self) -> str:
        return "nobody"


class ModelBackend:
    """As much of the seam as a spill touches."""

    partitions_left = 1_000

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self.under_way: dict[asyncio.Future[BatchPublished], str | None] = {}

    def problem(self) -> str | None:
        return None if self._store.is_up else "it is away"

    def topic(self, name: TopicName) -> Topic | None:
        return Topic(name=name, config=TopicConfig(partitions=3), created_ms=TimestampMs(0))

    def topics(self) -> list[Topic]:
        return []

    def watch_topics(self, on_topic: Any) -> None:
        """They never change."""

    def watch_deletions(self, on_deleted: Any) -> None:
        """They never change."""

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        """Silent, with the commit sent, where the store is cut off; its mark tells later."""
        future: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        if not self._store.is_up:
            raise Unavailable("it is away")
        mark = self._store.next_mark()

        def commit() -> None:
            self._store.take([(partition, batch)])
            self._store.transactions.add(mark)

        try:
            self._store.transact(commit)
        except Unavailable:
            self.under_way[future] = mark
        else:
            head = record_batch.header(batch)
            future.set_result(
                BatchPublished(partition=partition.number, base_offset=Offset(0), count=head.record_count, duplicates=0)
            )
        return future

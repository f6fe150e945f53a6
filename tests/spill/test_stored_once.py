"""What is stored again goes where it can, and once: where a topic changed meanwhile, and where two store one file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from testkit.batches import values_batch

from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.ports import Batch
from holdfast.backends.spill.settings import SpillSettings
from holdfast.model.errors import TopicNotFound
from holdfast.model.ids import PartitionId, TimestampMs, TopicName
from holdfast.model.push_ids import push_ids
from holdfast.model.spill import LinesMoved
from holdfast.model.topics import Topic, TopicConfig
from holdfast.wire import push_batch
from holdfast.wire.push_batch import Pushed
from tests.postgres.conftest import Open, opened, url
from tests.postgres.stores import query
from tests.spill.model import ModelBackend, ModelStore, ModelTarget

__all__ = ["opened", "url"]


class _Shrunk(ModelBackend):
    partitions = 3

    def topic(self, name: TopicName) -> Topic | None:
        return Topic(name=name, config=TopicConfig(partitions=self.partitions), created_ms=TimestampMs(0))


class _RefusesFirst(ModelTarget):
    refusals = 1

    async def store(
        self, file: UUID, number: int, batches: Sequence[Batch], others: Sequence[tuple[UUID, int, int]] = ()
    ) -> int:
        if self.refusals or any(partition.number >= _Shrunk.partitions for partition, _ in batches):
            self.refusals = 0
            raise TopicNotFound("deleted in this very moment")
        return await super().store(file, number, batches)


async def test_push_to_a_partition_that_is_gone_finds_another_one_also_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore()
    backend = _Shrunk(store)
    settings = SpillSettings(tmp_path, flush_ms=10, retry_interval_s=0.05, free_bytes_min=0)
    target = _RefusesFirst(store, backend)
    spill = SpillBackend(backend, target, settings, now_ms=lambda: TimestampMs(int(time.time() * 1000)))  # type: ignore[arg-type]
    store.is_up = False
    await spill.start()
    try:
        names, ids = ["n"], [str(uuid4())]
        batch = push_batch.build(Pushed(names, [b'"value"'], push_ids(names, ids), ids, [None]), TimestampMs(5))
        await spill.forward(PartitionId(TopicName("t"), 2), batch, has_ids=True)
        # Deleted, and made anew with one partition.
        monkeypatch.setattr(_Shrunk, "partitions", 1)
        store.is_up = True
        async with asyncio.timeout(20):
            while not spill.is_drained:
                await asyncio.sleep(0.01)
        assert {partition.number: len(found) for partition, found in store.stored.items()} == {0: 1}
        assert spill.stats.failed_events == 0
    finally:
        await spill.stop()


async def test_two_that_store_copies_of_one_file_at_once_store_it_once(opened: Open, url: str) -> None:
    one, two = await opened("n1"), await opened("n2")
    place = await one.create()
    await two.backend.catch_up_cursors()
    file = uuid4()
    for each in (one, two):
        await each.backend.replaying.probe()
        assert await each.backend.replaying.progress(file) == 0
    lines = [b"%d" % number for number in range(10)]
    await one.backend.replaying.store(file, 5, [(place, values_batch(*lines[:5]))])
    with pytest.raises(LinesMoved):
        await two.backend.replaying.store(file, 10, [(place, values_batch(*lines))])
    assert await two.backend.replaying.progress(file) == 5
    await two.backend.replaying.store(file, 10, [(place, values_batch(*lines[5:]))])
    stored = await query(url, "SELECT payload FROM holdfast.queue_messages ORDER BY 1")
    assert len(stored) == 10

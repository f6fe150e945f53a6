"""What stores do for transactions: let go of what is done with, share the work, and carry on in twos."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from testkit.batches import values_batch
from testkit.postgres import database_for
from testkit.wait import until

from holdfast.model.errors import HoldfastError, NotReplicable, WriterNotFound
from holdfast.model.ids import PartitionId
from holdfast.model.topics import TopicConfig
from holdfast.transactions.service import Transactions
from holdfast.wire.transactions import DECISIONS, STAGED, partition_of
from tests.cluster.nodes import Nodes, now_ms
from tests.contract.stores import BACKENDS, Store
from tests.postgres.stores import open_store
from tests.transactions.desk import Desk, read_values

W = partition_of("w")  # type: ignore[arg-type]


async def expire(backend: Any) -> None:
    backend = getattr(backend, "inner", backend)
    if hasattr(backend, "retention"):
        await backend.retention.expire()
    else:
        await backend.expire()


async def test_what_is_done_with_is_deleted_and_what_may_be_committed_stays(desk: Desk) -> None:
    await desk.create()
    staged, decided = PartitionId(STAGED, W), PartitionId(DECISIONS, W)
    backend = desk.broker.backend
    for number in range(60):
        await desk.commit(number, await desk.stage(number, b"x" * 500))
    kept = await desk.stage(60, b"kept")
    for number in range(3):
        await desk.stage(61 + number, b"y" * 500)

    async def is_freed() -> bool:
        await expire(backend)
        return backend.start_offset(staged) > 30 and backend.start_offset(decided) > 30

    await until(is_freed)
    assert backend.start_offset(staged) <= 60
    await desk.restart()
    assert (await desk.commit(30)).duplicate
    await desk.commit(60, kept)
    assert await desk.values() == [b"x" * 500] * 60 + [b"kept"]


async def stage(transactions: Transactions, number: int, value: bytes) -> str:
    batches = [values_batch(value, timestamp_ms=now_ms())]
    return (await transactions.stage_batches("w", number, "t", 0, batches)).receipt


async def test_brokers_over_one_database_share_the_work_and_take_it_over(tmp_path: Path) -> None:
    url = database_for(tmp_path)
    one, two = await open_store(url, "n1"), await open_store(url, "n2")
    made = [Transactions(each.broker, now_ms=now_ms) for each in (one, two)]
    try:
        for each in made:
            each.start()
        await one.broker.create_topic("t", TopicConfig())
        for number in range(6):
            through, other = made[number % 2], made[1 - number % 2]
            await through.commit("w", number, [await stage(other, number, b"%d" % number)])
            assert (await other.commit("w", number, [])).duplicate
        partitions = [PartitionId(DECISIONS, number) for number in range(8)]

        def held(by: Any) -> int:
            return sum(by.backend.reign(each) is not None for each in partitions)

        await until(lambda: held(one) > 0 < held(two) and held(one) + held(two) == 8)
        await made[0].stop()
        await one.backend.stop()
        await made[1].commit("w", 6, [await stage(made[1], 6, b"6")])
        assert await read_values(two.broker, "t") == [b"%d" % number for number in range(7)]
    finally:
        for each in made:
            await each.stop()
        await two.backend.stop()


async def test_either_of_a_pair_goes_on_with_the_writers_numbers(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, is_pair=True)
    await nodes.start()
    made = {name: Transactions(broker, now_ms=now_ms) for name, broker in nodes.brokers.items()}
    try:
        for each in made.values():
            each.start()

        def are_together() -> bool:
            groups = nodes.backends["n2"].groups.replicas.values()
            return all(len(each.raft.members.voters) == 2 and each.raft.hears_leader for each in groups)

        await until(are_together)
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        await made["n2"].commit("w", 0, [await stage(made["n1"], 0, b"0")])
        receipt = await stage(made["n1"], 1, b"1")
        await until(are_together)
        await made.pop("n1").stop()
        await nodes.stop("n1")

        async def is_committed() -> bool:
            try:
                return not (await made["n2"].commit("w", 1, [receipt])).duplicate
            except HoldfastError:
                return False

        await until(is_committed)
        assert (await made["n2"].commit("w", 0, [])).duplicate
        assert await read_values(nodes.brokers["n2"], "t") == [b"0", b"1"]
    finally:
        for each in made.values():
            await each.stop()
        await asyncio.gather(nodes.stop())


async def test_plain_pair_refuses_transactions_and_says_why(tmp_path: Path) -> None:
    desk = Desk(Store(BACKENDS["plain"], tmp_path / "data"))
    await desk.store.open()
    desk.open()
    try:
        await desk.create()
        with pytest.raises(NotReplicable, match="no transactions"):
            await desk.stage(0, b"a")
        with pytest.raises(NotReplicable, match="no transactions"):
            await desk.commit(0)
        await desk.transactions.abort("w")
        with pytest.raises(WriterNotFound):
            await desk.transactions.writer("w")
        assert desk.transactions.waiting() == 0
        assert [topic.topic for topic in desk.broker.topics()] == ["t"]
    finally:
        await desk.close()
        await desk.store.stop()

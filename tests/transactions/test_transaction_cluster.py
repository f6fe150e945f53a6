"""Three nodes in one loop: any of them takes a transaction, and one that was away does no harm when it wakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from testkit.batches import values_batch
from testkit.inprocess import Nodes, now_ms, running
from testkit.reading import values_in
from testkit.wait import until

from holdfast.model.errors import HoldfastError, NotLeader
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.topics import TopicConfig
from holdfast.transactions.copying import Copying
from holdfast.transactions.service import Transactions
from holdfast.transactions.settings import TransactionStats
from holdfast.wire import record_batch, stamps
from holdfast.wire.stamps import Stamp
from holdfast.wire.transactions import DECISIONS, Commit, decode_decision
from tests.transactions.desk import W, stage_values, transacting

Three = tuple[Nodes, dict[str, Transactions]]


@pytest_asyncio.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    async with running(tmp_path) as nodes, transacting(nodes.brokers) as made:
        await nodes.brokers["n1"].create_topic("t", TopicConfig(partitions=3))
        yield nodes, made


async def test_any_node_stages_and_commits(three: Three) -> None:
    nodes, transactions = three
    for number in range(6):
        names = sorted(transactions)
        receipts = [
            await stage_values(transactions[names[(number + i) % 3]], number, b"%d.%d" % (number, i), partition=i)
            for i in range(3)
        ]
        result = await transactions[names[number % 3]].commit("w", number, receipts)
        assert not result.duplicate
        for name in names:
            assert (await transactions[name].commit("w", number, [])).duplicate
            for i in range(3):
                assert (await values_in(nodes.brokers[name], "t", i))[-1] == b"%d.%d" % (number, i)


async def test_racing_commits_of_one_number_through_two_nodes_store_one_of_them(three: Three) -> None:
    nodes, transactions = three
    for number in range(8):
        one, two = (
            await stage_values(transactions["n1"], number, b"one"),
            await stage_values(transactions["n2"], number, b"two"),
        )
        results = await asyncio.gather(
            transactions["n3"].commit("w", number, [one]), transactions["n2"].commit("w", number, [two])
        )
        assert sorted(result.duplicate for result in results) == [False, True]
        values = await values_in(nodes.brokers["n1"], "t")
        assert len(values) == number + 1
        assert values[-1] == (b"one" if results[1].duplicate else b"two")


async def test_coordinator_that_wakes_up_late_stores_nothing_twice(three: Three) -> None:
    """Fencing: it does once more what its successor has done, batch by batch, while others go on."""
    nodes, transactions = three
    receipts = [await stage_values(transactions["n1"], 0, b"a", b"b", b"c", partition=i) for i in range(3)]
    await transactions["n1"].commit("w", 0, receipts)
    decided = await nodes.backends["n1"].read(PartitionId(DECISIONS, W), Offset(0), 1 << 20)
    commit = decode_decision(record_batch.decode_values(decided[0])[0])
    assert isinstance(commit, Commit)
    for name, broker in nodes.brokers.items():
        await Copying(broker, W, Offset(0), commit, TransactionStats(), lambda event, /, **fields: None).run()
        await transactions[name].commit(
            "w", 1, [await stage_values(transactions[name], 1, b"d")]
        ) if name == "n1" else None
    for i in range(3):
        values = await values_in(nodes.brokers["n2"], "t", i)
        assert values == [b"a", b"b", b"c", *([b"d"] if i == 0 else [])]


async def test_commit_goes_on_under_another_leader_of_its_target(three: Three) -> None:
    nodes, transactions = three
    await transactions["n1"].commit("w", 0, [await stage_values(transactions["n1"], 0, b"first")])
    for number in range(1, 4):
        leader = await nodes.leader("t")
        other = nodes.another_than(leader)
        receipts = [await stage_values(transactions["n1"], number, b"%d.%d" % (number, i)) for i in range(5)]
        committing = asyncio.ensure_future(transactions["n1"].commit("w", number, receipts))
        await nodes.brokers[leader].transfer("t", 0, other)
        await committing
    values = await values_in(nodes.brokers["n1"], "t")
    assert values == [b"first"] + [b"%d.%d" % (number, i) for number in range(1, 4) for i in range(5)]


async def test_batch_that_overtakes_the_one_before_it_is_not_stored(three: Three) -> None:
    nodes, _ = three
    leader = await nodes.leader("t")
    broker = nodes.brokers[leader]
    place = PartitionId(TopicName("t"), 0)

    def batch(sequence: int, value: bytes) -> bytearray:
        made = values_batch(value, timestamp_ms=now_ms())
        stamps.stamp(made, Stamp(3, 7, sequence), Offset(0), token)
        return made

    token = "of a topic of that name that is gone"
    with pytest.raises(NotLeader):
        await broker.publisher.publish_own(place, batch(0, b"for another"))
    topic = broker.backend.topic(place.topic)
    assert topic is not None
    token = topic.token
    with pytest.raises(NotLeader):
        await broker.publisher.publish_own(place, batch(1, b"b"))
    first = await broker.publisher.publish_own(place, batch(0, b"a"))
    assert (await broker.publisher.publish_own(place, batch(0, b"a"))).duplicates == 1
    assert (await broker.publisher.publish_own(place, batch(1, b"b"))).base_offset == first.base_offset + 1
    assert await values_in(broker, "t") == [b"a", b"b"]


async def test_decisions_are_done_when_their_coordinator_is_gone(three: Three) -> None:
    nodes, transactions = three
    await transactions["n1"].commit("w", 0, [])
    coordinator = await nodes.leader(DECISIONS, W)
    through = nodes.another_than(coordinator)
    receipts = [await stage_values(transactions[through], 1, b"%d" % i) for i in range(4)]
    await transactions.pop(coordinator).stop()
    committing = asyncio.ensure_future(transactions[through].commit("w", 1, receipts))
    await asyncio.sleep(0)
    await nodes.stop(coordinator)

    async def is_done() -> bool:
        try:
            return await values_in(nodes.brokers[through], "t") == [b"0", b"1", b"2", b"3"]
        except HoldfastError:
            return False

    await until(is_done)
    await committing

"""Three nodes that all could process: each partition is processed where it is led, and goes on with its leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from testkit.reading import read_all, values_in
from testkit.wait import until

from holdfast.broker.processing import PROCESSOR_CURSOR, GaveUp, Outcome, Transformed
from holdfast.broker.reign import Reign
from holdfast.model.errors import NotLeader
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import NewMessage, StoredMessage
from holdfast.model.topics import TopicConfig
from holdfast.processors.outputs import Outputs, StageStats
from tests.processors.cluster_members import Calls, Cluster, cluster_on
from tests.processors.processor_helpers import ORDERS, processed_up_to

PARTITION = PartitionId(ORDERS, 0)


@pytest.fixture
async def cluster(tmp_path: Path, calls: Calls) -> AsyncIterator[Cluster]:
    async with cluster_on(tmp_path, "counted", attempts_max=1) as running:
        yield running


def numbered(first: int, last: int, busy_ms: int = 0) -> list[NewMessage]:
    return [NewMessage(value=b"v%d" % number, key=b"%d" % busy_ms) for number in range(first, last)]


async def test_each_message_is_processed_once_and_by_the_leader_of_its_partition(
    cluster: Cluster, calls: Calls
) -> None:
    await cluster.any.broker.create_topic(ORDERS, TopicConfig(partitions=3))
    leaders = await cluster.spread_leaders(3)
    for first in range(0, 60, 10):
        for number, member in enumerate(cluster.members.values()):
            await member.broker.publish(ORDERS, numbered(first, first + 10), partition=number)
    for number, leader in leaders.items():
        await processed_up_to(cluster.any.broker, 60, number)
        outputs = await read_all(leader.broker, "orders.processed", number)
        assert [message.value for message in outputs] == [b"V%d" % n for n in range(60)]
        assert leader is await cluster.leader(number)
        assert calls.workers_of(number) <= set(leader.pool.pids)
        assert leader.stage.stats.stored == 60
    assert calls.each() == {(number, offset): 1 for number in range(3) for offset in range(60)}
    assert sum(member.stage.stats.restarts for member in cluster.members.values()) == 0


async def test_processing_goes_on_in_order_while_leaders_change(cluster: Cluster, calls: Calls) -> None:
    await cluster.keep_leaders()
    await cluster.any.broker.create_topic(ORDERS, TopicConfig())
    handed_over = 0
    for first in range(0, 300, 50):
        await cluster.any.broker.publish(ORDERS, numbered(first, first + 50, busy_ms=5), partition=0)
        await processed_up_to(cluster.any.broker, first + 10)
        # The outputs' leader as well, every other time: then the ids have to be known elsewhere.
        await cluster.hand_over(0, "orders.processed" if first % 100 else ORDERS)
        handed_over += first % 100 == 0
    await processed_up_to(cluster.any.broker, 300)
    for member in cluster.members.values():
        await member.backend.catch_up(PartitionId(TopicName("orders.processed"), 0))
        outputs = await read_all(member.broker, "orders.processed")
        assert [message.value for message in outputs] == [b"V%d" % n for n in range(300)]
    each = calls.each()
    assert len(each) == 300
    # Only what was in the workers when a leader left is processed again.
    assert sum(each.values()) - 300 <= 3 * handed_over * cluster.any.pool.settings.inflight_per_partition


async def test_a_node_that_leads_no_more_stores_nothing_of_what_is_in_its_workers(
    cluster: Cluster, calls: Calls
) -> None:
    await cluster.keep_leaders()
    await cluster.any.broker.create_topic(ORDERS, TopicConfig())
    before = await cluster.leader()
    await before.broker.publish(ORDERS, numbered(0, 4, busy_ms=700))
    await until(lambda: len(calls.each()) >= 2)
    await cluster.hand_over()
    await processed_up_to(cluster.any.broker, 4)
    after = await cluster.leader()
    assert await values_in(after.broker, "orders.processed") == [
        b"V0",
        b"V1",
        b"V2",
        b"V3",
    ]
    assert before.stage.stats.stored == before.stage.stats.repeated == 0
    assert after.stage.stats.stored == 4


async def test_dead_letters_come_once_also_where_the_leader_changes(cluster: Cluster) -> None:
    await cluster.keep_leaders()
    await cluster.any.broker.create_topic(ORDERS, TopicConfig())
    for first in range(0, 60, 20):
        messages = [
            NewMessage(value=b"raise" if number % 5 == 3 else b"v%d" % number, key=b"20")
            for number in range(first, first + 20)
        ]
        await cluster.any.broker.publish(ORDERS, messages, partition=0)
        await processed_up_to(cluster.any.broker, first + 4)
        await cluster.hand_over()
    await processed_up_to(cluster.any.broker, 60)
    leader = await cluster.leader(0, "orders.dead")
    letters = [dict(letter.headers)["holdfast-dead-offset"] for letter in await read_all(leader.broker, "orders.dead")]
    assert letters == [b"%d" % number for number in range(3, 60, 5)]
    leader = await cluster.leader(0, "orders.processed")
    outputs = await values_in(leader.broker, "orders.processed")
    assert outputs == [b"V%d" % number for number in range(60) if number % 5 != 3]


class Deaf(Reign):
    """Of a node that has not heard that another one leads."""

    async def confirm(self) -> None:
        return


async def test_what_two_nodes_store_of_the_same_messages_is_there_once(cluster: Cluster) -> None:
    """The old leader and the new one at the same time, each as far as it is: outputs, letters and the cursor."""
    await cluster.any.broker.create_topic("source", TopicConfig())
    await cluster.any.broker.publish("source", numbered(0, 12))
    source = PartitionId(TopicName("source"), 0)
    ways_out = []
    for member in cluster.members.values():
        await member.backend.catch_up(source)
        topic = member.backend.topic(source.topic)
        assert topic is not None
        reign = Deaf(member.backend, source, 1)
        ways_out.append(Outputs(member.broker, topic, 0, reign, StageStats(), member.log))
    messages = await read_all(cluster.any.broker, "source")

    def made(message: StoredMessage) -> tuple[StoredMessage, Outcome]:
        return message, GaveUp("no", 1) if message.offset % 4 == 2 else Transformed(message.value)

    async def store(outputs: Outputs, step: int) -> None:
        await outputs.open()
        for first in range(0, len(messages), step):
            await outputs.store([made(message) for message in messages[first : first + step]])

    await asyncio.gather(*(store(outputs, step) for outputs, step in zip(ways_out, (1, 3, 12), strict=True)))
    member = await cluster.leader(0, "source.processed")
    stored = await values_in(member.broker, "source.processed")
    assert stored == [b"v%d" % number for number in range(12) if number % 4 != 2]
    member = await cluster.leader(0, "source.dead")
    letters = [dict(letter.headers)["holdfast-dead-offset"] for letter in await read_all(member.broker, "source.dead")]
    assert sorted(letters) == [b"10", b"2", b"6"]
    # A cursor that comes late does not take back what the new leader has done.
    await ways_out[0].move_cursor(Offset(5))
    await member.backend.catch_up_cursors()
    assert member.backend.cursor(source.topic, PROCESSOR_CURSOR) == {0: 12}


async def test_a_node_makes_sure_that_it_still_leads_before_it_stores(cluster: Cluster) -> None:
    await cluster.keep_leaders()
    await cluster.any.broker.create_topic(ORDERS, TopicConfig())
    before = await cluster.leader()
    number = before.backend.reign(PARTITION)
    assert number is not None
    reign = Reign(before.backend, PARTITION, number)
    await reign.confirm()
    await cluster.hand_over()
    with pytest.raises(NotLeader):
        await reign.confirm()

"""What one node publishes to partitions that others lead keeps its order, also when a leader refuses a part of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from holdfast.backends.cluster.forwarding import Lane
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import PublishReply, PublishRequest, encode
from holdfast.consensus.replica_names import replica_id
from holdfast.model.errors import LeaderChanged, NoQuorum, NotLeader
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.member_errors import NodeRemoved
from holdfast.model.messages import BatchPublished
from holdfast.wire.record_batch import Buffer

PARTITION = PartitionId(TopicName("t"), 0)


class Leader:
    """Who leads, here or elsewhere: each batch it was given waits until a test says what becomes of it."""

    node = "n1"

    def __init__(self, *, is_here: bool) -> None:
        self.leads = is_here
        self.leader_node: str | None = "n1" if is_here else "n2"
        self.stored: list[bytes] = []
        self.given: list[tuple[bytes, asyncio.Future[BatchPublished]]] = []

    def is_up(self, node: str) -> bool:
        return True

    def publish_here(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        self.given.append((bytes(batch), asyncio.get_running_loop().create_future()))
        return self.given[-1][1]

    async def request(self, node: str, method: int, body: Buffer, timeout_s: float) -> memoryview:
        batch = msgspec.msgpack.decode(body, type=PublishRequest).batch
        published = await self.publish_here(PARTITION, bytearray(batch))
        return memoryview(encode(PublishReply(published.base_offset, 1, 0, None)))

    def refuse(self) -> None:
        self.given.pop(0)[1].set_exception(NotLeader("not yet"))

    def store(self) -> None:
        batch, future = self.given.pop(0)
        self.stored.append(batch)
        published = BatchPublished(
            partition=0, base_offset=Offset(len(self.stored) - 1), count=1, duplicates=0, offsets=None
        )
        future.set_result(published)


@pytest.mark.parametrize("is_here", [True, False], ids=["this node has come to lead", "another node leads"])
async def test_batch_that_comes_while_others_are_refused_does_not_overtake_them(is_here: bool) -> None:
    leader = Leader(is_here=is_here)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    published = [lane.forward(bytearray(b"%d" % number), has_ids=True) for number in range(3)]
    await given(leader, 3)
    published.append(lane.forward(bytearray(b"3"), has_ids=True))
    await given(leader, 4)
    # The first three were taken together and are refused together, the fourth a moment later: it must not be that by
    # then the leader takes what it is given.
    for _ in range(3):
        leader.refuse()
    await several_turns()
    published.append(lane.forward(bytearray(b"4"), has_ids=True))
    await several_turns()
    assert [batch for batch, _ in leader.given] == [b"3"], "nothing is sent before all have come back"
    leader.refuse()
    await given(leader, 5)
    for _ in range(5):
        leader.store()
    assert [each.base_offset for each in await asyncio.gather(*published)] == [0, 1, 2, 3, 4]
    assert leader.stored == [b"0", b"1", b"2", b"3", b"4"]
    assert lane.is_empty


async def test_refusal_by_a_new_leader_does_not_wait_for_one_that_is_silent() -> None:
    leader = Leader(is_here=False)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    silent = lane.forward(bytearray(b"0"), has_ids=True)
    await given(leader, 1)
    unanswered = leader.given.pop()
    leader.leader_node = "n3"
    published = lane.forward(bytearray(b"1"), has_ids=True)
    await given(leader, 1)
    leader.refuse()
    await given(leader, 1)
    leader.store()
    assert (await published).base_offset == 0
    unanswered[1].set_exception(NotLeader("another one leads"))
    await given(leader, 1)
    leader.store()
    assert (await silent).base_offset == 1


async def test_node_that_is_removed_refuses_what_waits_and_awaits_the_answer_of_what_may_be_stored() -> None:
    leader = Leader(is_here=False)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    stored, refused, lost = (lane.forward(bytearray(b"%d" % number), has_ids=True) for number in range(3))
    await given(leader, 3)
    leader.leader_node = None
    waiting = lane.forward(bytearray(b"3"), has_ids=False)
    lane.end(NodeRemoved("taken out"))
    leader.store()
    leader.refuse()
    leader.given.pop()[1].set_exception(LeaderChanged("lost"))
    async with asyncio.timeout(1):
        assert (await stored).base_offset == 0
        for each in (waiting, refused):
            with pytest.raises(NodeRemoved):
                await each
        with pytest.raises(LeaderChanged):
            await lost
    await several_turns()
    assert lane.is_empty


@pytest.mark.parametrize("batches", [1, 2, 3, 4])
async def test_leaving_node_finds_the_leader_however_many_batches_are_refused_together(batches: int) -> None:
    """It is told no more who leads, so it asks one after the other: a publisher waits for that."""
    asked: list[str] = []

    class Peers:
        def is_up(self, node: str) -> bool:
            return True

        async def request(self, node: str, method: int, body: Buffer, timeout_s: float) -> memoryview:
            asked.append(node)
            await asyncio.sleep(0)
            if node != "n3":
                raise NotLeader("not here")
            return memoryview(encode(PublishReply(Offset(0), 1, 0, None)))

    members = SimpleNamespace(voters={replica_id(node, "1") for node in ("n1", "n2", "n3")})
    replica = SimpleNamespace(node="n1", leads=False, leader_node="n2", raft=SimpleNamespace(members=members))
    lane = Lane(PARTITION, cast(Replica, replica), Peers(), None, lambda _: NoQuorum("nobody"), lambda: True)
    async with asyncio.timeout(2):
        await asyncio.gather(*(lane.forward(bytearray(b"x"), has_ids=False) for _ in range(batches)))
    assert asked == ["n2"] * batches + ["n3"] * batches


async def several_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def given(leader: Leader, count: int) -> None:
    async with asyncio.timeout(30):
        while len(leader.given) < count:
            await asyncio.sleep(0.001)
    assert len(leader.given) == count

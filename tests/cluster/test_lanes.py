"""What one node publishes to partitions that others lead keeps its order, also when a leader refuses a part of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from holdfast.backends.cluster.commands import Command, DeleteTopic, Outcome
from holdfast.backends.cluster.forwarding import Lane, Lanes
from holdfast.backends.cluster.proposals import Proposals
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import PublishReply, PublishRequest, encode
from holdfast.broker import results
from holdfast.consensus.replica_names import replica_id
from holdfast.model.errors import (
    DiskFull,
    HoldfastError,
    LeaderChanged,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ShuttingDown,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.limits import FORWARDED_BYTES_MAX, MIB, PROPOSALS_MAX
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
        # Where the partition ends, as far as this node knows.
        self.end = Offset(0)
        self.given: list[tuple[bytes, asyncio.Future[BatchPublished]]] = []

    def is_up(self, node: str) -> bool:
        return True

    def publish_here(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        self.given.append((bytes(batch), asyncio.get_running_loop().create_future()))
        return self.given[-1][1]

    async def request(self, node: str, method: int, body: Buffer, timeout_s: float, leads: object = None) -> memoryview:
        batch = msgspec.msgpack.decode(body, type=PublishRequest).batch
        published = await self.publish_here(PARTITION, bytearray(batch))
        offsets: list[int] | None = None if published.offsets is None else [int(each) for each in published.offsets]
        return memoryview(encode(PublishReply(published.base_offset, published.count, published.duplicates, offsets)))

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
    await given(leader, 1)
    leader.store()
    await given(leader, 4)
    for _ in range(4):
        leader.store()
    assert [each.base_offset for each in await asyncio.gather(*published)] == [0, 1, 2, 3, 4]
    assert leader.stored == [b"0", b"1", b"2", b"3", b"4"]
    assert lane.is_empty


async def test_batch_that_was_given_up_on_is_not_sent_behind_the_back_of_those_who_keep_it() -> None:
    leader = Leader(is_here=False)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    under_way = lane.forward(bytearray(b"0"), has_ids=True)
    await given(leader, 1)
    leader.leader_node = None
    waiting = lane.forward(bytearray(b"1"), has_ids=True)
    for each in (under_way, waiting):
        each.cancel()
    leader.refuse()
    await several_turns()
    leader.leader_node = "n2"
    last = lane.forward(bytearray(b"2"), has_ids=True)
    await given(leader, 1)
    leader.store()
    assert (await last).base_offset == 0
    await several_turns()
    assert leader.stored == [b"2"] and lane.is_empty


async def test_batches_that_wait_for_a_leader_do_not_slow_down_the_next_ones() -> None:
    leader = Leader(is_here=False)
    leader.leader_node = None
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    looks = 0

    class Published(asyncio.Future[BatchPublished]):
        def cancelled(self) -> bool:
            nonlocal looks
            looks += 1
            return super().cancelled()

    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_future", Published)
        waiting = [lane.forward(bytearray(b"x"), has_ids=True) for _ in range(1000)]
    assert looks <= len(waiting), "each publish looks at all that wait"
    lane.close(ShuttingDown("over"))
    await asyncio.gather(*waiting, return_exceptions=True)
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


@pytest.mark.parametrize("is_here", [True, False], ids=["this node leads", "another node leads"])
async def test_publishes_do_not_busy_nodes_while_no_leader_is_settled(is_here: bool) -> None:
    leader = Leader(is_here=is_here)
    asked = 0

    async def refuse(partition: PartitionId, batch: bytearray) -> BatchPublished:
        nonlocal asked
        asked += 1
        raise NotLeader("not settled")

    leader.publish_here = refuse  # type: ignore[assignment, method-assign]
    lane = Lane(
        PARTITION,
        cast(Replica, leader),
        leader,
        leader.publish_here,
        lambda replica: NoQuorum("nobody leads"),
        patience_s=1.0,
    )
    waiting = [lane.forward(bytearray(b"x"), has_ids=True) for _ in range(100)]
    refusals = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(refusal) for refusal in refusals} == {NoQuorum}
    # All of them once, and then one after pauses that double, up to a fifth of a second.
    assert asked < 100 + 5 + 10
    assert lane.is_empty


async def test_publishes_go_to_the_next_leader_without_the_pause_that_the_last_one_earned() -> None:
    leader = Leader(is_here=False)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    published = lane.forward(bytearray(b"x"), has_ids=True)
    for _ in range(4):
        await given(leader, 1)
        leader.refuse()
    await several_turns()
    leader.leader_node = "n3"
    later = lane.forward(bytearray(b"y"), has_ids=True)
    await given(leader, 2)
    leader.store()
    leader.store()
    assert [each.base_offset for each in await asyncio.gather(published, later)] == [0, 1]


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
    async with asyncio.timeout(60):
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

        async def request(
            self, node: str, method: int, body: Buffer, timeout_s: float, leads: object = None
        ) -> memoryview:
            asked.append(node)
            await asyncio.sleep(0)
            if node != "n3":
                raise NotLeader("not here")
            return memoryview(encode(PublishReply(Offset(0), 1, 0, None)))

    members = SimpleNamespace(voters={replica_id(node, "1") for node in ("n1", "n2", "n3")})
    replica = SimpleNamespace(
        node="n1", leads=False, leader_node="n2", raft=SimpleNamespace(members=members), end=Offset(0)
    )

    def nowhere(*_: object) -> asyncio.Future[BatchPublished]:
        raise AssertionError("this node does not lead")

    lane = Lane(PARTITION, cast(Replica, replica), Peers(), nowhere, lambda _: NoQuorum("nobody"), lambda: True)
    async with asyncio.timeout(60):
        await asyncio.gather(*(lane.forward(bytearray(b"x"), has_ids=False) for _ in range(batches)))
    assert asked == ["n2"] * batches + ["n3"] * batches


@pytest.mark.parametrize("is_here", [True, False], ids=["this node has come to lead", "another node leads"])
async def test_message_sent_once_is_no_duplicate_when_its_node_sends_it_again(is_here: bool) -> None:
    leader = Leader(is_here=is_here)
    leader.end = Offset(7)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))

    async def answered(*answers: BatchPublished | Exception) -> BatchPublished:
        published = lane.forward(bytearray(b"x"), has_ids=True)
        for answer in answers:
            await given(leader, 1)
            _, future = leader.given.pop()
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        return await published

    def there(*offsets: int, duplicates: int) -> BatchPublished:
        return BatchPublished(
            partition=0,
            base_offset=Offset(offsets[0]),
            count=len(offsets),
            duplicates=duplicates,
            offsets=[Offset(offset) for offset in offsets],
        )

    lost = LeaderChanged("it was lost before it answered")
    # Stored by the first sending, behind what there was.
    stored = await answered(lost, there(7, 8, 9, duplicates=3))
    assert [each.duplicate for each in results.spread(stored)] == [False, False, False]
    # One of them was there before, and one came twice in the batch.
    stored = await answered(lost, there(7, 3, 8, 8, duplicates=4))
    assert [(each.offset, each.duplicate) for each in results.spread(stored)] == [
        (7, False),
        (3, True),
        (8, False),
        (8, True),
    ]
    # Part of it was stored by the first sending, the rest by the second.
    stored = await answered(lost, there(7, 9, duplicates=1))
    assert [(each.offset, each.duplicate) for each in results.spread(stored)] == [(7, False), (9, False)]
    # Sent once.
    assert (await answered(there(8, duplicates=1))).duplicates == 1
    assert (await answered(NotLeader("not yet"), there(8, duplicates=1))).duplicates == 1


async def several_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def given(leader: Leader, count: int) -> None:
    async with asyncio.timeout(30):
        while len(leader.given) < count:
            await asyncio.sleep(0.001)
    assert len(leader.given) == count


@pytest.mark.parametrize("error", [ShuttingDown("the broker is shutting down"), TopicNotFound("t was deleted")])
async def test_publish_that_is_under_way_when_its_lane_closes_is_not_called_unstored(error: HoldfastError) -> None:
    """It may arrive all the same; what waits in the lane does not."""
    leader = Leader(is_here=False)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    under_way = lane.forward(bytearray(b"0"), has_ids=False)
    await given(leader, 1)
    leader.leader_node = None
    waiting = lane.forward(bytearray(b"1"), has_ids=False)
    lane.close(error)
    with pytest.raises(OutcomeUnknown, match="this may be stored or not"):
        await under_way
    with pytest.raises(type(error)):
        await waiting


async def test_publish_that_a_lost_leader_may_have_stored_is_not_called_unstored_where_the_next_refuses_it() -> None:
    leader = Leader(is_here=False)
    lane = Lane(PARTITION, cast(Replica, leader), leader, leader.publish_here, lambda replica: NoQuorum("nobody leads"))
    published = lane.forward(bytearray(b"0"), has_ids=True)
    await given(leader, 1)
    leader.given.pop()[1].set_exception(LeaderChanged("lost"))
    await given(leader, 1)
    leader.given.pop()[1].set_exception(DiskFull("no room"))
    with pytest.raises(OutcomeUnknown, match="this may be stored or not: no room"):
        await published


async def test_publishes_of_all_partitions_together_hold_no_more_memory_than_they_may() -> None:
    leader = Leader(is_here=False)
    leader.leader_node = None
    lanes = Lanes(leader, lambda replica: NoQuorum("nobody leads"), lambda: False)
    lanes.publish_here = leader.publish_here
    batch = bytearray(16 * MIB)
    partitions = [PartitionId(TopicName("t"), number) for number in range(8)]
    waiting = [
        lanes.forward(partition, cast(Replica, leader), batch, has_ids=False)
        for partition in partitions
        for _ in range(FORWARDED_BYTES_MAX // len(batch) // len(partitions))
    ]
    other = PartitionId(TopicName("another"), 0)
    with pytest.raises(Unavailable):
        lanes.forward(other, cast(Replica, leader), batch, has_ids=False)
    # What was given up makes room.
    lanes.forget_topic(TopicName("t"))
    assert all(isinstance(each.exception(), TopicNotFound) for each in waiting)
    for _ in range(2):
        lanes.forward(other, cast(Replica, leader), batch, has_ids=False)
    lanes.close()


async def test_changes_that_wait_to_be_decided_are_refused_when_there_are_too_many() -> None:
    decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def decide(commands: list[Command]) -> list[Outcome]:
        await decided
        return [None] * len(commands)

    proposals = Proposals(decide, lambda: NoQuorum("nobody leads"))
    waiting = [proposals.propose(DeleteTopic(TopicName(f"t{number}"), "")) for number in range(PROPOSALS_MAX)]
    refused = proposals.propose(DeleteTopic(TopicName("one more"), ""))
    assert isinstance(refused.exception(), Unavailable)
    decided.set_result(None)
    await asyncio.gather(*waiting)
    await proposals.propose(DeleteTopic(TopicName("another one"), ""))

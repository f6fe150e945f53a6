"""Bytes that go bad while a node runs are mended with what the others have, and no reader misses a message."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.broker.queues import Queues
from holdfast.model.errors import DamagedData, ReadFailed
from holdfast.model.ids import LogIndex, Offset, PartitionId, TopicName
from holdfast.model.topics import TopicConfig
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import Segment
from holdfast.wire.record_batch import decode_values

T = PartitionId(TopicName("t"), 0)
MESSAGES = 300
SEGMENT_BYTES = 4096


def value(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number % 90)


async def filled(nodes: Nodes) -> str:
    """A topic with many segments on every node; returns who leads it."""
    await nodes.brokers["n1"].create_topic("t", TopicConfig())
    leader = await nodes.leader("t")
    for number in range(MESSAGES):
        await nodes.brokers[leader].publish_values("t", [value(number)]).offset
    await until(lambda: all(backend.end_offset(T) == MESSAGES for backend in nodes.backends.values()))
    return leader


def log_of(nodes: Nodes, node: str) -> PartitionLog:
    return nodes.backends[node].topics_here.replicas[T].log


def spoil(log: PartitionLog, seed: int) -> None:
    """Flip bits in a few sealed segments, in headers and in payloads."""
    rolled = random.Random(seed)
    for segment in rolled.sample(log.segments[:-1], 3):
        flip(segment, rolled.randrange(segment.size), rolled.randrange(8))


def flip(segment: Segment, position: int, bit: int) -> None:
    (byte,) = os.pread(segment.fd, 1, position)
    os.pwrite(segment.fd, bytes([byte ^ 1 << bit]), position)


async def read_at(nodes: Nodes, node: str) -> list[bytes]:
    values: list[bytes] = []
    await nodes.backends[node].catch_up(T)
    while len(values) < MESSAGES:
        for batch in await nodes.backends[node].read(T, Offset(len(values)), 10_000):
            values += decode_values(batch)
    return values


def is_sound(log: PartitionLog) -> bool:
    return not any(segment.holes or segment.verify(sealed=True).holes for segment in log.segments[:-1])


@pytest.mark.parametrize("seed", range(5))
async def test_reader_of_a_damaged_node_gets_every_message_and_the_files_are_whole_again(
    tmp_path: Path, seed: int
) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await filled(nodes)
        for node in (leader, nodes.another_than(leader)):
            spoil(log_of(nodes, node), seed)
            assert not is_sound(log_of(nodes, node))
            assert await read_at(nodes, node) == [value(number) for number in range(MESSAGES)]
            assert is_sound(log_of(nodes, node))
        life = nodes.backends[leader].groups.me
        await nodes.stop(leader)
        await nodes.start(leader)
        assert await read_at(nodes, leader) == [value(number) for number in range(MESSAGES)]
        assert nodes.backends[leader].groups.me == life


async def test_readers_of_a_queue_pass_over_nothing_that_other_nodes_have(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        queues = Queues(nodes.brokers["n1"], "session")
        queue = PartitionId(TopicName(f"queue-{await queues.create()}"), 0)
        for number in range(80):
            await queues.append(1, value(number), None)
        log = nodes.backends["n1"].topics_here.replicas[queue].log
        first = log.segments[1].base_offset
        flip(log.segments[1], log.segments[1].size // 2, bit=2)
        with pytest.raises(DamagedData):
            for offset in range(first, 80):
                log.read(Offset(offset), 1, Offset(80))
        assert log.holes(), "the damage is known before the queue is read"
        found = [await queues.reads.read(1, "c", None) for _ in range(80)]
        assert [message and message.offset for message in found] == list(range(80))


async def test_damage_that_nobody_has_read_is_found_and_mended(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await filled(nodes)
        for node in nodes.backends:
            spoil(log_of(nodes, node), seed=int(node[1]))
        for backend in nodes.backends.values():
            await backend.verify()
        assert all(is_sound(log_of(nodes, node)) for node in nodes.backends)
        assert await read_at(nodes, leader) == [value(number) for number in range(MESSAGES)]


async def test_segment_that_lost_its_end_is_mended(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await filled(nodes)
        log = log_of(nodes, leader)
        os.pwrite(log.segments[2].fd, b"\0" * 500, log.segments[2].size - 500)
        assert await read_at(nodes, leader) == [value(number) for number in range(MESSAGES)]
        assert is_sound(log)


async def test_leader_that_cannot_read_what_a_follower_needs_is_mended(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await filled(nodes)
        replica = nodes.backends[leader].topics_here.replicas[T]
        spoil(replica.log, seed=3)
        with pytest.raises(Exception, match="damaged") as damage:
            for index in range(1, replica.log.last_index):
                replica.log.read_entries(LogIndex(index), 1, LogIndex(index))
        nodes.backends[leader].groups.cannot_lead(replica, damage.value)  # type: ignore[arg-type]
        assert not replica.raft.may_campaign
        await until(lambda: replica.raft.may_campaign)
        await nodes.backends[leader].verify()
        assert is_sound(replica.log)


async def test_nothing_is_skipped_while_nobody_can_be_asked(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await filled(nodes)
        others = [node for node in nodes.backends if node != leader]
        spoil(log_of(nodes, leader), seed=1)
        await nodes.stop(*others)
        with pytest.raises(ReadFailed, match="cannot be asked"):
            for offset in range(MESSAGES):
                await nodes.backends[leader].read(T, Offset(offset), 1)
        await nodes.start(*others)
        await until(lambda: all(nodes.backends[leader].neighbours.is_up(node) for node in others))
        async with asyncio.timeout(20):
            while True:
                # What could not be mended is not tried again at once.
                with contextlib.suppress(ReadFailed):
                    assert await read_at(nodes, leader) == [value(number) for number in range(MESSAGES)]
                    break
                await asyncio.sleep(0.1)


async def test_newest_message_is_not_passed_over_while_it_cannot_be_mended_yet(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        broker, backend = nodes.brokers["n1"], nodes.backends["n1"]
        await broker.create_topic("t", TopicConfig())
        await broker.publish_values("t", [b"one"]).offset
        await until(lambda: backend.end_offset(T) == 1)
        log = log_of(nodes, "n1")
        flip(log.active, log.active.size - 1, bit=0)
        follower = broker.follow("t", {0: Offset(0)})
        with pytest.raises(ReadFailed, match="not mended yet"):
            await follower.poll(1000)
        await broker.publish_values("t", [b"two"]).offset
        async with asyncio.timeout(10):
            values: list[bytes] = []
            while len(values) < 2:
                for batch in (await follower.next(1000)).batches:
                    values += decode_values(batch)
        follower.close()
        assert values == [b"one", b"two"]

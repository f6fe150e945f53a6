"""What retention deletes is one decision of the leader: no node keeps or loses messages that the others do not."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from testkit.inprocess import Nodes, running
from testkit.wait import until

from holdfast.backends.cluster.clocks import Clocks, agreed_ms
from holdfast.backends.cluster.expired_ids import ExpiredIds
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import ClockReply, Expired
from holdfast.model.errors import Unavailable
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.topics import TopicConfig

TOPIC = TopicName("orders")
T = PartitionId(TOPIC, 0)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SEGMENT_BYTES = 2_000


async def published(nodes: Nodes, config: TopicConfig, count: int = 40) -> None:
    """All nodes have all of it, in many segments."""
    await nodes.brokers["n1"].create_topic(TOPIC, config)
    for number in range(count):
        await nodes.brokers["n1"].publish_values(TOPIC, [b"%03d" % number * 100]).offset
    await until(lambda: all(backend.end_offset(T) == count for backend in nodes.backends.values()))
    for backend in nodes.backends.values():
        log = backend.topics_here.replicas[T].log
        await until(lambda log=log: not log.has_unsynced_segments)  # type: ignore[misc]


async def expire(nodes: Nodes) -> list[int]:
    """One round of every node; returns where their logs begin."""
    await asyncio.gather(*(backend.expire() for backend in nodes.backends.values()))
    return begins(nodes)


def begins(nodes: Nodes) -> list[int]:
    return [backend.start_offset(T) for backend in nodes.backends.values()]


@pytest.mark.parametrize("ahead", ["leader", "follower"])
async def test_node_whose_clock_jumps_a_day_ahead_keeps_its_copy(tmp_path: Path, ahead: str) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        await published(nodes, TopicConfig(retention_ms=HOUR_MS))
        leader = await nodes.leader(TOPIC)
        nodes.ahead_ms[leader if ahead == "leader" else nodes.another_than(leader)] = DAY_MS
        for _ in range(3):
            assert await expire(nodes) == [0, 0, 0]


@pytest.mark.parametrize("behind", ["leader", "follower"])
async def test_node_whose_clock_is_behind_deletes_what_the_others_delete(tmp_path: Path, behind: str) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        await published(nodes, TopicConfig(retention_ms=HOUR_MS))
        leader = await nodes.leader(TOPIC)
        late = leader if behind == "leader" else nodes.another_than(leader)
        nodes.ahead_ms = {name: 0 if name == late else 2 * HOUR_MS for name in nodes.backends}

        async def is_gone() -> bool:
            return await expire(nodes) == [40, 40, 40]

        await until(is_gone)


async def test_followers_delete_what_their_leader_deleted_for_its_size_and_never_more(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        await published(nodes, TopicConfig(retention_bytes=5_000))
        leader = await nodes.leader(TOPIC)
        for name, backend in nodes.backends.items():
            if name != leader:
                assert await backend.expire() == 0
        assert begins(nodes) == [0, 0, 0]
        await nodes.backends[leader].expire()
        assert 0 < nodes.backends[leader].start_offset(T) <= 40
        assert len(set(begins(nodes))) == 1


async def test_node_that_was_away_deletes_what_was_deleted_meanwhile(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        await published(nodes, TopicConfig(retention_bytes=5_000))
        away = nodes.another_than("n1", await nodes.leader(TOPIC))
        await nodes.stop(away)
        await expire(nodes)
        await nodes.start(away)
        assert nodes.backends[away].start_offset(T) == 0

        async def is_gone() -> bool:
            return len(set(await expire(nodes))) == 1

        await until(is_gone)
        begin = begins(nodes)[0]
        messages, _ = await nodes.brokers[away].read(TOPIC, 0, Offset(begin), 1, 1 << 20)
        assert [message.offset for message in messages] == [begin]


async def test_follower_deletes_what_two_leaders_say_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaders that look at the same moment, round after round, must not keep each other from being heard."""
    other = PartitionId(TopicName("payments"), 0)
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        await published(nodes, TopicConfig(retention_bytes=1))
        await nodes.brokers["n1"].create_topic(other.topic, TopicConfig(retention_bytes=1))
        for _ in range(20):
            await nodes.brokers["n1"].publish_values(other.topic, [bytes(400)]).offset
        follower = nodes.backends[nodes.another_than(await nodes.leader(TOPIC), await nodes.leader(other.topic))]
        await until(lambda: follower.end_offset(other) == 20)
        replicas = [follower.topics_here.replicas[partition] for partition in (T, other)]
        for replica in replicas:
            await until(lambda log=replica.log: not log.has_unsynced_segments)  # type: ignore[misc]
        taken, may_go_on = asyncio.Event(), asyncio.Event()
        really_drop = ExpiredIds.drop_below

        async def slow(self: ExpiredIds, replica: Replica, begin: Offset, now_ms: TimestampMs) -> int:
            taken.set()
            await may_go_on.wait()
            return await really_drop(self, replica, begin, now_ms)

        monkeypatch.setattr(ExpiredIds, "drop_below", slow)
        said = [Expired(each.group, each.raft.term, Offset(10), TimestampMs(0)) for each in replicas]
        first = asyncio.create_task(follower.retention.take_over(said[:1]))
        await taken.wait()
        await follower.retention.take_over(said[1:])
        await follower.retention.take_over([msgspec.structs.replace(said[1], begin=1)])
        may_go_on.set()
        await first
        assert follower.start_offset(T) > 0
        assert follower.start_offset(other) > 5


async def test_disk_that_makes_no_files_is_told_and_does_not_keep_what_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, segment_bytes=SEGMENT_BYTES) as nodes:
        await published(nodes, TopicConfig(retention_ms=HOUR_MS))
        nodes.ahead_ms = dict.fromkeys(nodes.backends, 2 * HOUR_MS)
        really_open = os.open

        def opened(path: Any, flags: int, *arguments: Any, **names: Any) -> int:
            if str(path).endswith(".log") and flags & os.O_EXCL:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return really_open(path, flags, *arguments, **names)

        monkeypatch.setattr(os, "open", opened)
        leader = nodes.backends[await nodes.leader(TOPIC)]
        with capture_logs() as logs:
            await leader.expire()
        assert 20 < leader.start_offset(T) < 40
        assert "log_not_renewed" in {line["event"] for line in logs}
        assert not nodes.failed


def test_time_is_the_latest_that_a_majority_has_reached() -> None:
    def agreed(voters: str, **clocks: int) -> int | None:
        return agreed_ms({name: TimestampMs(clock) for name, clock in clocks.items()}, voters)

    assert agreed("abc", a=100, b=101, c=9_999) == 101
    assert agreed("abc", a=100, b=101, c=1) == 100
    assert agreed("abc", a=100, c=9_999) == 100
    assert agreed("abc", c=9_999) is None
    assert agreed("abc", a=1, d=2, e=3) is None
    assert agreed("ab", a=100, b=9_999) == 100
    assert agreed("ab", b=9_999) is None
    assert agreed("a", a=5) == 5
    assert agreed("abcde", a=1, b=1, c=5, d=9_999, e=9_999) == 5


async def test_leader_that_goes_on_alone_while_it_asks_what_time_it_is_goes_by_its_own_clock() -> None:
    voters = {"a", "b"}

    class LostPartner:
        def is_up(self, node: str) -> bool:
            return node in voters

        async def request(self, node: str, *_: object) -> memoryview:
            voters.discard(node)
            raise Unavailable(f"{node} was lost")

    clocks = Clocks("a", LostPartner(), lambda: TimestampMs(7))
    assert await clocks.agreed_ms(lambda: voters) == 7


async def test_groups_with_the_same_voters_ask_what_time_it_is_together() -> None:
    asked: list[str] = []

    class Partner:
        def is_up(self, node: str) -> bool:
            return True

        async def request(self, node: str, *_: object) -> memoryview:
            asked.append(node)
            await asyncio.sleep(0)
            return memoryview(msgspec.msgpack.encode(ClockReply(TimestampMs(9))))

    clocks = Clocks("a", Partner(), lambda: TimestampMs(7))
    assert await asyncio.gather(*(clocks.agreed_ms(lambda: {"a", "b"}) for _ in range(100))) == [7] * 100
    assert asked == ["b"]
    assert await clocks.agreed_ms(lambda: {"a", "b"}) == 7 and asked == ["b", "b"]

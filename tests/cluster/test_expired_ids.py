"""A message that is sent again is recognised although retention has deleted the first one."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from testkit.inprocess import Nodes, now_ms
from testkit.wait import until

from holdfast.backends.cluster import expired_ids
from holdfast.backends.cluster.replica import Replica
from holdfast.model.ids import GroupId, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import NewMessage, Published, StoredId
from holdfast.model.topics import TopicConfig
from holdfast.storage import ids_file
from holdfast.storage.doctor import examine
from holdfast.storage.examined import Kind
from holdfast.storage.ids_file import FILE, IdsDamaged, encode_ids, read_ids, write_ids
from holdfast.storage.segment import Segment
from holdfast.wire import record_batch

TOPIC = TopicName("orders")
T = PartitionId(TOPIC, 0)
MESSAGES = [NewMessage(value=bytes(200), id=f"id-{number}") for number in range(60)]
SEGMENT_BYTES = 2_000


@pytest.fixture(params=[1, 3])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Nodes:
    return Nodes(tmp_path, request.param, segment_bytes=SEGMENT_BYTES)


async def sent(nodes: Nodes, through: str = "n1", messages: Sequence[NewMessage] = MESSAGES) -> list[Published]:
    found: list[Published] = []
    for message in messages:
        found += await nodes.brokers[through].publish(TOPIC, [message])
    return found


async def expired(nodes: Nodes) -> None:
    """Retention of all nodes has deleted all but the end."""

    async def is_done() -> bool:
        await asyncio.gather(*(backend.expire() for backend in nodes.backends.values()))
        return all(backend.start_offset(T) > 40 for backend in nodes.backends.values())

    await until(is_done)


def duplicates(published: Sequence[Published]) -> list[tuple[int, bool]]:
    return [(each.offset, each.duplicate) for each in published]


STORED = [(number, False) for number in range(60)]
KNOWN = [(number, True) for number in range(60)]


async def test_ids_are_known_after_a_restart_although_their_messages_expired(nodes: Nodes) -> None:
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(retention_bytes=1))
    assert duplicates(await sent(nodes)) == STORED
    await expired(nodes)
    for _ in range(2):
        await nodes.stop()
        await nodes.start()
        assert duplicates(await sent(nodes)) == KNOWN
    await nodes.stop()


async def test_ids_are_known_to_the_next_leader_although_their_messages_expired(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(retention_bytes=1))
    assert duplicates(await sent(nodes)) == STORED
    await expired(nodes)
    for _ in range(3):
        after = nodes.another_than(await nodes.leader(TOPIC))
        await nodes.backends["n1"].transfer(T, after)
        assert await nodes.leader(TOPIC) == after
        assert duplicates(await sent(nodes)) == KNOWN
    await nodes.stop()


async def test_ids_are_known_to_a_next_leader_whose_clock_is_hours_ahead(
    tmp_path: Path,
) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig())
    assert duplicates(await sent(nodes)) == STORED
    after = nodes.another_than(await nodes.leader(TOPIC))
    nodes.ahead_ms[after] = 2 * 3_600_000
    await nodes.backends["n1"].transfer(T, after)
    assert duplicates(await sent(nodes)) == KNOWN
    # As well after a restart, while the others' clocks are right.
    await nodes.stop(after)
    await nodes.start(after)
    await nodes.backends["n1"].transfer(T, after)
    assert duplicates(await sent(nodes)) == KNOWN
    await nodes.stop()


@pytest.mark.parametrize("ahead_ms", [-15 * 60_000, -26 * 3_600_000, 24 * 3_600_000])
async def test_ids_that_a_leader_with_a_wrong_clock_stored_are_known_to_the_next_one(
    tmp_path: Path, ahead_ms: int
) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig())
    before = await nodes.leader(TOPIC)
    nodes.ahead_ms[before] = ahead_ms
    assert duplicates(await sent(nodes, before)) == STORED
    after = nodes.another_than(before)
    # It has read none of them while they came.
    await nodes.stop(after)
    await nodes.start(after)
    await nodes.backends[before].transfer(T, after)
    assert duplicates(await sent(nodes, after)) == KNOWN
    await nodes.stop()


@pytest.mark.parametrize("is_new_reign", [False, True])
async def test_messages_are_stamped_by_the_clocks_of_now_after_those_of_a_majority_are_put_right(
    tmp_path: Path, is_new_reign: bool
) -> None:
    """Else retention keeps them for a day longer, and a search by time finds them where they are not."""
    nodes = Nodes(tmp_path)
    nodes.ahead_ms = dict.fromkeys(nodes.addresses, 24 * 3_600_000)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig())
    assert duplicates(await sent(nodes, messages=MESSAGES[:1])) == STORED[:1]
    leader = await nodes.leader(TOPIC)
    follower = nodes.another_than(leader)
    await until(lambda: nodes.backends[follower].end_offset(T) == 1)
    # From now on it knows what time it was by the wrong clocks.
    await nodes.brokers[follower].stand_by()
    nodes.ahead_ms = {}
    if is_new_reign:
        await nodes.backends[leader].transfer(T, follower)
        leader = follower
    else:
        await nodes.brokers[leader].ask_time()
    assert duplicates(await sent(nodes, leader, MESSAGES[:2])) == [KNOWN[0], STORED[1]]
    *_, newest = await nodes.backends[leader].read(T, Offset(1), 1 << 20)
    assert abs(record_batch.header(newest).max_timestamp_ms - now_ms()) < 3_600_000
    await nodes.stop()


async def test_ids_are_known_to_a_leader_whose_log_began_anew_behind_them(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(retention_bytes=1))
    await until(lambda: all(T in backend.topics_here.replicas for backend in nodes.backends.values()))
    away = nodes.another_than("n1", await nodes.leader(TOPIC))
    await nodes.stop(away)
    assert duplicates(await sent(nodes)) == STORED
    await expired(nodes)
    await nodes.start(away)
    await until(lambda: nodes.backends[away].end_offset(T) == 60)
    assert nodes.backends[away].start_offset(T) > 0
    await nodes.backends["n1"].transfer(T, away)
    assert duplicates(await sent(nodes)) == KNOWN
    await nodes.stop()


async def test_no_more_ids_are_kept_than_a_window_holds_and_none_that_are_too_old(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    backend = nodes.backends["n1"]
    backend._expired_ids._ids_max = 10
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(retention_bytes=1))
    assert duplicates(await sent(nodes)) == STORED
    await expired(nodes)
    begin = backend.start_offset(T)
    assert [each.offset for each in await backend.expired_ids(T, Offset(0))] == list(range(begin - 10, begin))
    await nodes.brokers["n1"].create_topic("old", TopicConfig(retention_ms=1_000))
    old = PartitionId(TopicName("old"), 0)
    for message in MESSAGES:
        await nodes.brokers["n1"].publish("old", [message])
    nodes.ahead_ms["n1"] = 24 * 3_600_000

    async def is_gone() -> bool:
        await backend.expire()
        return backend.start_offset(old) == 60

    await until(is_gone)
    assert not (tmp_path / "n1" / "topics" / "old" / "0" / FILE).exists()
    await nodes.stop()


async def test_retention_makes_room_on_a_full_disk_and_keeps_the_ids_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path, 1, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(retention_bytes=1))
    assert duplicates(await sent(nodes)) == STORED
    directory = tmp_path / "n1" / "topics" / TOPIC / "0"
    segments = len(list(directory.glob("*.log")))

    def on_a_full_disk(fd: int, ids: Sequence[StoredId]) -> None:
        if len(list(directory.glob("*.log"))) >= segments:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_ids(fd, ids)

    monkeypatch.setattr(expired_ids, "write_ids", on_a_full_disk)
    await expired(nodes)
    await nodes.stop()
    await nodes.start()
    assert duplicates(await sent(nodes)) == KNOWN
    await nodes.stop()


async def test_topic_that_is_made_anew_knows_no_ids_of_the_one_that_was_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its first messages are taken for sent again, and are lost."""
    nodes = Nodes(tmp_path, 1, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    broker, backend = nodes.brokers["n1"], nodes.backends["n1"]
    await broker.create_topic(TOPIC, TopicConfig(retention_bytes=1))
    assert duplicates(await sent(nodes)) == STORED
    await until(lambda: not backend.topics_here.replicas[T].log.has_unsynced_segments)
    to_thread = asyncio.to_thread

    async def late(work: object, *arguments: object) -> object:
        """The topic is deleted and made anew before the thread begins."""
        if isinstance(arguments[0], int) if arguments else False:
            monkeypatch.setattr(asyncio, "to_thread", to_thread)
            await broker.delete_topic(TOPIC)
            await broker.create_topic(TOPIC, TopicConfig(retention_bytes=1))
        return await to_thread(work, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "to_thread", late)
    await backend.expire()
    assert not (tmp_path / "n1" / "topics" / TOPIC / "0" / FILE).exists()
    await nodes.stop()
    await nodes.start()
    assert duplicates(await sent(nodes)) == STORED
    await nodes.stop()


def is_open(path: Path) -> bool:
    return path.resolve() in {each.resolve() for each in Path("/proc/self/fd").iterdir()}


async def test_ids_of_one_partition_are_not_written_to_another_when_a_link_breaks_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that is closed while a thread writes by its number may be another partition's by then."""
    nodes = Nodes(tmp_path, 1, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    backend = nodes.backends["n1"]
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(retention_bytes=1))
    assert duplicates(await sent(nodes)) == STORED
    await until(lambda: not backend.topics_here.replicas[T].log.has_unsynced_segments)
    directory = tmp_path / "n1" / "topics" / TOPIC / "0"
    written_by: list[int] = []
    may_write = threading.Event()

    def late(fd: int, ids: Sequence[StoredId]) -> None:
        written_by.append(fd)
        may_write.wait(20)
        write_ids(fd, ids)

    monkeypatch.setattr(expired_ids, "write_ids", late)
    expiring = asyncio.create_task(backend.expire())
    await until(lambda: bool(written_by))
    for _ in range(3):
        expiring.cancel()
        await asyncio.sleep(0.01)
    assert os.path.samestat(os.fstat(written_by[0]), directory.stat())
    assert backend._expired_ids._lock.locked()
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await expiring
    assert not backend._expired_ids._lock.locked()
    assert not is_open(directory)
    opened = os.open(directory, os.O_RDONLY)
    assert read_ids(opened)
    os.close(opened)
    await nodes.stop()


async def test_damaged_ids_are_told_and_stop_nothing(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    await nodes.brokers["n1"].create_topic(TOPIC, TopicConfig(retention_bytes=1))
    assert duplicates(await sent(nodes)) == STORED
    await expired(nodes)
    begin = nodes.backends["n1"].start_offset(T)
    await nodes.stop()
    file = tmp_path / "n1" / "topics" / TOPIC / "0" / FILE
    assert examine(tmp_path / "n1").findings == []
    content = bytearray(file.read_bytes())
    content[-3] ^= 0xFF
    file.write_bytes(content)
    assert [finding.kind for finding in examine(tmp_path / "n1").findings] == [Kind.IDS_DAMAGED]
    await nodes.start()
    assert [each.duplicate for each in await sent(nodes)] == [number >= begin for number in range(60)]
    await expired(nodes)
    assert examine(tmp_path / "n1", in_use=True).findings == []
    await nodes.stop()


def test_file_of_ids_comes_back_as_it_was_written_or_says_that_it_is_damaged(tmp_path: Path) -> None:
    ids = [StoredId(Offset(1), TimestampMs(5), "ä"), StoredId(Offset(9), TimestampMs(-1), "\udcff")]
    directory = os.open(tmp_path, os.O_RDONLY)
    assert read_ids(directory) == []
    for written in ([], ids):
        write_ids(directory, written)
        assert read_ids(directory) == written
    content = (tmp_path / FILE).read_bytes()
    for bad in (b"", content[:5], content[:-1], content + b"\0", b"x" + content[1:], content[:-1] + b"\0"):
        (tmp_path / FILE).write_bytes(bad)
        with pytest.raises(IdsDamaged):
            read_ids(directory)
    os.close(directory)


def test_file_of_ids_that_found_no_room_leaves_none_of_it_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    kept = [StoredId(Offset(1), TimestampMs(5), "a")]
    write_ids(directory, kept)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ids_file, "sync_file", full)
    with pytest.raises(OSError, match="No space"):
        write_ids(directory, [*kept, StoredId(Offset(2), TimestampMs(6), "b")])
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
    assert read_ids(directory) == kept
    os.close(directory)


async def test_topic_that_is_deleted_while_its_ids_are_read_does_not_keep_retention_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path, 1, segment_bytes=SEGMENT_BYTES)
    await nodes.start()
    broker, backend = nodes.brokers["n1"], nodes.backends["n1"]
    later = PartitionId(TopicName("with a later turn"), 0)
    for topic in (TOPIC, later.topic):
        await broker.create_topic(topic, TopicConfig(retention_bytes=1))
        for message in MESSAGES:
            await broker.publish(topic, [message])
    await until(lambda: all(not each.log.has_unsynced_segments for each in backend.topics_here.replicas.values()))
    ids_in = Segment.ids
    loop = asyncio.get_running_loop()

    def ids_of_a_topic_that_goes(*arguments: Any) -> list[StoredId]:
        monkeypatch.setattr(Segment, "ids", ids_in)
        asyncio.run_coroutine_threadsafe(broker.delete_topic(TOPIC), loop).result()
        return [StoredId(Offset(0), TimestampMs(0), "id")]

    monkeypatch.setattr(Segment, "ids", ids_of_a_topic_that_goes)
    await backend.expire()
    assert backend.start_offset(later) > 40
    await nodes.stop()


async def test_node_that_was_away_fetches_the_ids_of_a_few_partitions_at_once(tmp_path: Path) -> None:
    """Else those of a thousand partitions would be in its memory together."""
    under_way, most = 0, 0

    class Leader:
        def is_up(self, node: str) -> bool:
            return True

        async def request(self, node: str, method: int, body: bytes, timeout_s: float, leads: Any = None) -> memoryview:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return memoryview(encode_ids([]))

    ids = expired_ids.ExpiredIds(ids_max=10, age_ms_max=1000)
    replicas = [cast(Replica, SimpleNamespace(group=GroupId(number))) for number in range(100)]
    await asyncio.gather(*(ids.fetch(Leader(), "n1", replica) for replica in replicas))
    assert most <= 4

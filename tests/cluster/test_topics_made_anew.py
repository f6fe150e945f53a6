"""A topic is deleted and made anew under the same name, while nodes still close the files of the old one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from testkit.batches import values_batch
from testkit.inprocess import Nodes, now_ms, running
from testkit.wait import until

from holdfast.backends.cluster.topic_files import TopicFiles
from holdfast.model.errors import NoQuorum, TopicNotFound
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import SEGMENT_BYTES_DEFAULT
from holdfast.model.topics import Topic, TopicConfig
from holdfast.storage.directory import DataDirectory
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import NotCached

T = PartitionId(TopicName("t"), 0)


async def test_new_topic_is_not_taken_for_damaged_when_the_old_one_is_closed_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as nodes:
        # Who leads the control group answers for a deletion when it is done there.
        await nodes.brokers["n2"].transfer(None, None, "n1")
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        await nodes.brokers["n1"].publish_values("t", [b"x" * 500] * 20).offset
        await until(lambda: nodes.backends["n2"].end_offset(T) == 20)
        # n2 is told that the topic is gone while a sync still uses its files.
        syncer = nodes.backends["n2"].groups.syncer
        settled, is_released = syncer.settled, asyncio.Event()

        async def settled_late() -> None:
            await is_released.wait()
            await settled()

        monkeypatch.setattr(syncer, "settled", settled_late)
        await nodes.brokers["n1"].delete_topic("t")
        await until(lambda: T.topic not in nodes.backends["n2"].topics_here.known)
        created = asyncio.ensure_future(nodes.brokers["n2"].create_topic("t", TopicConfig()))
        # It may get as far as it can; it must not make files where the old ones are still open.
        await asyncio.wait({created}, timeout=0.5)
        is_released.set()
        await created
        await nodes.brokers["n2"].publish_values("t", [b"y"]).offset
        await until(lambda: nodes.backends["n2"].end_offset(T) == 1)
        # What a kill would leave.
        left = shutil.copytree(tmp_path / "n2" / "topics" / "t" / "0", tmp_path / "left")
        partition_log, recovery = PartitionLog.open(left)
        partition_log.close()
        assert recovery.holes == []
        assert not nodes.failed


async def test_reader_that_waited_for_the_disk_is_told_that_its_topic_is_gone_and_leaks_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as nodes:
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        await nodes.brokers["n1"].publish_values("t", [b"old"] * 20).offset
        backend = nodes.backends["n1"]
        await until(lambda: backend.end_offset(T) == 20)
        replica = backend.topics_here.replicas[T]
        is_warming, may_go_on = asyncio.Event(), asyncio.Event()
        read = replica.log.read

        def cold(offset: Offset, bytes_max: int, end: Offset, *, may_block: bool = True) -> list[memoryview]:
            if not is_warming.is_set():
                raise NotCached(replica.log.active.path, 0, 1)
            return read(offset, bytes_max, end, may_block=may_block)

        async def in_a_thread(warm: object) -> None:
            is_warming.set()
            await may_go_on.wait()

        monkeypatch.setattr(replica.log, "read", cold)
        with monkeypatch.context() as slow:
            slow.setattr(asyncio, "to_thread", in_a_thread)
            reading = asyncio.ensure_future(backend.read(T, Offset(0), 1 << 20))
            await is_warming.wait()
        await nodes.brokers["n1"].delete_topic("t")
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        await nodes.brokers["n1"].publish_values("t", [b"new"] * 20).offset
        files_open = _open_files(tmp_path / "n1" / "topics")
        may_go_on.set()
        with pytest.raises(TopicNotFound):
            await reading
        assert _open_files(tmp_path / "n1" / "topics") == files_open


async def test_damaged_log_of_a_topic_made_anew_is_found_at_start_though_the_state_knows_the_one_before(
    tmp_path: Path,
) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    await nodes.brokers["n1"].create_topic("t", TopicConfig())
    await until(lambda: T in nodes.backends["n3"].topics_here.replicas)
    await nodes.stop("n3")
    shutil.copy(tmp_path / "n3" / "state.sqlite", tmp_path / "before")
    await nodes.start("n3")
    await nodes.brokers["n1"].delete_topic("t")
    await nodes.brokers["n1"].create_topic("t", TopicConfig())
    values = [b"%d" % number * 20 for number in range(200)]
    for value in values:
        await nodes.brokers["n1"].publish_values("t", [value]).offset
    await until(lambda: nodes.backends["n3"].end_offset(T) == len(values))
    life = nodes.backends["n3"]._directory.life
    await nodes.stop("n3")
    # As if the state had not been written since.
    for file in (tmp_path / "n3").glob("state.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "before", tmp_path / "n3" / "state.sqlite")
    (segment,) = (tmp_path / "n3" / "topics" / "t" / "0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 3] ^= 0xFF
    segment.write_bytes(content)
    await nodes.start("n3")
    assert nodes.backends["n3"]._directory.life != life
    await until(lambda: nodes.backends["n3"].end_offset(T) == len(values))
    messages, _ = await nodes.brokers["n3"].read("t", 0, Offset(0), len(values), 1 << 20)
    assert [message.value for message in messages] == values
    assert not nodes.failed
    await nodes.stop()


def test_closed_log_says_why_instead_of_opening_the_files_of_its_successor(tmp_path: Path) -> None:
    old, _ = PartitionLog.open(tmp_path / "0")
    old.append(values_batch(b"old"), old.previous_term)
    old.close(TopicNotFound("topic t was deleted"))
    shutil.rmtree(tmp_path / "0")
    new, _ = PartitionLog.open(tmp_path / "0")
    files_open = _open_files(tmp_path)
    for use in (
        lambda: old.read(Offset(0), 1, Offset(1)),
        lambda: old.read_entries(old.first_index, 1, old.last_index),
        lambda: old.append(values_batch(b"late"), old.previous_term),
        lambda: old.first_at_or_after(TimestampMs(0)),
        old.sync_point,
    ):
        with pytest.raises(TopicNotFound, match="topic t was deleted"):
            use()
    assert _open_files(tmp_path) == files_open
    assert not list((tmp_path / "0").glob("*.index"))
    new.close()


def test_deleted_topic_does_not_come_back_where_another_deletion_empties_the_trash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = DataDirectory.open(tmp_path, node="n1", now_ms=now_ms())
    files = TopicFiles(directory, SEGMENT_BYTES_DEFAULT, now_ms)
    old, new = (Topic(name=T.topic, config=TopicConfig(), created_ms=now_ms(), token=each) for each in ("old", "new"))
    files.make(old)
    (partition_log,) = files.open(T.topic, 1)
    partition_log.append(values_batch(b"old"), partition_log.previous_term)
    partition_log.close()
    other = Topic(name=TopicName("other"), config=TopicConfig(), created_ms=now_ms(), token="other")
    files.make(other)
    rmtree = shutil.rmtree

    def removed(path: Path, *, ignore_errors: bool) -> None:
        """In one thread; another one makes the topic anew at that moment."""
        rmtree(path, ignore_errors=ignore_errors)
        files.make(new)

    monkeypatch.setattr(shutil, "rmtree", removed)
    files.remove(other)
    (partition_log,) = files.open(T.topic, 1)
    assert partition_log.written_end == 0
    partition_log.close()
    directory.close()


def _open_files(below: Path) -> list[str]:
    return sorted(
        target for link in Path("/proc/self/fd").iterdir() if (target := _target(link)).startswith(str(below))
    )


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the directory that was listed
        return ""


async def test_topic_that_a_restarted_node_does_not_know_yet_keeps_its_messages_when_somebody_creates_it(
    tmp_path: Path,
) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    await nodes.stop()
    before = (tmp_path / "n1" / "state.sqlite").read_bytes()
    await nodes.start()
    try:
        await nodes.brokers["n1"].create_topic("t", TopicConfig())
        await nodes.brokers["n1"].publish_values("t", [b"x" * 500] * 20).offset
        await until(lambda: nodes.backends["n1"].end_offset(T) == 20)
        await nodes.stop()
        # A kill: the control log has the topic, the state was not written since.
        for left in (tmp_path / "n1").glob("state.sqlite-*"):
            left.unlink()
        (tmp_path / "n1" / "state.sqlite").write_bytes(before)
        await nodes.start("n1")
        assert T.topic not in nodes.backends["n1"].topics_here.known
        with pytest.raises(NoQuorum):
            await nodes.brokers["n1"].create_topic("t", TopicConfig())
        assert list((tmp_path / "n1" / "trash").glob("*")) == []
    finally:
        await nodes.stop()
    log, _ = PartitionLog.open(tmp_path / "n1" / "topics" / "t" / "0")
    assert log.written_end == 20
    log.close()

"""A push whose outcome is unknown is kept with a marker, so replay finds out whether it is stored."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from testkit.inprocess import Clock, OneNode
from testkit.reading import values_in
from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.spill import events, files
from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import SpillDirectory
from holdfast.backends.spill.log_target import LogTarget, progress_path
from holdfast.backends.spill.settings import SpillSettings
from holdfast.broker.broker import Broker
from holdfast.model.errors import DamagedData, LeaderChanged, TooLarge
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.wire import batch_builder

TOPIC = TopicName("orders")
# Beyond the dedupe window: ids alone do not recognise anything any more.
ELEVEN_MINUTES_MS = 11 * 60_000


async def open_alone(path: Path, clock: Clock) -> ClusterBackend:
    node = OneNode(path, clock)
    await node.open()
    return node.cluster_backend


async def open_spilled(path: Path, clock: Clock) -> tuple[OneNode, SpillBackend]:
    node = OneNode(path, clock, spill=True)
    await node.open()
    assert node.store.spill is not None
    return node, node.store.spill


def a_sync_that_fails(fd: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


async def killed_after_a_failed_sync(tmp_path: Path, clock: Clock) -> Path:
    """The directory of a broker that stored one message and kept another one, whose sync had failed."""
    node, _ = await open_spilled(tmp_path / "before", clock)
    broker = node.broker
    await broker.ensure_topic(TOPIC)
    await broker.publish(TOPIC, [NewMessage(value=b"first", id="a")])
    with pytest.MonkeyPatch.context() as trouble:
        trouble.setattr("holdfast.storage.syncer.sync_data", a_sync_that_fails)
        (kept,) = await broker.publish(TOPIC, [NewMessage(value=b"second", id="b")])
    assert kept.offset == -1
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    await node.stop()
    return tmp_path / "after"


async def test_message_whose_sync_failed_is_stored_once_after_the_dedupe_window(tmp_path: Path) -> None:
    clock = Clock()
    after = await killed_after_a_failed_sync(tmp_path, clock)
    clock.now += ELEVEN_MINUTES_MS
    node, spilled = await open_spilled(after, clock)
    await until(lambda: spilled.waiting.is_known and not spilled.pending and spilled.is_drained)
    assert await values_in(node.broker, TOPIC) == [b"first", b"second"]
    assert spilled.end_offset(PartitionId(TOPIC, 0)) == 2
    await node.stop()


async def test_messages_are_stored_once_though_it_cannot_be_read_how_far_their_file_is(tmp_path: Path) -> None:
    clock = Clock()
    inner = await open_alone(tmp_path / "data", clock)
    broker = Broker(inner, now_ms=clock)
    await broker.ensure_topic(TOPIC)
    partition, file, target = PartitionId(TOPIC, 0), uuid4(), LogTarget(inner, tmp_path)
    batches = [
        (partition, batch_builder.build_batch([NewMessage(value=b"%d" % number, id=f"{number}")], clock()))
        for number in range(4)
    ]
    await target.store(file, 2, batches[:2])
    clock.now += ELEVEN_MINUTES_MS
    progress_path(tmp_path, file).write_bytes(b'{"done":')
    assert await target.progress(file) == 0
    assert await target.store(file, 3, batches[:3]) == 2
    assert await target.store(file, 4, batches[3:]) == 0
    assert await values_in(broker, TOPIC) == [b"0", b"1", b"2", b"3"]
    await inner.stop()


async def test_message_whose_fate_lies_in_a_damaged_part_of_the_log_is_stored(tmp_path: Path) -> None:
    """Nobody can read any more whether it is there: it would wait in the spill for ever, and everything behind it."""
    clock = Clock()
    after = await killed_after_a_failed_sync(tmp_path, clock)
    alone = await open_alone(after, clock)
    await Broker(alone, now_ms=clock).publish_values(TOPIC, [b"third"]).offset
    await alone.stop()
    (log,) = (after / "topics" / TOPIC / "0").glob("*.log")
    log.write_bytes(log.read_bytes().replace(b"second", b"Second"))
    clock.now += ELEVEN_MINUTES_MS
    node, spilled = await open_spilled(after, clock)
    broker = node.broker
    await until(lambda: spilled.waiting.is_known and not spilled.pending and spilled.is_drained)
    with pytest.raises(DamagedData) as damage:
        await broker.read(TOPIC, 0, Offset(1), 10, 1 << 20)
    stored, _ = await broker.read(TOPIC, 0, Offset(damage.value.next_offset), 10, 1 << 20)
    assert [message.value for message in stored] == [b"third", b"second"]
    await node.stop()


def note_refused(directory: Path, count: int) -> None:
    """Messages m0, m1 and so on are in `failed`, as a broker leaves them."""
    partition = PartitionId(TOPIC, 0)
    batches = [batch_builder.build_batch([NewMessage(value=b"m%d" % n, id=f"i{n}")], 1_000) for n in range(count)]
    lines = [events.lines_of(partition, batch, 1_000)[0][:-1] for batch in batches]
    opened = SpillDirectory.open(directory)
    reason = "there is no topic orders [topic_not_found]"
    opened.note_failed(opened.new_file(files.FAILOVER), [BadLine(n, line, reason) for n, line in enumerate(lines)])
    opened.close()


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("answers_lost", [1, 3])
async def test_retried_message_of_unknown_outcome_is_stored_once_after_the_dedupe_window(
    is_stored: bool, answers_lost: int, tmp_path: Path
) -> None:
    clock = Clock()
    inner = await open_alone(tmp_path / "data", clock)
    await Broker(inner, now_ms=clock).ensure_topic(TOPIC)
    note_refused(tmp_path / "spill", 3)
    forward, tries = inner.forward, 0

    def answer_is_lost(partition: PartitionId, batch: Any, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        nonlocal tries
        tries += 1
        if tries > answers_lost:
            return forward(partition, batch, has_ids=has_ids)
        stored = forward(partition, batch, has_ids=has_ids) if is_stored and tries == 1 else None

        async def lost() -> BatchPublished:
            if stored is not None:
                await stored
            clock.now += ELEVEN_MINUTES_MS
            raise LeaderChanged("the leader was lost before it answered")

        return asyncio.ensure_future(lost())

    inner.forward = answer_is_lost  # type: ignore[method-assign]
    settings = SpillSettings(tmp_path / "spill", flush_ms=20, retry_interval_s=0.05, free_bytes_min=0)
    spilled = SpillBackend(inner, LogTarget(inner, settings.directory), settings, now_ms=clock)
    await spilled.start()
    await until(lambda: tries > 0 and not spilled.stats.failed_events and spilled.is_drained)
    assert sorted(await values_in(Broker(spilled, now_ms=clock), TOPIC)) == [b"m0", b"m1", b"m2"]
    assert not list(settings.directory.glob("*.progress"))
    await spilled.stop()
    await inner.stop()


async def test_message_that_a_log_refuses_does_not_have_all_read_that_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    inner = await open_alone(tmp_path / "data", clock)
    broker = Broker(inner, now_ms=clock)
    await broker.ensure_topic(TOPIC)
    (tmp_path / "spill").mkdir()
    target, file = LogTarget(inner, tmp_path / "spill"), uuid4()
    batch = batch_builder.build_batch([NewMessage(value=b"large", id="a")], clock())
    read, reads = inner.read, 0

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*given, **more)

    def refuse(*given: Any, **more: Any) -> asyncio.Future[BatchPublished]:
        raise TooLarge("it is too large")

    monkeypatch.setattr(inner, "read", counted)
    for _ in range(3):
        with monkeypatch.context() as refusing, pytest.raises(TooLarge):
            refusing.setattr(inner, "forward", refuse)
            await target.store(file, 1, [(PartitionId(TOPIC, 0), batch)])
        await broker.publish(TOPIC, [NewMessage(value=b"other")])
    assert not reads and not await target.unsettled(file)
    await inner.stop()

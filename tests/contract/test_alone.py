"""What only a backend on its own disk can go through: a damaged state file, a full disk, a crash between two steps."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from testkit.batches import values_batch
from testkit.inprocess import OneNode
from testkit.logs import flip, frame_positions, path_of
from testkit.mounts import fill, small_disk
from testkit.sizes import dice, scaled
from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.commands import DeleteTopic
from holdfast.backends.cluster.state import Statement, StateStore
from holdfast.model.errors import DamagedData, DataDirectoryError, DiskFull, HoldfastError, StorageFailed
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.topics import Topic
from holdfast.model.waiting import RetentionWait
from tests.contract.stores import alone

T = PartitionId(TopicName("t"), 0)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[OneNode]:
    made = alone(tmp_path / "data")
    await made.open()
    yield made
    await made.stop()


def segments_of(store: OneNode, topic: str = "t") -> list[Path]:
    return sorted((store.path / "topics" / topic / "0").glob("*.log"))


def state_file(store: OneNode) -> Path:
    return store.path / "state.sqlite"


async def fill_topics(store: OneNode) -> None:
    await store.create("t", partitions=2, retention_ms=10**9)
    await store.create("empty", partitions=4)
    for i in range(20):
        await store.publish(T, b"message %d" % i)
    await store.set_cursor("t", "reader", {0: 7})


async def check_topics(store: OneNode, *, cursors: bool = True) -> None:
    assert await store.read_all(T) == {i: b"message %d" % i for i in range(20)}
    topic = store.backend.topic(T.topic)
    assert topic is not None and topic.config.partitions == 2 and topic.config.retention_ms == 10**9
    empty = store.backend.topic(TopicName("empty"))
    assert empty is not None and empty.config.partitions == 4, "a topic that was created is gone"
    if cursors:
        assert store.cursor("t", "reader") == {0: 7}


async def test_reader_gets_the_bytes_that_were_stored(store: OneNode) -> None:
    await store.create()
    batch = values_batch(b"one", b"", b"\xff\x00\n", timestamp_ms=77)
    original = bytes(batch)
    await store.publish(T, b"before")
    offset = await store.backend.append(T, batch)
    for wanted in (offset, Offset(offset + 2)):
        (stored,) = await store.backend.read(T, wanted, 1)
        assert bytes(stored[16:]) == original[16:]


# --- the state file -----------------------------------------------------------------------------------

SPOILED: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "not a database": lambda path: path.write_bytes(b"garbage" * 1_000),
    "header flipped": lambda path: flip(path, 3),
    "second page zeroed": lambda path: overwrite_pages(path, 1),
    "all but the first page zeroed": lambda path: overwrite_pages(path, 1, 2),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
}


def overwrite_pages(path: Path, *numbers: int) -> None:
    data = bytearray(path.read_bytes())
    for number in numbers:
        data[4096 * number : 4096 * (number + 1)] = bytes(len(data[4096 * number : 4096 * (number + 1)]))
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", SPOILED)
async def test_topics_and_messages_survive_the_loss_of_the_state_file(store: OneNode, spoil: str) -> None:
    await fill_topics(store)
    await store.stop()
    for suffix in ("-wal", "-shm"):
        state_file(store).with_name("state.sqlite" + suffix).unlink(missing_ok=True)
    SPOILED[spoil](state_file(store))
    await store.open()
    await check_topics(store, cursors=False)
    await store.create("new")
    await store.set_cursor("t", "another", {0: 1})
    await store.restart()
    await check_topics(store, cursors=False)
    assert store.backend.topic(TopicName("new")) is not None
    assert store.cursor("t", "another") == {0: 1}


async def test_no_flipped_bits_in_the_state_file_keep_the_broker_from_starting(store: OneNode) -> None:
    """Whatever SQLite makes of them: the messages are there."""
    await fill_topics(store)
    await store.stop()
    sound = state_file(store).read_bytes()
    rolled = dice("state file")
    for turn in range(scaled(30, 2_000)):
        for path in store.path.glob("state.sqlite*"):
            path.unlink()
        data = bytearray(sound)
        for _ in range(rolled.choice([1, 3, 30])):
            spot = rolled.choice([rolled.randrange(len(data)), rolled.randrange(100), rolled.randrange(3_000, 4_096)])
            data[spot] ^= 1 << rolled.randrange(8)
        data[60:64] = sound[60:64]  # the version: another one is refused in words
        state_file(store).write_bytes(data)
        try:
            await store.open()
        except HoldfastError as error:
            raise AssertionError(f"turn {turn}: {error}") from error
        assert await store.read_all(T) == {i: b"message %d" % i for i in range(20)}
        await store.stop()


async def test_damaged_state_file_is_set_aside_and_not_deleted(store: OneNode) -> None:
    await fill_topics(store)
    await store.stop()
    flip(state_file(store), 3)
    damaged = state_file(store).read_bytes()
    await store.open()
    assert [path.read_bytes() for path in store.path.glob("state.sqlite.damaged-*") if path.suffix != ".db"] == [
        damaged
    ]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.close()


async def test_state_file_that_somebody_else_has_locked_is_not_taken_for_damaged(
    store: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person looks into it with another program: that may delay a start, not cost the cursors."""
    await fill_topics(store)
    await store.stop()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.05))
    with locked(state_file(store)), pytest.raises(DataDirectoryError):
        await store.open()
    assert list(store.path.glob("*.damaged-*")) == []
    await store.open()
    await check_topics(store)


@pytest.mark.root
async def test_start_on_a_full_disk_does_not_cost_the_cursors(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 4 << 20) as place:
        store = alone(place / "data")
        await store.open()
        await fill_topics(store)
        await store.stop()
        ballast = fill(place)
        try:
            await store.open()
        except HoldfastError:
            pass  # it may refuse to start without room, in words
        else:
            await check_topics(store)
            await store.stop()
        assert list((place / "data").glob("*.damaged-*")) == [], "a full disk is taken for a damaged file"
        ballast.unlink()
        await store.open()
        await check_topics(store)
        await store.stop()


# --- crashes between two steps ------------------------------------------------------------------------


async def test_topic_whose_creation_was_not_finished_is_removed(store: OneNode) -> None:
    await fill_topics(store)
    await store.stop()
    (store.path / "topics" / "half" / "0").mkdir(parents=True)
    (store.path / "topics" / "half" / "0" / f"{0:020d}-{0:020d}.log").touch()
    await store.open()
    await check_topics(store)
    assert store.backend.topic(TopicName("half")) is None
    assert not (store.path / "topics" / "half").exists()


async def test_deletion_that_was_decided_is_finished(store: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill_topics(store)
    await store.create("gone")
    await store.publish(PartitionId(TopicName("gone"), 0), b"old")
    await store.set_cursor("gone", "reader", {0: 1})
    backend = store.cluster_backend
    await backend.control.keep()
    reached = asyncio.Event()

    async def crash_here(command: DeleteTopic) -> Topic:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(backend.topics_here, "delete", crash_here)
    deleting = asyncio.ensure_future(backend.delete_topic(TopicName("gone")))
    await asyncio.wait_for(reached.wait(), 60)
    await store.kill()
    deleting.cancel()
    await store.open()
    await check_topics(store)
    assert store.backend.topic(TopicName("gone")) is None
    assert ("gone", "reader") not in store.backend.cursors()
    await store.create("gone")
    assert await store.read_all(PartitionId(TopicName("gone"), 0)) == {}


async def test_topic_and_its_messages_are_there_though_the_state_file_had_not_heard_of_it(store: OneNode) -> None:
    """The file follows the control log a moment later; a crash in that moment must cost nothing."""
    await fill_topics(store)
    await store.restart()
    before = {path.name: path.read_bytes() for path in store.path.glob("state.sqlite*")}
    await store.create("young")
    young = PartitionId(TopicName("young"), 0)
    await store.publish(young, b"first", b"second")
    await store.set_cursor("young", "reader", {0: 1})
    await store.kill()
    for path in store.path.glob("state.sqlite*"):
        path.unlink()
    for name, content in before.items():
        (store.path / name).write_bytes(content)
    await store.open()
    await check_topics(store)
    assert await store.read_all(young) == {0: b"first", 1: b"second"}
    assert store.cursor("young", "reader") == {0: 1}


async def test_trash_is_emptied_at_start(store: OneNode) -> None:
    await store.stop()
    (store.path / "trash" / "left" / "0").mkdir(parents=True)
    (store.path / "trash" / "left" / "0" / "x.log").write_bytes(b"x")
    await store.open()
    assert list((store.path / "trash").iterdir()) == []


async def test_deleted_topic_is_off_the_disk_before_that_is_said(
    store: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name must be gone durably before the last note of the deletion is: else a power loss brings it back."""
    await fill_topics(store)
    steps: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        steps.append(path_of(fd).name)
        real(fd)

    real_write = StateStore.write

    def write(state: StateStore, statements: list[Statement]) -> asyncio.Future[None]:
        if any("DELETE FROM topics" in sql for sql, _ in statements):
            steps.append("row removed")
        return real_write(state, statements)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(StateStore, "write", write)
    await store.backend.delete_topic(T.topic)
    await store.cluster_backend.control.keep()
    assert "topics" in steps[: steps.index("row removed")]


async def test_directory_above_a_new_one_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power loss takes the whole data directory, acknowledged messages and all."""
    synced: list[Path] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(path_of(fd))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store = alone(tmp_path / "new" / "data")
    await store.open()
    await store.create("t")
    await store.stop()
    data = tmp_path / "new" / "data"
    for created in (tmp_path / "new", data, data / "topics", data / "topics" / "t", data / "topics" / "t" / "0"):
        assert created.parent in synced, f"the name of {created.relative_to(tmp_path)} may be lost"


# --- damage -------------------------------------------------------------------------------------------


async def test_damage_is_told_to_whoever_reads_it_and_the_rest_is_served(store: OneNode) -> None:
    await fill_topics(store)
    await store.kill()
    (file,) = segments_of(store)
    flip(file, frame_positions(file)[5][0])
    await store.open()
    assert store.backend.describe_partition(T).damaged_batches == 1
    with pytest.raises(DamagedData) as told:
        await store.read(T, 5)
    assert told.value.next_offset == 6
    assert store.backend.next_readable(T, Offset(5)) == 6
    assert await store.read(T, 0) == [b"message %d" % i for i in range(5)]
    assert await store.read(T, 6) == [b"message %d" % i for i in range(6, 20)]
    assert await store.publish(T, b"goes on") == 20


async def test_damage_in_old_messages_is_found_without_a_reader(store: OneNode) -> None:
    await store.create("t")
    for _ in range(30):
        await store.publish(T, bytes(500))
    await store.restart()
    first, second, *_ = segments_of(store)
    flip(first, frame_positions(first)[2][0])
    flip(second, frame_positions(second)[-1][0] + 100)
    backend = store.cluster_backend
    await backend.verify()
    assert store.backend.describe_partition(T).damaged_batches == 2
    await backend.verify()
    assert store.backend.describe_partition(T).damaged_batches == 2, "the same damage is counted again"
    for first_offset, _ in damaged_offsets(backend):
        with pytest.raises(DamagedData):
            await store.read(T, first_offset)


def damaged_offsets(backend: ClusterBackend) -> list[tuple[int, int]]:
    holes = backend.topics_here.replicas[T].log.holes()
    return [(hole.first_offset, hole.next_offset) for _, hole in holes]


async def test_check_of_old_messages_goes_on_where_retention_deletes_them(store: OneNode) -> None:
    await store.create("t", retention_bytes=1)
    for _ in range(40):
        await store.publish(T, bytes(500))
    backend = store.cluster_backend
    checking = asyncio.ensure_future(backend.verify())
    await asyncio.sleep(0)
    assert await backend.expire() > 0
    await asyncio.wait_for(checking, 60)


# --- ways of syncing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["interval:60000", "none"])
async def test_weaker_sync_acknowledges_at_once_and_a_kill_costs_nothing(tmp_path: Path, sync: str) -> None:
    store = alone(tmp_path / "data", sync=sync)
    await store.open()
    await fill_topics(store)
    appended = store.append(T, values_batch(b"message 20"))
    assert appended.done() and await appended == 20
    assert await store.read(T, 20) == [b"message 20"]
    await store.kill()
    await store.open()
    assert await store.read_all(T) == {i: b"message %d" % i for i in range(21)}
    assert store.cursor("t", "reader") == {0: 7}
    assert await store.publish(T, b"goes on") == 21
    await store.stop()


@pytest.mark.parametrize(("sync", "is_synced"), [("interval:20", True), ("none", False)])
async def test_messages_are_synced_at_intervals_or_left_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, is_synced: bool
) -> None:
    store = alone(tmp_path / "data", sync=sync)
    await store.open()
    await store.create("t")
    synced: list[str] = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        synced.append(path_of(fd).suffix)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for number in range(2):
        await store.publish(T, b"%d" % number)
        if is_synced:
            await until(lambda number=number: synced.count(".log") > number, "the log is synced")  # type: ignore[misc]
    if not is_synced:
        await asyncio.sleep(0.1)
        assert ".log" not in synced
    await store.stop()


# --- retention ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["group", "interval:20", "none"])
async def test_retention_works_with_every_way_of_syncing(tmp_path: Path, sync: str) -> None:
    store = alone(tmp_path / "data", sync=sync)
    await store.open()
    await store.create("t", retention_ms=1_000)
    for _ in range(40):
        await store.publish(T, bytes(500), timestamp_ms=store.clock.now)
    store.clock.now += 5_000
    backend = store.cluster_backend
    async with asyncio.timeout(60):
        while segments_of(store)[0].name.startswith("0" * 20):
            await backend.expire()
            await asyncio.sleep(0.01)
        while backend.start_offset(T) < 40:  # the newest segment too, though nobody publishes any more
            await backend.expire()
            await asyncio.sleep(0.01)
    assert len(segments_of(store)) == 1
    await store.restart()
    assert (store.backend.start_offset(T), store.backend.end_offset(T)) == (40, 40)
    await store.stop()


@pytest.mark.parametrize("by", ["retention_ms", "retention_bytes"])
async def test_retention_keeps_what_a_reader_has_not_passed_for_as_long_as_it_is_told(store: OneNode, by: str) -> None:
    await store.create("t", **{by: 1_000})
    await store.create("unread", **{by: 1_000})
    for _ in range(40):
        await store.publish(T, bytes(500), timestamp_ms=store.clock.now)
        await store.publish(PartitionId(TopicName("unread"), 0), bytes(500), timestamp_ms=store.clock.now)
    backend = store.cluster_backend
    backend.retention_wait = RetentionWait((CursorName("archive"), CursorName("other")), wait_ms=10_000)
    await store.set_cursor("t", "archive", {0: 20})
    await store.set_cursor("t", "nobody", {0: 0})
    store.clock.now += 5_000

    async def expired() -> int:
        before = -1
        while before != (before := backend.start_offset(T)) or await backend.expire():
            await asyncio.sleep(0.01)
        return backend.start_offset(T)

    start = await expired()
    assert 0 < start <= 20, "what was passed goes, in whole segments"
    assert backend.start_offset(PartitionId(TopicName("unread"), 0)) > 20, "where nobody reads, nobody is waited for"
    await store.set_cursor("t", "other", {0: start})
    await store.set_cursor("t", "archive", {0: 40})
    assert await expired() == start, "the slowest reader counts"
    store.clock.now += 5_999 if by == "retention_ms" else 4_999
    assert await expired() == start
    store.clock.now += 2
    assert await expired() > 30, "it did not come back for too long"


async def test_full_segments_do_not_pile_up_as_open_files(tmp_path: Path) -> None:
    store = alone(tmp_path / "data", sync="none")
    await store.open()
    await store.create("t")
    for _ in range(300):
        await store.publish(T, bytes(2_000))
    segments = len(segments_of(store))

    def open_segments() -> int:
        paths = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(path.suffix == ".log" and path.is_relative_to(tmp_path) for path in paths)

    async with asyncio.timeout(60):
        while open_segments() > 20:
            await asyncio.sleep(0.01)
    assert segments > 100
    await store.stop()


async def test_retention_does_not_stumble_over_a_topic_that_is_being_deleted(store: OneNode) -> None:
    """Else the loop that runs it ends, and no topic expires any more."""
    await store.create("t", retention_ms=1)
    await store.create("u", retention_ms=1)
    backend = store.cluster_backend
    deleting = asyncio.ensure_future(backend.delete_topic(T.topic))
    while not deleting.done():
        await backend.expire()
        await asyncio.sleep(0)
    await deleting


# --- failures while it runs ---------------------------------------------------------------------------


async def test_failed_sync_fails_all_that_wait_and_hides_what_was_not_synced(
    store: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create("t")
    await store.publish(T, b"synced")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        waiting = [store.backend.append(T, values_batch(b"%d" % i)) for i in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, StorageFailed) for outcome in outcomes)
    # The disk works again, or says so: nothing is believed before a restart.
    with pytest.raises(StorageFailed):
        store.backend.append(T, values_batch(b"later"))
    assert store.backend.problem() is not None
    assert store.backend.end_offset(T) == 1
    assert await store.read(T) == [b"synced"]
    await store.restart()
    assert (await store.read(T))[0] == b"synced"
    assert store.backend.problem() is None
    await store.publish(T, b"works again")


async def test_full_disk_is_a_problem_only_while_it_is_full(store: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.create("t")

    def full(fd: int, buffers: object, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        for _ in range(2):
            with pytest.raises(DiskFull):
                store.backend.append(T, values_batch(b"x"))
        assert "full" in (store.backend.problem() or "")
    assert await store.publish(T, b"fits") == 0
    assert store.backend.problem() is None


async def test_acknowledgement_waits_for_the_disk(store: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.create("t")
    allowed = threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        assert allowed.wait(20)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    appended = store.backend.append(T, values_batch(b"x"))
    await asyncio.sleep(0.05)
    assert not appended.done(), "acknowledged before the disk had it"
    assert await store.read(T) == []
    allowed.set()
    assert await asyncio.wait_for(appended, 60) == 0
    assert await store.read(T) == [b"x"]


async def test_reader_beyond_the_end_does_not_miss_what_comes_next(tmp_path: Path) -> None:
    """With a weaker sync a power loss may take messages a reader had already; new ones take their offsets."""
    store = alone(tmp_path / "data", sync="none")
    await store.open()
    await store.create("t")
    for i in range(10):
        await store.publish(T, b"%d" % i)
    await store.set_cursor("t", "reader", {0: 10})
    await store.kill()
    (file,) = segments_of(store)
    os.truncate(file, frame_positions(file)[6][0])
    for path in file.parent.glob("*.index"):
        path.unlink()
    await store.open()
    assert store.backend.end_offset(T) == 6
    assert store.cursor("t", "reader") == {0: 6}
    assert await store.publish(T, b"new") == 6
    await store.restart()
    assert store.cursor("t", "reader") == {0: 6}
    await store.stop()

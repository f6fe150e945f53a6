"""A message that is sent twice is stored once, and one that is sent once is never taken for another."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from asyncio import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.batches import ForeignRecord, foreign_batch, messages_batch
from testkit.sizes import examples

from holdfast.broker.dedupe import DedupeWindow
from holdfast.model.errors import BadMessageId, DiskFull, HoldfastError, StorageFailed
from holdfast.model.ids import Offset, TimestampMs
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.wire import record_batch
from tests.broker.conftest import Desk


async def test_resend_is_acknowledged_with_the_first_offset_and_not_stored(desk: Desk) -> None:
    (first,) = await desk.send(("a", b"one"))
    (other,) = await desk.send(("b", b"two"))
    (again,) = await desk.send(("a", b"one"))
    assert (first.offset, first.duplicate) == (0, False)
    assert (other.offset, other.duplicate) == (1, False)
    assert (again.offset, again.duplicate) == (0, True)
    assert await desk.values() == [b"one", b"two"]


async def test_resend_after_a_restart_is_recognised(desk: Desk) -> None:
    for i in range(50):
        await desk.send((f"id-{i}", b"%d" % i))
    for _ in range(3):
        await desk.restart()
        results = [(await desk.send((f"id-{i}", b"%d" % i)))[0] for i in range(50)]
        assert [(result.offset, result.duplicate) for result in results] == [(i, True) for i in range(50)]
    assert await desk.values() == [b"%d" % i for i in range(50)]


async def test_same_id_twice_in_one_request_is_stored_once(desk: Desk) -> None:
    results = await desk.send(("a", b"1"), (None, b"2"), ("a", b"1"), ("b", b"3"), ("a", b"1"), (None, b"2"))
    assert [result.offset for result in results] == [0, 1, 0, 2, 0, 3]
    assert [result.duplicate for result in results] == [False, False, True, False, True, False]
    assert await desk.values() == [b"1", b"2", b"3", b"2"]


async def test_messages_without_ids_are_never_taken_for_one_another(desk: Desk) -> None:
    for _ in range(3):
        await desk.send((None, b"same"), (None, b"same"))
    assert await desk.values() == [b"same"] * 6


async def test_resend_while_the_first_is_being_stored_waits_for_it(desk: Desk, slow_disk: threading.Event) -> None:
    """Else it would be acknowledged for a message that may never reach the disk."""
    slow_disk.set()
    await desk.broker.create_topic("t", TopicConfig())
    slow_disk.clear()
    first = desk.send(("a", b"one"), ("b", b"two"))
    again = desk.send(("b", b"two"), ("c", b"three"))
    await asyncio.sleep(0.05)
    assert not first.done() and not again.done()
    slow_disk.set()
    assert [(r.offset, r.duplicate) for r in await first] == [(0, False), (1, False)]
    assert [(r.offset, r.duplicate) for r in await again] == [(1, True), (2, False)]
    assert await desk.values() == [b"one", b"two", b"three"]


async def test_resend_is_not_acknowledged_when_the_first_could_not_be_stored(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.send(("before", b"0"))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        first, again = desk.send(("a", b"1")), desk.send(("a", b"1"))
        for sent in (first, again):
            with pytest.raises(StorageFailed):
                await sent
    await desk.restart()
    (result,) = await desk.send(("a", b"1"))
    assert result.offset == 1
    assert await desk.values() == [b"0", b"1"], "the resend is lost, or there twice"


async def test_failed_append_forgets_its_ids(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.send(("before", b"0"))

    def full(fd: int, buffers: object, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        for _ in range(2):
            with pytest.raises(DiskFull):
                await desk.send(("a", b"1"))
    (result,) = await desk.send(("a", b"1"))
    assert (result.offset, result.duplicate) == (1, False)
    assert await desk.values() == [b"0", b"1"]


async def test_window_holds_as_many_ids_as_it_says(desk: Desk) -> None:
    desk.use(dedupe_ids_max=10)
    for turn in range(2):
        for i in range(15):
            await desk.send((f"{turn}-{i}", b"x"))
        for _ in range(2):
            for i in range(5, 15):
                (result,) = await desk.send((f"{turn}-{i}", b"x"))
                assert result.duplicate, f"one of the newest ten ids is forgotten: {i}"
            await desk.restart()
        (oldest,) = await desk.send((f"{turn}-0", b"x"))
        assert not oldest.duplicate


async def test_window_holds_ids_as_long_as_it_says(desk: Desk) -> None:
    desk.use(dedupe_age_ms_max=1_000)
    await desk.send(("a", b"x"))
    desk.clock.now += 600
    await desk.send(("b", b"x"))
    desk.clock.now += 400
    for _ in range(2):
        assert (await desk.send(("a", b"x")))[0].duplicate
        assert (await desk.send(("b", b"x")))[0].duplicate
        await desk.restart()
    desk.clock.now += 1
    for _ in range(2):
        assert (await desk.send(("b", b"x")))[0].duplicate
        await desk.restart()
    assert not (await desk.send(("a", b"x")))[0].duplicate
    assert len(await desk.values()) == 3


async def test_clock_that_is_put_right_by_hours_makes_nobody_forget(desk: Desk) -> None:
    passed_ms = 0
    desk.use(dedupe_age_ms_max=1_000, steady_ms=lambda: passed_ms)
    await desk.send(("a", b"x"))
    for jump_ms in (7_200_000, -14_400_000):
        desk.clock.now += jump_ms
        assert (await desk.send(("a", b"x")))[0].duplicate
    passed_ms = 1_001
    assert not (await desk.send(("a", b"x")))[0].duplicate, "an id is remembered for longer than it says"


async def test_recreated_topic_knows_nothing_of_the_ids_before(desk: Desk) -> None:
    await desk.send(("a", b"old"))
    await desk.broker.delete_topic("t")
    (auto_created,) = await desk.send(("a", b"new"))
    assert (auto_created.offset, auto_created.duplicate) == (0, False), "an acknowledged message was thrown away"
    await desk.broker.delete_topic("t")
    await desk.broker.create_topic("t", TopicConfig(partitions=2))
    (created,) = await desk.send(("a", b"newest"))
    assert not created.duplicate
    assert await desk.values(partition=created.partition) == [b"newest"]


async def test_resend_meets_its_partition(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(partitions=5))
    first = {f"id-{i}": (await desk.send((f"id-{i}", b"x")))[0] for i in range(40)}
    assert len({result.partition for result in first.values()}) == 5
    await desk.restart()
    for message_id, result in first.items():
        (again,) = await desk.send((message_id, b"x"))
        assert (again.partition, again.offset, again.duplicate) == (result.partition, result.offset, True)


async def test_batch_of_a_client_with_ids_is_deduplicated_message_by_message(desk: Desk) -> None:
    def batch(*ids: str) -> bytes:
        return bytes(messages_batch(*[NewMessage(value=each.encode(), id=each, key=b"k") for each in ids]))

    await desk.broker.create_topic("t", TopicConfig())
    (first,) = await desk.broker.publish_batches("t", 0, [batch("a", "b")])
    assert (first.base_offset, first.count, first.duplicates) == (0, 2, 0)
    await desk.restart()
    (again,) = await desk.broker.publish_batches("t", 0, [batch("b", "c", "a")])
    assert (again.count, again.duplicates, again.offsets) == (3, 2, [1, 2, 0])
    assert await desk.values() == [b"a", b"b", b"c"]
    assert [message.id for message in await desk.messages()] == ["a", "b", "c"]


async def test_batch_of_a_client_without_ids_is_stored_as_it_came(desk: Desk) -> None:
    theirs = foreign_batch([ForeignRecord(i, 1_000 + i, b"k%d" % i, b"v%d" % i, [("h", b"x")]) for i in range(3)])
    await desk.broker.create_topic("t", TopicConfig())
    for expected in (0, 3):
        (published,) = await desk.broker.publish_batches("t", 0, [theirs])
        assert (published.base_offset, published.count, published.offsets) == (expected, 3, None)
    stored = await desk.broker.read_batches("t", 0, Offset(3), 1)
    assert bytes(stored[0][16:]) == theirs[16:]


@pytest.mark.parametrize("ids", [(b"\xff", b"\xfe"), (b"a\xff", b"a\x80")])
async def test_ids_that_are_no_text_are_refused_and_not_mixed_up(desk: Desk, ids: tuple[bytes, bytes]) -> None:
    """Two different ids that decode to the same text would make the second message vanish, acknowledged."""
    await desk.broker.create_topic("t", TopicConfig())
    accepted = 0
    for number, each in enumerate(ids):
        record = ForeignRecord(0, 1_000, None, b"%d" % number, [(record_batch.ID_HEADER, each)])
        theirs = foreign_batch([record])
        try:
            (published,) = await desk.broker.publish_batches("t", 0, [theirs])
        except HoldfastError as error:
            assert error.code in ("bad_id", "bad_batch")
            continue
        assert published.duplicates == 0
        accepted += 1
    assert len(await desk.values()) == accepted, "an acknowledged message was thrown away"


@pytest.mark.parametrize("message_id", [None, "real"])
async def test_header_that_poses_as_an_id_does_not_break_deduplication(desk: Desk, message_id: str | None) -> None:
    """It is refused, or it is the id; but a resend must be recognised after a restart as before it."""
    message = NewMessage(value=b"x", id=message_id, headers=[(record_batch.ID_HEADER, b"posed")])
    try:
        await desk.broker.publish("t", [message])
    except HoldfastError as error:
        assert error.code in ("bad_message", "bad_id")
        return
    duplicates = []
    for _ in range(2):
        duplicates.append((await desk.broker.publish("t", [message]))[0].duplicate)
        await desk.restart()
    assert duplicates[0] == duplicates[1], "a resend is stored again, or thrown away, only because of a restart"
    (stored, *_) = await desk.messages()
    assert stored.id in (message_id, "0-0"), "a reader sees an id its publisher did not give"


async def test_value_that_holds_the_id_marker_is_no_id(desk: Desk) -> None:
    value = b"x" + record_batch.ID_MARKER + b"\x02a"
    theirs = bytes(messages_batch(NewMessage(value=value)))
    await desk.broker.create_topic("t", TopicConfig())
    for _ in range(2):
        (published,) = await desk.broker.publish_batches("t", 0, [theirs])
        assert published.duplicates == 0
    assert await desk.values() == [value, value]


@pytest.mark.parametrize("bad", ["", "a\nb", "x" * 251, "\x00", "é" * 126, "\ud800"])
async def test_bad_id_is_refused_before_anything_is_stored(desk: Desk, bad: str) -> None:
    with pytest.raises(BadMessageId):
        await desk.send(("good", b"1"), (bad, b"2"))
    assert desk.broker.topics() == []


async def test_random_resends_leave_each_message_once(desk: Desk) -> None:
    rolled = random.Random(11)
    sent: list[str] = []
    pending = []
    for i in range(300):
        if sent and rolled.random() < 0.5:
            each = rolled.choice(sent)
        else:
            each = f"id-{i}"
            sent.append(each)
        pending.append(desk.send((each, each.encode())))
        if rolled.random() < 0.1:
            await asyncio.gather(*pending)
            pending.clear()
        if rolled.random() < 0.02:
            await asyncio.gather(*pending)
            pending.clear()
            await desk.restart()
    await asyncio.gather(*pending)
    assert await desk.values() == [each.encode() for each in sent]


# --- the window itself, against a list ------------------------------------------------------------------


@examples(100, 3_000)
@given(
    ids_max=st.integers(1, 6),
    age=st.integers(1, 20),
    steps=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 8)), max_size=40),
)
def test_window_remembers_the_newest_ids_and_no_others(ids_max: int, age: int, steps: list[tuple[str, int]]) -> None:
    window = DedupeWindow(ids_max=ids_max, age_ms_max=age)
    log: list[tuple[int, str, int]] = []
    now = 0
    for offset, (message_id, passed) in enumerate(steps):
        now += passed
        window.remember(message_id, Offset(offset), TimestampMs(now))
        log.append((now, message_id, offset))
        for each in "abcdefgh":
            newest = [entry for entry in log[-ids_max:] if entry[0] >= now - age]
            expected = next((entry[2] for entry in reversed(newest) if entry[1] == each), None)
            assert window.stored_offset(each, TimestampMs(now)) == expected
        assert len(window) <= ids_max


async def test_window_forgets_an_id_whose_append_was_cancelled() -> None:
    window = DedupeWindow(ids_max=10, age_ms_max=10)
    for outcome in ("cancelled", "failed"):
        appended: Future[Offset] = asyncio.get_running_loop().create_future()
        window.storing({"a": 0}, appended, TimestampMs(0))
        assert window.pending("a") == (appended, 0)
        if outcome == "cancelled":
            appended.cancel()
        else:
            appended.set_exception(DiskFull("no room"))
        await asyncio.sleep(0)
        assert window.pending("a") is None
        assert window.stored_offset("a", TimestampMs(0)) is None

"""What transactions promise, on every store: all or nothing, once, in order, whatever a writer names or repeats."""

from __future__ import annotations

import asyncio
import base64

import msgspec
import pytest
from testkit.wait import until

from holdfast.model.errors import (
    BadReceipt,
    BadTopicName,
    BadValue,
    BadWriter,
    PartitionNotFound,
    StagedExpired,
    StagingFull,
    TopicNotFound,
    TransactionCommitted,
    WriterNotFound,
)
from holdfast.model.ids import Offset, PartitionId, TimestampMs, WriterName
from holdfast.model.messages import NewMessage
from holdfast.model.names import DONE_CURSOR
from holdfast.model.transactions import CONTENTS_BITS, Contents
from holdfast.wire import record_batch, stamps
from holdfast.wire.transactions import DECISIONS, STAGED, Commit, decode_decision, encode_decision
from tests.transactions.desk import EXPIRY_MS, Desk, W, later


async def test_nothing_is_seen_before_the_commit_and_everything_after(desk: Desk) -> None:
    await desk.create("t", partitions=2)
    await desk.create("u")
    receipts = [
        await desk.stage(0, b"a", b"b"),
        await desk.stage(0, b"c", partition=1),
        await desk.stage(0, b"d"),
        await desk.stage(0, b"e", topic="u"),
    ]
    assert await desk.values("t", 0) == await desk.values("t", 1) == await desk.values("u") == []
    result = await desk.commit(0, *receipts)
    assert (result.duplicate, result.last_number) == (False, 0)
    assert await desk.values("t", 0) == [b"a", b"b", b"d"], "in the order of the receipts"
    assert await desk.values("t", 1) == [b"c"]
    assert await desk.values("u") == [b"e"]
    described = await desk.transactions.writer("w")
    assert (described.last_number, described.committed_ms) == (0, desk.store.clock())


async def test_what_a_commit_holds_is_known_with_its_number(desk: Desk) -> None:
    """So a writer that commits a number again learns whether that was the same."""
    await desk.create()
    largest = (1 << CONTENTS_BITS) - 1
    for number, told in enumerate(
        (
            Contents(rows=0, checksum=0),
            Contents(rows=5, checksum=largest, source=0),
            Contents(rows=largest - 1, checksum=3, source=largest - 1),
            Contents(rows=1, checksum=0),
            None,
            Contents(rows=2, checksum=1),
        )
    ):
        staged = await desk.stage(number, b"x")
        for again in (told, Contents(rows=9, checksum=9)):
            result = await desk.transactions.commit("w", number, [staged.receipt], again)
            assert result.contents == told
        await desk.restart()
        assert (await desk.transactions.writer("w")).contents == told
    await desk.transactions.abort("w")
    assert (await desk.transactions.writer("w")).contents == told


def test_decisions_of_builds_with_and_without_contents_are_read_by_both() -> None:
    class Before(msgspec.Struct, array_like=True, frozen=True, tag=1):
        writer: str
        number: int
        decided_ms: int
        targets: list[object]
        parts: list[object]

    now = Commit(WriterName("w"), 7, TimestampMs(1), [], [], Contents(rows=1, checksum=2))
    before = Before("w", 7, 1, [], [])
    assert msgspec.msgpack.decode(encode_decision(now), type=Before) == before
    assert decode_decision(msgspec.msgpack.encode(before)) == Commit(WriterName("w"), 7, TimestampMs(1), [], [])


async def test_only_the_attempts_that_are_named_are_committed(desk: Desk) -> None:
    await desk.create()
    await desk.stage(0, b"lost the race")
    winner = await desk.stage(0, b"won it")
    await desk.commit(0, winner)
    assert await desk.values() == [b"won it"]


async def test_second_commit_of_a_number_is_recognised_for_ever(desk: Desk) -> None:
    await desk.create()
    first = await desk.stage(0, b"first")
    await desk.commit(0, first)
    other = None
    for _ in range(2):
        assert (await desk.commit(0, first)).duplicate
        assert (await desk.commit(0)).duplicate
        with pytest.raises(TransactionCommitted):
            other = await desk.stage(0, b"other attempt")
        later(desk.store, 100 * EXPIRY_MS)
        await desk.restart()
    assert other is None
    assert await desk.values() == [b"first"]


async def test_driver_that_comes_back_with_other_attempts_gets_the_first_result(desk: Desk) -> None:
    await desk.create()
    first, second = await desk.stage(3, b"first"), await desk.stage(3, b"second")
    results = await asyncio.gather(desk.commit(3, first), desk.commit(3, second))
    assert sorted(result.duplicate for result in results) == [False, True]
    assert await desk.values() == [b"second" if results[0].duplicate else b"first"]


async def test_numbers_may_skip_and_going_back_changes_nothing(desk: Desk) -> None:
    await desk.create()
    late = await desk.stage(4, b"four")
    await desk.commit(7, await desk.stage(7, b"seven"))
    result = await desk.commit(4, late)
    assert (result.duplicate, result.last_number) == (True, 7)
    assert await desk.values() == [b"seven"]


async def test_writers_do_not_know_each_other(desk: Desk) -> None:
    await desk.create()
    for writer in ("a", "b", "c"):
        for number in range(2):
            value = f"{writer}{number}".encode()
            await desk.commit(number, await desk.stage(number, value, writer=writer), writer=writer)
    assert await desk.values() == [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]
    assert [each.writer for each in await desk.transactions.writers()] == ["a", "b", "c"]


async def test_empty_transaction_is_recorded(desk: Desk) -> None:
    assert not (await desk.commit(0)).duplicate
    assert (await desk.commit(0)).duplicate


async def test_abort_drops_what_was_staged_and_leaves_the_number_free(desk: Desk) -> None:
    await desk.create()
    dropped = await desk.stage(0, b"dropped")
    await desk.transactions.abort("w")
    with pytest.raises(StagedExpired):
        await desk.commit(0, dropped)
    await desk.commit(0, await desk.stage(0, b"again"))
    await desk.transactions.abort("w")
    assert await desk.values() == [b"again"], "an abort takes nothing back"


async def test_what_is_too_old_cannot_be_committed_and_is_swept_away(desk: Desk) -> None:
    await desk.create()
    old = await desk.stage(5, b"old")
    later(desk.store, EXPIRY_MS + 1)
    fresh = await desk.stage(0, b"fresh")
    with pytest.raises(StagedExpired):
        await desk.commit(5, old)
    assert await desk.values() == [], "a commit that fails changes nothing"
    later(desk.store, EXPIRY_MS)
    # The next decision of that coordinator sweeps.
    await desk.commit(0, fresh)
    await _until_done(desk, 2)
    assert desk.transactions.stats.expired_pieces == 1


async def test_losers_and_committed_pieces_are_let_go_at_once(desk: Desk) -> None:
    await desk.create()
    for number in range(3):
        await desk.stage(number, b"loser")
        await desk.commit(number, await desk.stage(number, b"winner"))
    await _until_done(desk, 6)


async def _until_done(desk: Desk, pieces: int) -> None:
    backend = desk.broker.backend
    decided = PartitionId(DECISIONS, W)
    await until(lambda: (backend.cursor(STAGED, DONE_CURSOR) or {}).get(W) == pieces)
    await until(lambda: (backend.cursor(DECISIONS, DONE_CURSOR) or {}).get(W) == backend.end_offset(decided))


async def test_receipts_that_were_not_given_for_this_commit_are_refused(desk: Desk) -> None:
    await desk.create()
    mine = await desk.stage(0, b"mine")
    theirs = await desk.stage(0, b"theirs", writer="x")
    next_one = await desk.stage(1, b"next")
    forged = base64.urlsafe_b64encode(base64.urlsafe_b64decode(mine.receipt + "==")[:-16] + bytes(16)).decode()
    for receipts in ([theirs.receipt], [next_one.receipt], [mine.receipt] * 2, [forged], ["", mine.receipt], ["é"]):
        with pytest.raises(BadReceipt):
            await desk.transactions.commit("w", 0, receipts)
    assert await desk.values() == []
    assert not (await desk.commit(0, mine)).duplicate


async def test_topic_that_was_deleted_since_takes_the_commit_down_with_it(desk: Desk) -> None:
    await desk.create("t")
    await desk.create("u")
    receipts = [await desk.stage(0, b"a"), await desk.stage(0, b"b", topic="u")]
    await desk.broker.delete_topic("u")
    with pytest.raises(TopicNotFound):
        await desk.commit(0, *receipts)
    await desk.create("u")
    with pytest.raises(TopicNotFound):
        await desk.commit(0, *receipts)
    assert await desk.values("t") == [] == await desk.values("u")


async def test_what_is_wrong_with_a_stage_is_said_and_stores_nothing(desk: Desk) -> None:
    await desk.create()
    with pytest.raises(BadWriter):
        await desk.stage(0, b"a", writer="a/b")
    with pytest.raises(BadValue):
        await desk.stage(-1, b"a")
    with pytest.raises(BadValue):
        await desk.stage(2**62, b"a")
    with pytest.raises(PartitionNotFound):
        await desk.stage(0, b"a", partition=1)
    with pytest.raises(BadTopicName):
        await desk.stage(0, b"a", topic=STAGED)
    with pytest.raises(WriterNotFound):
        await desk.transactions.writer("w")
    await desk.reopen(staged_bytes_max=1)
    await desk.stage(0, b"a")
    with pytest.raises(StagingFull):
        await desk.stage(0, b"a")


async def test_internal_topics_are_nobodys_business(desk: Desk) -> None:
    await desk.create()
    await desk.stage(0, b"a")
    assert [each.topic for each in desk.broker.topics()] == ["t"]
    for name in (STAGED, DECISIONS):
        with pytest.raises(BadTopicName):
            desk.broker.publish_values(name, [b"x"])
        with pytest.raises(BadTopicName):
            await desk.broker.read(name, 0, Offset(0), 1, 1)
        with pytest.raises(BadTopicName):
            await desk.broker.delete_topic(name)
        with pytest.raises(BadTopicName):
            desk.broker.describe_topic(name)
    await desk.commit(0)
    assert desk.broker.cursors() == []


async def test_keys_pick_the_partitions_and_everything_of_a_message_is_kept(desk: Desk) -> None:
    await desk.create("t", partitions=4)
    messages = [
        NewMessage(value=b"%d" % i, key=b"k%d" % (i % 5), id=f"id-{i}", headers=[("h", b"x")]) for i in range(20)
    ]
    receipts = await desk.stage_messages(0, messages)
    await desk.commit(0, *receipts)
    published = await desk.broker.publish("t", [NewMessage(value=b"p", key=b"k%d" % i) for i in range(5)])
    found = {}
    for number in range(4):
        read, _ = await desk.broker.read("t", number, Offset(0), 100, 1 << 20)
        for message in read:
            found[message.value] = (number, message.key, message.id, list(message.headers))
    for i in range(20):
        assert found[b"%d" % i] == (published[i % 5].partition, b"k%d" % (i % 5), f"id-{i}", [("h", b"x")])


async def test_stamped_batch_that_a_client_publishes_is_a_message_like_any_other(desk: Desk) -> None:
    await desk.create("t")
    await desk.create("copy")
    await desk.commit(0, await desk.stage(0, b"a"))
    batches = await desk.broker.read_batches("t", 0, Offset(0), 1 << 20)
    for _ in range(2):
        await desk.broker.publish_batches("copy", 0, batches)
    stored = await desk.broker.read_batches("copy", 0, Offset(0), 1 << 20)
    assert await desk.values("copy") == [b"a", b"a"]
    assert not any(map(stamps.is_stamped, stored))
    assert all(record_batch.crc_matches(batch, record_batch.header(batch)) for batch in stored)


async def test_writer_that_is_forgotten_begins_anew(desk: Desk) -> None:
    await desk.create()
    await desk.commit(5, await desk.stage(5, b"a"))
    await desk.transactions.forget("w")
    with pytest.raises(WriterNotFound):
        await desk.transactions.forget("w")
    await desk.commit(0, await desk.stage(0, b"b"))
    assert await desk.values() == [b"a", b"b"]


async def test_decided_commit_is_done_after_a_restart_although_nobody_asks(desk: Desk) -> None:
    await desk.create("t", partitions=2)
    receipts = [await desk.stage(0, b"%d" % i, partition=i % 2) for i in range(6)]
    await desk.close()
    # Nobody coordinates: the decision is made, and its answer never comes.
    waiting = asyncio.ensure_future(desk.commit(0, *receipts))
    await until(lambda: desk.broker.backend.end_offset(PartitionId(DECISIONS, W)) > 0)
    waiting.cancel()
    later(desk.store, 100 * EXPIRY_MS)
    await desk.restart()

    async def is_done() -> bool:
        return len(await desk.values("t", 0)) + len(await desk.values("t", 1)) == 6

    await until(is_done)
    assert (await desk.commit(0)).duplicate
    assert await desk.values("t", 0) == [b"0", b"2", b"4"], "data of a decided commit never expires"

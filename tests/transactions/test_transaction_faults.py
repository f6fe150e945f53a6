"""What must not stop a coordinator, show a part of a transaction or cost others their turn, however it comes about."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from testkit.batches import values_batch
from testkit.wait import until

from holdfast.broker.stamped import StampedAppends
from holdfast.model.errors import DamagedData, LeaderChanged, StagedExpired, StagingFull, TooLarge, TooManyWriters
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName, WriterName
from holdfast.model.limits import BATCHES_PER_STAGE_MAX
from holdfast.model.messages import NewMessage
from holdfast.model.names import DONE_CURSOR
from holdfast.model.topics import TopicConfig
from holdfast.model.transactions import CONTENTS_BITS, Contents, StageReceipt
from holdfast.transactions import copying, staging
from holdfast.transactions.coordinator import Coordinator
from holdfast.transactions.copying import Copying
from holdfast.transactions.writers import Writers, restored
from holdfast.wire import record_batch
from holdfast.wire.transactions import (
    DECISIONS,
    STAGED,
    Commit,
    decode_decision,
    decode_receipt,
    encode_receipt,
)
from tests.transactions.desk import OTHER, Desk, W, desk_over, later
from tests.transactions.test_transaction_stores import expire


def done_with(desk: Desk) -> int:
    return (desk.store.backend.cursor(STAGED, DONE_CURSOR) or {}).get(W, 0)


def moved(desk: Desk, receipt: StageReceipt, offset: int) -> str:
    """A receipt as it was given by a log that has something else, or nothing, at that offset now."""
    key = desk.transactions._staging.key()
    given = decode_receipt(receipt.receipt, key)
    return encode_receipt(msgspec.structs.replace(given, offset=Offset(offset)), key)


async def test_receipt_for_what_its_log_lost_is_refused_and_stops_nobody(either: Desk) -> None:
    desk = either
    await desk.create()
    mine, same_writer = await desk.stage(1, b"mine"), await desk.stage(1, b"mine as well")
    theirs = await desk.stage(1, b"theirs", writer=OTHER)
    kept = await desk.stage(1, b"kept")
    for offset in (1, 2, 4, 50):  # a piece of its own, of another writer, the end, and beyond it
        with pytest.raises(StagedExpired):
            await desk.transactions.commit("w", 1, [kept.receipt, moved(desk, mine, offset)])
    assert await desk.values() == [], "the piece that is there is not shown without the others"
    await desk.commit(1, theirs, writer=OTHER)
    await desk.commit(1, mine, same_writer, kept)
    assert await desk.values() == [b"theirs", b"mine", b"mine as well", b"kept"]
    assert desk.transactions.stats.restarts == desk.transactions.stats.lost_pieces == 0


async def test_clock_that_jumps_ahead_never_shows_a_part(either: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = either
    await desk.create("t")
    receipts = [await desk.stage(1, b"x" * 3000) for _ in range(6)]
    later(desk.store, 3 * 60_000)
    await desk.commit(1, writer=OTHER)
    await until(lambda: done_with(desk) == 6)
    later(desk.store, -3 * 60_000)
    real, sent = Copying._send, 0

    async def send(self: Copying, part: Any, so_far: list[int]) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:  # a store deletes when it likes
            await expire(desk.store.backend)
        await real(self, part, so_far)

    monkeypatch.setattr(Copying, "_send", send)
    with pytest.raises(StagedExpired):
        await desk.commit(1, *receipts)
    assert await desk.values() == []

    async def is_committed() -> bool:
        try:
            await desk.commit(1, *[await desk.stage(1, b"again") for _ in range(2)])
        except StagedExpired:  # a sweep that began while the clock was ahead
            return False
        return True

    await until(is_committed)
    assert await desk.values() == [b"again"] * 2


async def test_small_batches_are_bounded_in_a_stage_and_under_way(alone: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await alone.create()
    one = bytes(values_batch(b"", timestamp_ms=alone.store.clock()))
    with pytest.raises(TooLarge, match="batches"):
        await alone.transactions.stage_batches("w", 1, "t", 0, [one] * (BATCHES_PER_STAGE_MAX + 1))
    count = 2 * copying._UNDER_WAY_BATCHES_MAX
    receipt = await alone.transactions.stage_batches("w", 1, "t", 0, [one] * count)
    real, most = Copying._settle, 0

    async def settle(self: Copying, bytes_max: int, batches_max: int) -> None:
        nonlocal most
        most = max(most, len(self._under_way))
        await real(self, bytes_max, batches_max)

    monkeypatch.setattr(Copying, "_settle", settle)
    await alone.commit(1, receipt)
    assert 1 < most <= copying._UNDER_WAY_BATCHES_MAX
    assert len(await alone.values()) == count


async def test_commit_goes_on_where_retention_took_what_it_had_stored(
    alone: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = alone
    await desk.broker.create_topic("t", TopicConfig(partitions=1, retention_bytes=1))
    receipts = [await desk.stage(1, b"x" * 3000 + b"%d" % i) for i in range(6)]
    monkeypatch.setattr(copying, "_UNDER_WAY_BYTES_MAX", 1)
    real, calls = StampedAppends.append, 0

    async def append(self: StampedAppends, partition: PartitionId, batch: bytearray) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            for _ in range(2):
                await desk.broker.publish("t", [NewMessage(value=b"y" * 5000)])
            await expire(desk.store.backend)
            assert desk.store.backend.start_offset(partition) > 0
            self._known.clear()  # as a new leader that knows nothing yet
            raise LeaderChanged("the leader changed")
        return await real(self, partition, batch)

    monkeypatch.setattr(StampedAppends, "append", append)
    await desk.commit(1, *receipts)
    found = [value[-1:] for value in await desk.values() if value.startswith(b"x")]
    assert found == [b"3", b"4", b"5"], "those before were stored, and retention took them"


async def test_damaged_piece_costs_nothing_behind_it(either: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a crash came in the middle of the copying: places follow from the commit alone."""
    desk = either
    await desk.create()
    receipts = [await desk.stage(1, value) for value in (b"a", b"b", b"c", b"d")]
    real_send, sent = Copying._send, 0

    async def send(self: Copying, part: Any, so_far: list[int]) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            await self._settle(0, 0)
            await asyncio.Event().wait()  # the process dies behind the second of four
        await real_send(self, part, so_far)

    with monkeypatch.context() as patch:
        patch.setattr(Copying, "_send", send)
        committing = asyncio.ensure_future(desk.commit(1, *receipts))
        async with asyncio.timeout(10):
            while sent < 3 or len(await desk.values()) < 2:
                await asyncio.sleep(0.01)
        await desk.close()
        committing.cancel()
    await desk.store.restart()
    real = desk.store.backend.read

    async def read(partition: PartitionId, offset: Offset, bytes_max: int) -> Any:
        if partition.topic == STAGED and offset in (0, 2):
            raise DamagedData("a hole", next_offset=offset + 1)
        return await real(partition, offset, bytes_max)

    monkeypatch.setattr(desk.store.backend, "read", read)
    desk.open()
    assert (await desk.commit(1)).duplicate or desk.transactions.stats.committed
    assert await desk.values() == [b"a", b"b", b"d"]
    assert desk.transactions.stats.lost_pieces == 2


async def test_topic_made_anew_in_the_middle_gets_nothing_of_the_old_ones(
    alone: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = alone
    await desk.create()
    receipt = await desk.stage(1, b"for the old topic")
    real = Copying._settle

    async def settle(self: Copying, bytes_max: int, batches_max: int) -> None:
        await real(self, bytes_max, batches_max)
        if batches_max:
            await desk.broker.delete_topic("t")
            await desk.create()

    monkeypatch.setattr(Copying, "_settle", settle)
    await desk.commit(1, receipt)
    assert await desk.values() == []


@pytest.mark.parametrize("dies_before_it_notes", [False, True])
async def test_writer_that_was_forgotten_does_not_come_back(
    alone: Desk, dies_before_it_notes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = alone
    await desk.create()
    with monkeypatch.context() as patch:
        if dies_before_it_notes:
            patch.setattr(Coordinator, "_note_done", lambda self: None)
        await desk.commit(7, await desk.stage(7, b"old life"))
        await desk.transactions.forget("w")
        await desk.restart()
    assert await desk.transactions.writers() == []
    assert not (await desk.commit(0, await desk.stage(0, b"new life"))).duplicate
    assert [each.last_number for each in await desk.transactions.writers()] == [0]
    assert await desk.values() == [b"old life", b"new life"]


async def test_lease_that_lapses_and_comes_back_does_not_stop_the_coordinator(
    alone: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = alone
    await desk.create()
    await desk.commit(1, await desk.stage(1, b"a"))
    receipt = await desk.stage(2, b"b")
    backend, has_lapsed = desk.store.backend, True
    real = backend.reign
    monkeypatch.setattr(
        backend, "reign", lambda place: None if has_lapsed and place.topic == DECISIONS else real(place)
    )
    committing = asyncio.ensure_future(desk.commit(2, receipt))
    await until(lambda: desk.transactions.stats.restarts > 0)
    has_lapsed = False  # and nobody is told
    assert not (await committing).duplicate
    assert await desk.values() == [b"a", b"b"]


async def test_what_is_committed_behind_an_abandoned_piece_takes_no_room(tmp_path: Path) -> None:
    async with desk_over("alone", tmp_path, staged_bytes_max=20_000) as desk:
        await desk.create()
        await desk.stage(1, b"abandoned", writer=OTHER)
        for number in range(15):
            await desk.commit(number, await desk.stage(number, b"x" * 3000))
        with pytest.raises(StagingFull, match="committed wait behind"):
            for number in range(15, 100):
                await desk.commit(number, await desk.stage(number, b"x" * 3000))
        assert number < 30, "the disk has its bound, too"
        await desk.transactions.abort(OTHER)
        await until(lambda: done_with(desk) == number + 1)
        await expire(desk.store.backend)
        await desk.commit(number, await desk.stage(number, b"room again"))


async def test_piece_at_which_the_sweep_stands_is_read_once(alone: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = alone
    await desk.create()
    await desk.stage(1, b"abandoned", writer=OTHER)
    real, reads = desk.store.backend.read, 0

    async def read(partition: PartitionId, offset: Offset, bytes_max: int) -> Any:
        nonlocal reads
        reads += (partition.topic, partition.number, offset) == (STAGED, W, 0)
        return await real(partition, offset, bytes_max)

    monkeypatch.setattr(desk.store.backend, "read", read)
    for number in range(5):
        await desk.commit(number, await desk.stage(number, b"x"))
    await desk.transactions.abort(OTHER)
    await until(lambda: done_with(desk) == 6)
    assert reads == 1


async def test_new_writers_are_counted_once_in_a_while(alone: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = alone
    await desk.create()
    monkeypatch.setattr(staging, "WRITERS_MAX", 2)
    real, counts = Writers._names, 0

    def names(self: Writers, *prefixes: str) -> Any:
        nonlocal counts
        counts += 1
        return real(self, *prefixes)

    for writer in ("a", "b"):
        await desk.commit(0, writer=writer)
    monkeypatch.setattr(Writers, "_names", names)
    desk.transactions._writers._counted_s = float("-inf")
    for _ in range(20):
        with pytest.raises(TooManyWriters):
            await desk.stage(0, b"x", writer="c")
    assert counts == 1
    await desk.stage(1, b"x", writer="a")


async def test_what_was_noted_of_lost_decisions_is_taken_back(either: Desk) -> None:
    """With a weaker sync a power loss takes the end of a log, and cursors speak of it as before."""
    desk = either
    await desk.create()
    await desk.commit(0, await desk.stage(0, b"zero"))
    backend, name = desk.store.backend, CursorName("w.w")
    ahead = {1: Offset(50), 3: Offset(50), 4: Offset(50)}
    await backend.set_cursor(DECISIONS, name, ahead, only_forward=True)
    await backend.set_cursor(DECISIONS, CursorName(f"f.{OTHER}"), {3: Offset(50)}, only_forward=True)
    for topic in (DECISIONS, STAGED):
        await backend.set_cursor(topic, DONE_CURSOR, {W: Offset(50)}, only_forward=True)
    await desk.restart()
    await until(lambda: ("transaction_notes_taken_back", {"partition": W, "notes": 6}) in desk.events)
    assert not (await desk.commit(1, await desk.stage(1, b"one"))).duplicate
    # The same while its coordinator has not looked yet.
    await desk.store.backend.set_cursor(DECISIONS, name, {4: Offset(50)}, only_forward=True)
    assert not (await desk.commit(2, await desk.stage(2, b"two"))).duplicate
    assert not (await desk.commit(0, await desk.stage(0, b"three", writer=OTHER), writer=OTHER)).duplicate
    assert await desk.values() == [b"zero", b"one", b"two", b"three"]


async def test_what_a_lost_decision_holds_is_not_taken_for_what_the_next_one_holds(either: Desk) -> None:
    desk = either
    await desk.create()
    await desk.transactions.commit("w", 0, [(await desk.stage(0, b"zero")).receipt], Contents(rows=1, checksum=1))
    lost = restored(WriterName("w"), 3, 0, 1, Contents(rows=77, checksum=(1 << CONTENTS_BITS) - 1, source=7))
    positions = {place: Offset(position) for place, position in lost[1].items()}
    await desk.store.backend.set_cursor(DECISIONS, lost[0], positions, only_forward=True)
    await desk.restart()
    await until(lambda: any(event == "transaction_notes_taken_back" for event, _ in desk.events))
    assert (await desk.transactions.writer("w")).contents is None
    told = Contents(rows=1, checksum=2)
    receipt = await desk.stage(4, b"four")
    assert (await desk.transactions.commit("w", 4, [receipt.receipt], told)).contents == told


async def test_floor_is_where_the_target_ends_also_for_a_node_that_is_behind(
    alone: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = alone
    await desk.create()
    await desk.broker.publish("t", [NewMessage(value=b"x")] * 10)
    receipt = await desk.stage(1, b"a")
    backend, target = desk.store.backend, PartitionId(TopicName("t"), 0)
    real_end, real_catch_up, is_behind = backend.end_offset, backend.catch_up, True

    async def catch_up(partition: PartitionId) -> None:
        nonlocal is_behind
        await real_catch_up(partition)
        is_behind = is_behind and partition != target

    monkeypatch.setattr(backend, "catch_up", catch_up)
    monkeypatch.setattr(backend, "end_offset", lambda place: 0 if is_behind and place == target else real_end(place))
    await desk.commit(1, receipt)
    (decided,) = await backend.read(PartitionId(DECISIONS, W), Offset(0), 1)
    commit = decode_decision(record_batch.decode_values(decided)[0])
    assert isinstance(commit, Commit)
    assert [each.floor for each in commit.targets] == [10]

"""The time that a sender gave a message stays with it; how long its id is remembered counts from its arrival."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from testkit.serving import DEADLINE_S, serving

from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.log_target import LogTarget
from holdfast.backends.spill.settings import SpillSettings
from holdfast.broker.broker import Broker
from holdfast.broker.passing import PassingBackend
from holdfast.model.errors import Unavailable
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.node import node
from holdfast.wire import batch_builder, record_batch
from tests.broker.conftest import Desk

HOUR_MS = 3_600_000
BEGINNING_MS = 1_790_000_000_000


def timed(*messages: tuple[str | None, bytes, int]) -> bytes:
    made = [NewMessage(value=value, id=message_id) for message_id, value, _ in messages]
    return bytes(batch_builder.build_timed(made, [time_ms for _, _, time_ms in messages]))


async def test_time_of_a_message_is_kept_whether_or_not_one_beside_it_has_an_id(desk: Desk) -> None:
    desk.clock.now = BEGINNING_MS
    sent_ms = BEGINNING_MS - HOUR_MS
    batches = [
        timed((None, b"a", sent_ms), (None, b"b", sent_ms + 1)),
        timed(("c", b"c", sent_ms + 2), (None, b"d", sent_ms + 3)),
        timed(("c", b"c", sent_ms + 4), ("e", b"e", sent_ms + 5)),
    ]
    for batch in batches:
        await desk.broker.publish_batches("t", 0, [batch])
    found = [(message.value, message.timestamp_ms - sent_ms) for message in await desk.messages()]
    assert found == [(b"a", 0), (b"b", 1), (b"c", 2), (b"d", 3), (b"e", 5)]


async def test_id_of_a_message_that_is_old_when_it_arrives_is_recognised_after_a_restart(desk: Desk) -> None:
    desk.clock.now = BEGINNING_MS
    old = timed(("a", b"x", BEGINNING_MS - HOUR_MS))
    await desk.broker.publish_batches("t", 0, [old])
    desk.clock.now += 60_000
    for _ in range(2):
        (again,) = await desk.broker.publish_batches("t", 0, [old])
        assert again.duplicates == 1, "a resend within the dedupe window was stored twice"
        await desk.restart()
    desk.clock.now += 10 * 60_000
    (late,) = await desk.broker.publish_batches("t", 0, [old])
    assert late.duplicates == 0


async def test_messages_are_stamped_by_a_clock_that_was_put_right_and_no_id_is_forgotten(desk: Desk) -> None:
    desk.clock.now = BEGINNING_MS + 24 * HOUR_MS
    steady_ms = 5_000_000
    desk.use(steady_ms=lambda: steady_ms)
    await desk.send(("a", b"x"))
    desk.clock.now = BEGINNING_MS
    for _ in range(9):
        steady_ms += 60_000
        desk.clock.now += 60_000
        await desk.broker.ask_time()
        (again,) = await desk.send(("a", b"x"))
        assert again.duplicate, "an id was forgotten within the dedupe window"
    await desk.send(("b", b"y"))
    newest = (await desk.broker.read_batches("t", 0, Offset(1), 1 << 20))[-1]
    assert record_batch.header(newest).max_timestamp_ms == desk.clock.now
    steady_ms += 2 * 60_000
    (late,) = await desk.send(("a", b"x"))
    assert not late.duplicate


async def test_reader_of_the_last_minute_gets_what_arrived_in_it(desk: Desk) -> None:
    desk.clock.now = BEGINNING_MS
    await desk.broker.publish_batches("t", 0, [timed(("a", b"x", BEGINNING_MS - HOUR_MS))])
    assert await desk.broker.resolve_offset("t", 0, "-1m") == 0


class GoesAway(PassingBackend):
    """A store that is away for a while."""

    is_away = False

    def problem(self) -> str | None:
        return "it is away" if self.is_away else self.inner.problem()

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        if self.is_away:
            raise Unavailable("it is away")
        return self.inner.forward(partition, batch, has_ids=has_ids)

    async def catch_up_cursors(self) -> None:
        if self.is_away:
            raise Unavailable("it is away")
        await self.inner.catch_up_cursors()


async def test_message_that_was_kept_while_its_store_was_away_has_the_time_of_its_push(
    desk: Desk, tmp_path: Path
) -> None:
    clock = desk.clock
    clock.now = BEGINNING_MS
    store = GoesAway(desk.backend)
    spill = SpillBackend(store, LogTarget(store, tmp_path / "spill"), SpillSettings(tmp_path / "spill"), now_ms=clock)
    await spill.start()
    broker = Broker(spill, now_ms=clock)
    await broker.ensure_topic(TopicName("t"))
    store.is_away = True
    (kept,) = await broker.publish("t", [NewMessage(value=b"kept")])
    assert kept.offset == -1
    clock.now += HOUR_MS
    store.is_away = False
    while not spill.is_drained:
        await asyncio.sleep(0.01)
    await spill.stop()
    (message,) = await desk.messages()
    assert (message.value, message.timestamp_ms) == (b"kept", BEGINNING_MS)


async def test_clock_that_is_put_right_stamps_what_comes_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_ms = 24 * 3_600_000
    right_now_ms = node.now_ms
    ahead_ms = day_ms
    monkeypatch.setattr(node, "now_ms", lambda: right_now_ms() + ahead_ms)
    monkeypatch.setattr(node, "_ASK_TIME_S", 0.05)
    async with serving(tmp_path) as broker:

        async def is_stamped_ahead() -> bool:
            (published,) = await broker.node.broker.publish("t", [NewMessage(value=b"v", id=uuid4().hex)])
            batch = (await broker.node.broker.read_batches("t", 0, published.offset, 1))[-1]
            return record_batch.header(batch).max_timestamp_ms > right_now_ms() + day_ms // 2

        assert await is_stamped_ahead()
        ahead_ms = 0
        async with asyncio.timeout(DEADLINE_S):
            while await is_stamped_ahead():
                await asyncio.sleep(0.01)

"""The whole stage on a real broker and a real disk: what subscribers of a processed topic get."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from testkit.reading import read_all, values_in
from testkit.wait import until

from holdfast.broker.broker import Broker
from holdfast.broker.processing import COMMIT_MESSAGES_MAX, PROCESSOR_CURSOR
from holdfast.model.errors import BadCursorName, CursorNotFound
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.limits import MESSAGE_BYTES_MAX
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.processors.spec import ProcessorSpec
from holdfast.processors.stage import ProcessingStage
from holdfast.wire.batch_builder import build_batch
from tests.processors.processor_helpers import (
    ORDERS,
    Clock,
    Recorder,
    StartPool,
    StartStage,
    broker_on,
    processed_up_to,
    values,
)


async def test_outputs_keep_the_order_of_the_log_whatever_the_workers_take(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await broker.create_topic(ORDERS, TopicConfig(partitions=3))
    stage = await start_stage(await start_pool("sleep_ms", workers=4))
    dice = random.Random(5)
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for n in range(150):
        value = b"%d %d" % (n, dice.randrange(0, 25))
        published = await broker.publish(ORDERS, [NewMessage(value=value, key=b"k%d" % (n % 7))])
        sent[published[0].partition].append(value)
    for partition, expected in sent.items():
        await processed_up_to(broker, len(expected), partition)
        assert await values_in(broker, "orders.processed", partition) == expected
    assert stage.stats.stored == 150


async def test_subscribers_get_the_processed_value_with_key_headers_and_id(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await start_stage(await start_pool("upper"))
    await broker.publish(ORDERS, [NewMessage(value=b"a", key=b"k", id="order-1", headers=[("trace", b"t")])])
    await broker.publish(ORDERS, [NewMessage(value=b"b")])
    await processed_up_to(broker, 2)
    assert broker.delivers_from(ORDERS) == "orders.processed"
    got = await broker.read_cursor(ORDERS, "reader", messages_max=10, bytes_max=1 << 20)
    first, second = (message for _, message in got.messages)
    assert (first.value, first.key) == (b"A", b"k")
    assert list(first.headers) == [("trace", b"t"), ("holdfast-source-id", b"order-1")]
    assert (second.value, second.key, list(second.headers)) == (b"B", None, [])
    assert broker.backend.topic(TopicName("orders.processed.processed")) is None


async def test_each_cursor_that_is_listed_can_be_looked_at(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    """Also the processor's own, and one of a reader from before the topic had a processor."""
    await broker.create_topic(ORDERS, TopicConfig())
    await broker.backend.set_cursor(TopicName(ORDERS), CursorName("earlier"), {0: Offset(0)})
    await start_stage(await start_pool("upper"))
    await broker.publish(ORDERS, [NewMessage(value=b"a")])
    await processed_up_to(broker, 1)
    await broker.read_cursor(ORDERS, "reader", messages_max=10, bytes_max=1 << 20)
    await until(lambda: len(broker.cursors()) == 3)
    listed = {(each.topic, each.name) for each in broker.cursors()}
    assert listed == {("orders", PROCESSOR_CURSOR), ("orders", "earlier"), ("orders.processed", "reader")}
    assert {(each.topic, each.name) for each in broker.cursors(ORDERS)} == listed
    for topic, name in listed:
        assert broker.describe_cursor(topic, name).name == name
        found = broker.describe_cursor(ORDERS, name)
        assert (found.topic, found.name) == (topic, name)
    with pytest.raises(BadCursorName, match="where the processor of orders stands"):
        await broker.delete_cursor(ORDERS, PROCESSOR_CURSOR)
    await broker.delete_cursor(ORDERS, "earlier")
    assert {each.name for each in broker.cursors()} == {PROCESSOR_CURSOR, "reader"}
    with pytest.raises(CursorNotFound):
        broker.describe_cursor(ORDERS, "nobody")


async def test_no_reader_hides_where_the_processor_stands(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await start_stage(await start_pool("upper"))
    await broker.publish(ORDERS, [NewMessage(value=b"a")])
    await processed_up_to(broker, 1)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: broker.seek_cursor(ORDERS, PROCESSOR_CURSOR, "earliest"),
        lambda: broker.seek_cursor(f"{ORDERS}.processed", PROCESSOR_CURSOR, "earliest"),
        lambda: broker.open_cursor(ORDERS, PROCESSOR_CURSOR, "earliest"),
        lambda: broker.read_cursor(ORDERS, PROCESSOR_CURSOR, messages_max=10, bytes_max=1 << 20),
        lambda: broker.ack_cursor(ORDERS, PROCESSOR_CURSOR, {0: Offset(0)}),
        lambda: broker.pop(ORDERS, PROCESSOR_CURSOR, None, messages_max=1, bytes_max=1 << 20),
    ]
    for call in calls:
        with pytest.raises(BadCursorName, match=r"keeps the name 'holdfast\.processor' for itself"):
            await call()
    found = broker.describe_cursor(ORDERS, PROCESSOR_CURSOR)
    assert (found.topic, found.lag) == (ORDERS, 0)


async def test_what_a_processor_drops_is_not_delivered_and_not_seen_again(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    stage = await start_stage(await start_pool("drop_odd"))
    await broker.publish(ORDERS, values(*range(11)))
    await processed_up_to(broker, 11)
    assert await values_in(broker, "orders.processed") == [
        b"0",
        b"2",
        b"4",
        b"6",
        b"8",
        b"10",
    ]
    assert stage.stats.dropped == 5
    assert broker.backend.topic(TopicName("orders.dead")) is None


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"raise it", b"ValueError: cannot handle it (sample_functions.py:47)"),
        (b"hang", b"no answer within 300 ms"),
        (b"exit", b"the worker process ended: exit status 7"),
    ],
)
async def test_a_message_that_cannot_be_processed_becomes_a_dead_letter_and_the_rest_goes_on(
    bad: bytes, error: bytes, broker: Broker, start_pool: StartPool, start_stage: StartStage, log: Recorder
) -> None:
    await broker.create_topic(ORDERS, TopicConfig(partitions=2))
    stage = await start_stage(await start_pool("moody", timeout_ms=300))
    messages = [
        NewMessage(value=b"before"),
        NewMessage(value=bad, key=b"k", id="order-17", headers=[("trace", b"t")]),
        NewMessage(value=b"after"),
    ]
    await broker.publish(ORDERS, messages, partition=1)
    await processed_up_to(broker, 3, 1)
    assert await values_in(broker, "orders.processed", 1) == [b"before", b"after"]
    (letter,) = await read_all(broker, "orders.dead", 1)
    assert (letter.value, letter.key) == (bad, b"k")
    assert dict(letter.headers)["holdfast-source-id"] == b"order-17"
    assert list(letter.headers) == [
        ("trace", b"t"),
        ("holdfast-dead-topic", b"orders"),
        ("holdfast-dead-partition", b"1"),
        ("holdfast-dead-offset", b"1"),
        ("holdfast-dead-error", error),
        ("holdfast-dead-attempts", b"3"),
        ("holdfast-source-id", b"order-17"),
    ]
    assert stage.stats.dead == 1
    assert [line["offset"] for line in log.of("processor_dead_letter")] == [1]


async def test_an_output_the_broker_refuses_becomes_a_dead_letter(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await start_stage(await start_pool("moody"))
    large = b"large %d" % (MESSAGE_BYTES_MAX + 1)
    await broker.publish(ORDERS, [NewMessage(value=value) for value in (b"a", large, b"b")])
    await processed_up_to(broker, 3)
    assert await values_in(broker, "orders.processed") == [b"a", b"b"]
    (letter,) = await read_all(broker, "orders.dead")
    assert letter.value == large
    assert b"the output was refused: a message has" in dict(letter.headers)["holdfast-dead-error"]


async def test_the_largest_message_that_fails_leaves_a_letter_that_says_where_it_is(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await start_stage(await start_pool("moody", attempts_max=1))
    await broker.publish(ORDERS, [NewMessage(value=b"raise".ljust(MESSAGE_BYTES_MAX))])
    await processed_up_to(broker, 1)
    (letter,) = await read_all(broker, "orders.dead")
    headers = dict(letter.headers)
    assert letter.value == b""
    assert headers["holdfast-dead-value"] == b"left out, %d bytes" % MESSAGE_BYTES_MAX
    assert (headers["holdfast-dead-offset"], headers["holdfast-dead-attempts"]) == (b"0", b"1")


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("down_ms", [0, 24 * 60 * 60 * 1000])
async def test_a_crash_between_output_and_cursor_gives_no_output_twice(
    with_ids: bool, down_ms: int, tmp_path: Path, clock: Clock, start_pool: StartPool, log: Recorder
) -> None:
    pool = await start_pool("upper")
    count = 40

    async def run(expect: Sequence[str], cursor_back_to: int | None) -> None:
        async with broker_on(tmp_path / "data", clock) as broker:
            if cursor_back_to is None:
                messages = [NewMessage(value=b"v%d" % n, id=f"id-{n}" if with_ids else None) for n in range(count)]
                await broker.publish(ORDERS, messages)
            else:
                await broker.backend.set_cursor(ORDERS, PROCESSOR_CURSOR, {0: Offset(cursor_back_to)})
                await broker.publish(ORDERS, [NewMessage(value=b"last")])
            stage = ProcessingStage(broker, pool, handles=lambda name: True, log=log)
            await stage.start()
            await processed_up_to(broker, len(expect))
            assert await stage.stop()
            assert [message.value.decode() for message in await read_all(broker, "orders.processed")] == expect

    outputs = [f"V{n}" for n in range(count)]
    await run(outputs, None)
    clock.ahead_ms += down_ms
    # What a crash after the last publish and before the cursor's move leaves behind.
    await run([*outputs, "LAST"], count - 16)


async def test_more_than_a_commit_is_recognised_by_its_ids(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    pool = await start_pool("upper")
    count = 2 * COMMIT_MESSAGES_MAX
    stage = await start_stage(pool)
    await broker.publish(ORDERS, values(*range(count)))
    await processed_up_to(broker, count)
    await stage.stop()
    await broker.backend.set_cursor(ORDERS, PROCESSOR_CURSOR, {0: Offset(0)})
    again = await start_stage(pool)
    await processed_up_to(broker, count)
    assert await values_in(broker, "orders.processed") == [b"%d" % n for n in range(count)]
    assert (again.stats.stored, again.stats.repeated) == (0, count)


async def test_an_id_used_again_after_the_window_is_a_new_message_also_after_a_restart(
    broker: Broker, clock: Clock, start_pool: StartPool, start_stage: StartStage
) -> None:
    pool = await start_pool("upper")
    for round_number in (1, 2):
        stage = await start_stage(pool)
        await broker.publish(ORDERS, [NewMessage(value=b"beat %d" % round_number, id="heartbeat")])
        await processed_up_to(broker, round_number)
        await stage.stop()
        clock.ahead_ms += 60 * 60 * 1000
    assert await values_in(broker, "orders.processed") == [b"BEAT 1", b"BEAT 2"]


async def test_an_id_used_again_after_the_window_does_not_swallow_a_message(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await broker.create_topic(ORDERS, TopicConfig())
    for value in (b"one", b"two"):
        # Past the dedupe window, which this time does not know the id any more.
        await broker.backend.append(PartitionId(ORDERS, 0), build_batch([NewMessage(value=value, id="A")], 1))
    await start_stage(await start_pool("upper"))
    await processed_up_to(broker, 2)
    assert await values_in(broker, "orders.processed") == [b"ONE", b"TWO"]


async def test_a_topic_made_again_under_the_same_name_starts_afresh(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    stage = await start_stage(await start_pool("upper"))
    await broker.publish(ORDERS, values(1, 2))
    await processed_up_to(broker, 2)
    await broker.delete_topic(ORDERS)
    await broker.publish(ORDERS, values(3))
    await processed_up_to(broker, 1)
    assert await values_in(broker, "orders.processed") == [b"3"]
    assert stage.stats.restarts == 0


async def test_topics_are_followed_from_their_creation_and_others_left_alone(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await broker.publish("orders-before", values(1))
    await start_stage(await start_pool("upper"))
    assert broker.backend.topic(TopicName("orders-before.processed")) is not None
    await broker.create_topic("orders-after", TopicConfig(partitions=2, retention_ms=5_000_000))
    await broker.publish("orders-after", values(2), partition=1)
    await broker.publish("payments", values(3))
    await processed_up_to(broker, 1, topic=TopicName("orders-before"))
    await processed_up_to(broker, 1, 1, TopicName("orders-after"))
    outputs = broker.backend.topic(TopicName("orders-after.processed"))
    assert outputs is not None
    assert outputs.config == TopicConfig(partitions=2, retention_ms=5_000_000)
    assert broker.backend.topic(TopicName("payments.processed")) is None


async def test_a_graceful_stop_stores_what_is_in_the_workers(
    broker: Broker, start_pool: StartPool, start_stage: StartStage, log: Recorder
) -> None:
    stage = await start_stage(await start_pool("sleep_ms", inflight_per_partition=4))
    await broker.publish(ORDERS, [NewMessage(value=b"%d 100" % n) for n in range(20)])
    await until(lambda: stage.stats.stored > 0)
    assert await stage.stop()
    outputs = await values_in(broker, "orders.processed")
    cursor = broker.backend.cursor(ORDERS, PROCESSOR_CURSOR)
    assert 0 < len(outputs) < 20
    assert outputs == [b"%d 100" % n for n in range(len(outputs))]
    assert cursor == {0: len(outputs)}
    assert log.of("processor_stage_stopped") == [{"partitions": 1, "unfinished": 0}]


async def test_a_stop_does_not_wait_for_ever_and_loses_nothing(
    broker: Broker, start_pool: StartPool, start_stage: StartStage, tmp_path: Path
) -> None:
    pool = await start_pool("moody")
    stage = await start_stage(pool)
    hanging = b"once-hang %s" % bytes(tmp_path / "marker")
    await broker.publish(ORDERS, [NewMessage(value=value) for value in (b"a", hanging, b"b")])
    await processed_up_to(broker, 1)
    assert not await stage.stop(0.3)
    await pool.stop()
    await start_stage(await start_pool("moody"))
    await processed_up_to(broker, 3)
    assert await values_in(broker, "orders.processed") == [b"a", b"recovered", b"b"]


async def test_a_broker_that_takes_no_publishes_any_more_does_not_hold_up_the_stop(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    pool = await start_pool("sleep_ms")
    stage = await start_stage(pool)
    await broker.publish(ORDERS, [NewMessage(value=b"200")])
    await until(lambda: pool.stats.busy > 0)
    broker.refuse_publishes()
    async with asyncio.timeout(60):
        assert not await stage.stop(600)
    assert (broker.backend.cursor(ORDERS, PROCESSOR_CURSOR) or {}).get(0) == 0


async def test_outputs_wait_for_an_output_topic_of_the_wrong_shape_to_be_put_right(
    broker: Broker, start_pool: StartPool, start_stage: StartStage, log: Recorder
) -> None:
    await broker.create_topic("orders.processed", TopicConfig(partitions=1))
    await broker.create_topic(ORDERS, TopicConfig(partitions=2))
    await start_stage(await start_pool("upper"))
    await broker.publish(ORDERS, values(1), partition=1)
    await until(lambda: log.of("processor_output_waits"))
    assert "delete orders.processed" in str(log.of("processor_output_waits")[-1]["error"])
    await broker.delete_topic("orders.processed")
    await processed_up_to(broker, 1, 1)
    assert await values_in(broker, "orders.processed", 1) == [b"1"]


async def test_a_deleted_output_topic_is_made_again(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await broker.create_topic(ORDERS, TopicConfig(partitions=2))
    await start_stage(await start_pool("upper"))
    await broker.publish(ORDERS, values(1), partition=1)
    await processed_up_to(broker, 1, 1)
    await broker.delete_topic("orders.processed")
    await broker.publish(ORDERS, values(2), partition=1)
    await processed_up_to(broker, 2, 1)
    assert await values_in(broker, "orders.processed", 1) == [b"2"]


async def test_large_batches_pass_in_order_and_workers_are_kept_busy(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await start_stage(await start_pool("upper", inflight_per_partition=64))
    count = 5000
    await broker.publish_values(ORDERS, [b"v%d" % n for n in range(count)]).offset
    await processed_up_to(broker, count)
    assert await values_in(broker, "orders.processed") == [b"V%d" % n for n in range(count)]


async def test_the_pseudo_computing_of_the_edge_brokers(
    broker: Broker, start_pool: StartPool, start_stage: StartStage
) -> None:
    await start_stage(await start_pool(spec=ProcessorSpec.parse(compute_ms="50:150")))
    began_s = time.monotonic()
    await broker.publish(ORDERS, values(*range(10)))
    await processed_up_to(broker, 10)
    assert time.monotonic() - began_s > 10 * 0.05 / 2
    assert await values_in(broker, "orders.processed") == [b"%d" % n for n in range(10)]

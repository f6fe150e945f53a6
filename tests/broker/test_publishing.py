"""The way in: order is kept whatever has to be made ready first, and what cannot be stored is refused whole."""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from functools import partial

import pytest
from testkit.batches import ForeignRecord, foreign_batch, resealed, values_batch

from holdfast.broker import admit
from holdfast.broker.gates import Gates
from holdfast.model.errors import (
    BadBatch,
    BadMessage,
    BadTopicName,
    HoldfastError,
    PartitionNotFound,
    ShuttingDown,
    TooLarge,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.ids import Offset, TopicName
from holdfast.model.limits import HEADERS_PER_MESSAGE_MAX, MESSAGES_PER_BATCH_MAX
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from tests.broker.conftest import Desk

# --- order --------------------------------------------------------------------------------------------


async def test_order_is_kept_while_the_topic_is_being_created(desk: Desk) -> None:
    sent = [desk.broker.publish_values("t", [b"%d" % i]).offset for i in range(50)]
    assert not sent[0].done()
    await asyncio.sleep(0)
    sent += [desk.broker.publish_values("t", [b"%d" % i]).offset for i in range(50, 100)]
    assert await asyncio.gather(*sent) == list(range(100))
    assert await desk.values() == [b"%d" % i for i in range(100)]


async def test_order_is_kept_while_ids_are_being_read_from_the_log(desk: Desk) -> None:
    """The first id makes the broker read old ones; plain messages behind it must not overtake it."""
    for i in range(20):
        await desk.broker.publish_values("t", [b"old %d" % i]).offset
    await desk.restart()
    sent: list[asyncio.Future[object]] = []
    for i in range(30):
        if i % 3 == 1:
            sent.append(desk.send((f"id-{i}", b"%d" % i)))  # type: ignore[arg-type]
        else:
            sent.append(desk.broker.publish_values("t", [b"%d" % i]).offset)  # type: ignore[arg-type]
        if i % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*sent)
    assert (await desk.values())[20:] == [b"%d" % i for i in range(30)]


async def test_all_kinds_of_publishing_keep_one_order(desk: Desk) -> None:
    rolled = random.Random(3)
    sent: list[asyncio.Future[object]] = []
    for i in range(90):
        value = b"%d" % i
        kind = rolled.randrange(4)
        if kind == 0:
            sent.append(desk.broker.publish_values("t", [value]).offset)  # type: ignore[arg-type]
        elif kind == 1:
            sent.append(desk.send((f"{i}", value)))  # type: ignore[arg-type]
        elif kind == 2:
            sent.append(desk.broker.publish("t", [NewMessage(value=value, key=b"k")]))  # type: ignore[arg-type]
        else:
            sent.append(desk.broker.publish_batches("t", 0, [bytes(values_batch(value))]))  # type: ignore[arg-type]
        if rolled.random() < 0.2:
            await asyncio.sleep(0)
    await asyncio.gather(*sent)
    assert await desk.values() == [b"%d" % i for i in range(90)]


async def test_publishes_waiting_for_a_topic_that_cannot_be_created_are_all_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_room(name: TopicName, config: TopicConfig) -> None:
        await asyncio.sleep(0)
        raise Unavailable("no room for a topic")

    with monkeypatch.context() as patched:
        patched.setattr(desk.cluster_backend, "create_topic", no_room)
        values, messages = desk.broker.publish_values("t", [b"x"]).offset, desk.send(("a", b"y"))
        outcomes = await asyncio.gather(values, messages, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable]
    assert await desk.broker.publish_values("t", [b"works"]).offset == 0
    assert await desk.values() == [b"works"]


async def test_gate_opens_in_order_and_tells_failures() -> None:
    gates = Gates()
    name = TopicName("t")
    ran: list[int] = []
    opened = asyncio.Event()

    def step(number: int) -> asyncio.Future[int]:
        ran.append(number)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(number)
        return done

    def refuse() -> asyncio.Future[int]:
        raise TopicNotFound("deleted meanwhile")

    gates.close_while(name, opened.wait)
    waiting = [gates.behind(name, partial(step, i)) for i in range(5)]
    waiting.append(gates.behind(name, refuse))
    waiting[2].cancel()
    assert gates.is_closed(name) and ran == []
    opened.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert ran == [0, 1, 3, 4], "a publish whose sender is gone is stored, or one is lost"
    assert isinstance(outcomes[2], asyncio.CancelledError) and isinstance(outcomes[5], TopicNotFound)
    assert not gates.is_closed(name)


async def test_gate_whose_preparation_has_a_bug_leaves_nobody_waiting() -> None:
    gates = Gates()
    name = TopicName("t")
    raised: list[BaseException] = []

    async def broken() -> None:
        raise RuntimeError("a bug of ours")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context["exception"]))
    gates.close_while(name, broken)
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(gates.behind(name, lambda: done), 60)
    assert not gates.is_closed(name)


# --- what may enter -----------------------------------------------------------------------------------


async def test_message_beyond_the_limit_is_refused_and_nothing_of_its_request_is_stored(desk: Desk) -> None:
    desk.use(message_bytes_max=100)
    await desk.broker.create_topic("t", TopicConfig())
    for values in ([b"x" * 101], [b"fine", b"x" * 101]):
        with pytest.raises(TooLarge):
            desk.broker.publish_values("t", values)
        with pytest.raises(TooLarge):
            desk.broker.publish("t", [NewMessage(value=value) for value in values])
        with pytest.raises(HoldfastError):
            desk.broker.publish_batches("t", 0, [bytes(values_batch(b"fine")), bytes(values_batch(*values))])
    with pytest.raises(TooLarge):
        desk.broker.publish("t", [NewMessage(value=b"x" * 50, key=b"k" * 60)])
    with pytest.raises(TooLarge):
        desk.broker.publish("t", [NewMessage(value=b"x", headers=[("n" * 50, b"v" * 60)])])
    assert await desk.values() == []
    await desk.broker.publish_values("t", [b"x" * 100]).offset
    assert await desk.values() == [b"x" * 100]


@pytest.mark.parametrize(
    ("values", "error"),
    [([], BadMessage), ([b""] * (MESSAGES_PER_BATCH_MAX + 1), TooLarge), ([b"x" * (1 << 20)] * 17, TooLarge)],
    ids=["none", "too many", "too much"],
)
async def test_request_that_does_not_fit_a_batch_is_refused(
    desk: Desk, values: list[bytes], error: type[HoldfastError]
) -> None:
    with pytest.raises(error):
        desk.broker.publish_values("t", values)
    with pytest.raises(error):
        desk.broker.publish("t", [NewMessage(value=value) for value in values])
    assert desk.broker.topics() == [], "a refused publish created a topic"


async def test_largest_request_that_is_admitted_is_stored(desk: Desk) -> None:
    """What admission lets through must fit the log: the estimate of the overhead may not be too small."""
    values = [b"x"] * MESSAGES_PER_BATCH_MAX
    assert await desk.broker.publish_values("t", values).offset == 0
    messages = [NewMessage(value=b"v" * ((1 << 20) - 20), key=b"", headers=[("h", b"")]) for _ in range(15)]
    results = await desk.broker.publish("t", messages)
    assert [result.offset for result in results] == [MESSAGES_PER_BATCH_MAX + i for i in range(15)]


async def test_too_many_headers_are_refused(desk: Desk) -> None:
    headers = [(f"h{i}", b"") for i in range(HEADERS_PER_MESSAGE_MAX + 1)]
    with pytest.raises(BadMessage):
        desk.broker.publish("t", [NewMessage(value=b"x", headers=headers)])
    await desk.broker.publish("t", [NewMessage(value=b"x", headers=headers[1:])])
    (message,) = await desk.messages()
    assert len(message.headers) == HEADERS_PER_MESSAGE_MAX


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a|b", "a,b", " a", "a ", "é" * 34, "x" * 201, "a\n", "a\0b", "\ufffd", "\ud800"]
)
async def test_bad_topic_name_is_refused_everywhere(desk: Desk, name: str) -> None:
    with pytest.raises(BadTopicName):
        desk.broker.publish_values(name, [b"x"])
    with pytest.raises(BadTopicName):
        desk.broker.publish(name, [NewMessage(value=b"x")])
    with pytest.raises(BadTopicName):
        desk.broker.publish_batches(name, 0, [bytes(values_batch(b"x"))])
    with pytest.raises(BadTopicName):
        await desk.broker.create_topic(name, TopicConfig())
    with pytest.raises(BadTopicName):
        desk.broker.describe_topic(name)
    assert list((desk.path / "topics").iterdir()) == []


async def test_without_auto_create_a_missing_topic_is_refused(desk: Desk) -> None:
    desk.use(auto_create=False)
    with pytest.raises(TopicNotFound):
        desk.broker.publish_values("t", [b"x"])
    with pytest.raises(TopicNotFound):
        await desk.broker.ensure_topic("t")
    await desk.broker.create_topic("t", TopicConfig())
    await desk.broker.publish_values("t", [b"x"]).offset


async def test_batch_from_a_clock_far_ahead_is_refused(desk: Desk) -> None:
    """It would keep retention and search by time from working for everybody."""
    ahead = desk.clock.now + 25 * 60 * 60 * 1000
    with pytest.raises(BadBatch, match="clock"):
        desk.broker.publish_batches("t", 0, [bytes(values_batch(b"x", timestamp_ms=ahead))])


YEAR_1_MS = -62_135_596_800_000


@pytest.mark.parametrize("timestamp_ms", [YEAR_1_MS - 1, -(1 << 62), -(1 << 63)])
async def test_batch_from_before_all_calendars_is_refused(desk: Desk, timestamp_ms: int) -> None:
    """As microseconds such a time would not fit 64 bits, and be read as another one."""
    with pytest.raises(BadBatch, match="year 1"):
        desk.broker.publish_batches("t", 0, [bytes(values_batch(b"x", timestamp_ms=timestamp_ms))])
    # A batch may say one thing of itself, and something else of its messages.
    lie = values_batch(b"x", timestamp_ms=timestamp_ms)
    struct.pack_into(">q", lie, 35, desk.clock.now)
    with pytest.raises(BadBatch, match="year 1"):
        desk.broker.publish_batches("t", 0, [resealed(lie)])
    assert desk.broker.topics() == []


@pytest.mark.parametrize(("from_now_ms", "problem"), [(1 << 40, "clock"), (-(1 << 60), "year 1")])
async def test_single_record_whose_time_is_out_of_bounds_is_found(desk: Desk, from_now_ms: int, problem: str) -> None:
    now = desk.clock.now
    times = [now, now + from_now_ms, now + 1]
    records = [ForeignRecord(i, time_ms, None, b"x", []) for i, time_ms in enumerate(times)]
    batch = bytearray(foreign_batch(records))
    struct.pack_into(">q", batch, 35, now)
    with pytest.raises(BadBatch, match=problem):
        desk.broker.publish_batches("t", 0, [resealed(batch)])


@pytest.mark.parametrize("timestamp_ms", [YEAR_1_MS, -1, 0])
async def test_old_times_are_kept_as_they_are(desk: Desk, timestamp_ms: int) -> None:
    await desk.broker.publish_batches("t", 0, [bytes(values_batch(b"x", timestamp_ms=timestamp_ms))])
    (message,), _ = await desk.broker.read("t", 0, Offset(0), 1, 1 << 20)
    assert message.timestamp_ms == timestamp_ms


async def test_nothing_is_taken_once_the_broker_leaves_and_what_was_taken_is_finished(desk: Desk) -> None:
    first = desk.broker.publish_values("t", [b"taken"]).offset
    desk.broker.refuse_publishes()
    with pytest.raises(ShuttingDown):
        desk.broker.publish_values("t", [b"late"])
    with pytest.raises(ShuttingDown):
        desk.send(("a", b"late"))
    assert await first == 0
    assert desk.broker.ready_problem() is not None
    assert await desk.values() == [b"taken"]


# --- partitions ---------------------------------------------------------------------------------------


async def test_messages_of_one_key_are_in_one_partition_in_order(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(partitions=4))
    for i in range(40):
        await desk.broker.publish("t", [NewMessage(value=b"%d" % i, key=b"key-%d" % (i % 5))])
    await desk.restart()
    for i in range(40, 80):
        await desk.broker.publish("t", [NewMessage(value=b"%d" % i, key=b"key-%d" % (i % 5))])
    for k in range(5):
        partition = zlib.crc32(b"key-%d" % k) % 4
        of_key = [int(m.value) for m in await desk.messages(partition=partition) if m.key == b"key-%d" % k]
        assert of_key == list(range(k, 80, 5))


async def test_one_request_over_many_partitions_is_answered_in_its_order(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(partitions=3))
    messages = [NewMessage(value=b"%d" % i, key=b"%d" % i) for i in range(30)]
    results = await desk.broker.publish("t", messages)
    for message, result in zip(messages, results, strict=True):
        topic = desk.backend.topic(TopicName("t"))
        assert topic is not None and result.partition == admit.partition_of(topic, message)
        stored = await desk.broker.read("t", result.partition, result.offset, 1, 1)
        assert stored[0][0].value == message.value


async def test_values_without_a_key_are_spread(desk: Desk) -> None:
    await desk.broker.create_topic("t", TopicConfig(partitions=3))
    partitions = [desk.broker.publish_values("t", [b"x"]).partition for _ in range(9)]
    assert sorted(partitions) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("number", [-1, 1, 99])
async def test_partition_that_is_not_there_is_refused(desk: Desk, number: int) -> None:
    await desk.broker.create_topic("t", TopicConfig())
    with pytest.raises(PartitionNotFound):
        await desk.broker.publish("t", [NewMessage(value=b"x")], number)
    with pytest.raises(PartitionNotFound):
        await desk.broker.publish_batches("t", number, [bytes(values_batch(b"x"))])
    with pytest.raises(PartitionNotFound):
        desk.broker.partition_range("t", number)
    assert await desk.values() == []

"""What subscribers that do not read, or that hang up, cost the broker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from testkit.batches import values_batch
from testkit.serving import CONNACK, SUBACK, Serving
from testkit.sizes import dice
from testkit.wait import until, until_quiet

from holdfast.broker.follower import Delivery, Follower
from holdfast.broker.outgoing import Outgoing
from holdfast.frontends.text.connection import TextConnection
from holdfast.frontends.text.line_cache import LineCache, Place
from holdfast.frontends.untaken import untaken_bytes
from holdfast.model.ids import Offset
from holdfast.model.topics import TopicConfig
from holdfast.wire import record_batch
from holdfast.wire.text import STANDARD

VALUE = "x" * 100_000


OF_A_CONNECTION = {"TextConnection", "Subscription", "Follower", "Delivery", "Replies", "IdLines", "CallbackChanges"}
OF_A_REQUEST = {"RequestResponseCycle", "HeadWithBody"}


@pytest.fixture
def left() -> Iterator[Callable[[], list[str]]]:
    """What is left of connections and requests of this test, without a search for reference cycles."""
    gc.collect()
    gc.disable()
    before = found()
    yield lambda: [type(each).__name__ for each in found() if not any(each is earlier for earlier in before)]
    gc.enable()


def found() -> list[object]:
    return [each for each in gc.get_objects() if type(each).__name__ in OF_A_CONNECTION | OF_A_REQUEST]


@pytest.mark.parametrize("ending", ["hangs up", "is reset", "leaves with lines that are not answered"])
async def test_memory_of_a_subscriber_is_free_when_it_is_gone(
    left: Callable[[], list[str]], broker: Serving, ending: str
) -> None:
    talks = [await broker.subscribe(b"t") for _ in range(5)]
    talks.append(await broker.subscribe(b"t", b"name"))
    await broker.http("POST", "/v1/topics/t/messages", {"messages": [{"value": VALUE}] * 90})
    await until_quiet(lambda: broker.node.broker.stats.delivered_bytes)
    for talk in talks:
        if ending.startswith("leaves"):
            talk.send(*[b"PUBLISH_ID|t|%d|%b" % (number, VALUE.encode()) for number in range(20)])
        if ending == "is reset":
            talk.abort()
        else:
            talk.writer.close()
    del talk
    talks.clear()
    await until(lambda: not left(), "nothing is left of the connections")


async def test_memory_of_an_answer_is_free_when_it_has_left(left: Callable[[], list[str]], broker: Serving) -> None:
    await broker.publish(b"t", [b"x"])
    await asyncio.gather(*(broker.http("GET", "/v1/topics/t/partitions/0/messages") for _ in range(5)))
    await until(lambda: not left(), "nothing is left of the requests")


async def test_subscribers_that_do_not_read_hold_no_batches(broker: Serving) -> None:
    """Each topic has a batch of nine megabytes, so nothing of one subscriber's memory serves another one."""
    topics = [f"t{number}" for number in range(12)]
    stalled = []
    for topic in topics:
        stalled.append(await broker.stalled(topic.encode()))
    tracemalloc.start()
    try:
        for topic in topics:
            await broker.http("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": VALUE}] * 90})
        await until_quiet(lambda: broker.node.broker.stats.delivered_bytes)
        assert broker.node.broker.stats.delivered_bytes > 12 * len(VALUE)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What they share is 32 MiB, and each has a piece. The lines of all of them would be 108 MB.
    assert held_bytes < 60_000_000
    for talk in stalled:
        talk.abort()


async def test_subscriptions_of_one_client_that_does_not_read_hold_one_piece_however_slow_the_store_is(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reading, may_go_on = Follower.read, 0, asyncio.Event()

    async def read_slowly(self: Follower, number: int, bytes_max: int) -> Delivery | None:
        nonlocal reading
        delivery = await read(self, number, bytes_max)
        reading += 1
        await may_go_on.wait()
        return delivery

    monkeypatch.setattr(Follower, "read", read_slowly)
    topics = [f"t{number}" for number in range(60)]
    stalled = await broker.raw(receive_buffer_bytes=4096)
    assert await stalled.line() == CONNACK
    for topic in topics:
        assert await stalled.ask(b"SUBSCRIBE|" + topic.encode()) == SUBACK
    stalled.pause()
    for topic in topics:
        await broker.http("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": VALUE}] * 4})
    await until(lambda: reading == len(topics), "all of them read at the same time")
    may_go_on.set()
    await until_quiet(lambda: broker.node.broker.stats.delivered_bytes)
    # The system's own buffers take a few megabytes, and behind them comes one piece. All pieces would be 12 MB.
    assert 0 < broker.node.broker.stats.delivered_bytes < 8_000_000
    stalled.abort()


async def test_live_messages_are_not_delayed_by_readers_that_hold_all_the_room(broker: Serving) -> None:
    outgoing = broker.node.broker.outgoing
    outgoing.hold(2 * outgoing.bytes_max)
    async with await broker.subscribe(b"t") as live:
        await broker.publish(b"t", [b"x"])
        assert await live.line() == b"MESSAGE|t|x"
    outgoing.hold(-2 * outgoing.bytes_max)


async def test_large_messages_reach_all_readers_when_there_is_room_for_one_at_a_time(broker: Serving) -> None:
    outgoing = broker.node.broker.outgoing
    outgoing.bytes_max = 1_000_000
    outgoing.hold(900_000)
    readers = [await broker.subscribe(b"t%d" % number) for number in range(6)]
    for number in range(6):
        await broker.http("POST", f"/v1/topics/t{number}/messages", {"messages": [{"value": "x" * 400_000}]})
    assert broker.node.broker.stats.delivered_bytes == 0
    outgoing.hold(-400_000)
    for reader in readers:
        assert len(await reader.line()) > 400_000
    outgoing.hold(-500_000)
    await until(lambda: outgoing.bytes_held == 0, "nothing is held")
    for reader in readers:
        reader.writer.close()


async def test_client_that_hangs_up_while_its_subscriptions_wait_for_room_gives_back_what_it_held(
    broker: Serving,
) -> None:
    outgoing = broker.node.broker.outgoing
    outgoing.bytes_max = 6_000_000
    outgoing.hold(5_000_000)
    talk = await broker.raw(receive_buffer_bytes=4096)
    assert await talk.line() == CONNACK
    for number in range(4):
        assert await talk.ask(b"SUBSCRIBE|t%d" % number) == SUBACK
    talk.pause()
    for number in range(4):
        await broker.http("POST", f"/v1/topics/t{number}/messages", {"messages": [{"value": "x" * 4_000_000}]})
    await until(lambda: outgoing.is_short, "they wait")
    outgoing.hold(-5_000_000)
    await until(lambda: broker.node.broker.stats.delivered_bytes > 0, "one of them goes on")
    talk.abort()
    await until(lambda: broker.node.broker.stats.subscriptions == 0, "it is gone")
    await until(lambda: outgoing.bytes_held == 0, "it holds nothing, and nothing less")


async def test_small_answer_does_not_wait_for_room(broker: Serving) -> None:
    outgoing = broker.node.broker.outgoing
    await broker.publish(b"t", [b"x"])
    outgoing.hold(2 * outgoing.bytes_max)
    answer = await broker.http("GET", "/v1/topics/t/partitions/0/messages")
    assert len(answer["messages"]) == 1
    outgoing.hold(-2 * outgoing.bytes_max)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics/t/cursors/c/messages?auto_ack=true",
        "/api/v1/pop/queue/t?autoAck=true",
        "/v1/topics/t/partitions/0/messages",
    ],
)
async def test_large_answer_waits_for_room_and_nothing_of_it_is_taken_before(broker: Serving, path: str) -> None:
    outgoing = broker.node.broker.outgoing
    await broker.http("POST", "/v1/topics/t/messages", {"messages": [{"value": "x" * 1_000_000}]})
    outgoing.hold(outgoing.bytes_max)
    asking = asyncio.create_task(broker.http("GET", path))
    await until(lambda: not outgoing.has_room(0), "it waits")
    cursors = broker.node.broker.cursors("t")
    assert all(position.offset == 0 for cursor in cursors for position in cursor.partitions)
    outgoing.hold(-outgoing.bytes_max)
    answer = await asking
    assert len(answer["messages"]) == 1
    await until(lambda: outgoing.bytes_held == 0, "nothing is held")


async def test_what_a_client_takes_is_seen_though_this_process_holds_as_much_as_before() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    transport.write(b"x" * 20_000_000)
    before, held = untaken_bytes(transport), transport.get_write_buffer_size()
    taken = len(await loop.sock_recv(theirs, 1_000))
    # No turn of the loop has passed: what the process holds is unchanged.
    assert transport.get_write_buffer_size() == held > 0
    assert before is not None and before > held and taken > 0
    while taken < 20_000_000:
        taken += len(await loop.sock_recv(theirs, 1 << 20))
    await until(lambda: untaken_bytes(transport) == 0, "all of it is taken")
    transport.abort()
    theirs.close()


@pytest.mark.parametrize("command", [b"SUBSCRIBE", b"SUBSCRIBE_ID"])
async def test_slow_subscriber_gets_every_message_once_while_others_use_the_memory(
    broker: Serving, command: bytes
) -> None:
    async with await broker.stalled(b"t", command=command) as slow:
        for batch in range(3):
            values = [{"value": f"{batch}-{number}-" + VALUE} for number in range(90)]
            await broker.http("POST", "/v1/topics/t/messages", {"messages": values})
        # Forty megabytes of other lines: what was made for the slow one is gone when it comes for more.
        async with await broker.subscribe(b"other") as fast:
            for _ in range(5):
                await broker.http("POST", "/v1/topics/other/messages", {"messages": [{"value": VALUE}] * 80})
                await fast.lines(80)
        slow.resume()
        got = [line.split(b"|")[-1][:5] for line in await slow.lines(270)]
        assert got == [f"{batch}-{number}-xxx".encode()[:5] for batch in range(3) for number in range(90)]
        assert await slow.is_usable()


async def test_durable_subscriber_goes_on_in_the_middle_of_a_large_batch(broker: Serving) -> None:
    # Its machine takes some megabytes, and not all nine.
    first = await broker.stalled(b"t", b"name", receive_buffer_bytes=1_000_000)
    values = [{"value": f"{number}-" + VALUE} for number in range(90)]
    await broker.http("POST", "/v1/topics/t/messages", {"messages": values})
    await until(lambda: broker.node.broker.describe_cursor("t", "name").lag < 90, "what it took is noted")
    first.abort()
    async with await broker.subscribe(b"t", b"name") as second:
        begin = int((await second.line()).split(b"|")[2].split(b"-")[0])
        rest = [int(line.split(b"|")[2].split(b"-")[0]) for line in await second.lines(89 - begin)]
        assert [begin, *rest] == list(range(begin, 90)), "nothing is missed"
        assert begin > 0, "a batch is not begun anew"


@pytest.mark.parametrize("with_ids", [False, True])
def test_pieces_of_a_delivery_are_its_lines_and_each_says_where_the_next_one_begins(with_ids: bool) -> None:
    rolled = dice(f"pieces {with_ids}")
    for _ in range(50):
        batches, base = [], 10
        for _ in range(rolled.randint(1, 4)):
            values = [rolled.choice([b"x", b"", b"a\nb"]) * rolled.randint(0, 40) for _ in range(rolled.randint(1, 30))]
            batch = values_batch(*values)
            record_batch.place(batch, Offset(base), 1)
            base += len(values) + rolled.choice([0, 0, 5])
            batches.append(memoryview(bytes(batch)))
        skip = rolled.randrange(record_batch.header(batches[0]).record_count)
        start = Place("t", None, 0, Offset(10 + skip), 0, with_ids)
        delivery = Delivery(0, start.offset, batches, skip, record_batch.header(batches[-1]).next_offset)
        whole = LineCache(STANDARD).make(start, delivery, 1 << 20)
        cache = LineCache(STANDARD)
        place, joined, messages = start, b"", 0
        while place.offset != delivery.next_offset:
            size = rolled.randint(1, 300)
            piece = cache.make(place, delivery, size) if place == start else cache.find(place, size)
            assert piece is not None and piece.lines.count(b"\n") == piece.messages > 0
            assert len(piece.lines) <= size or piece.messages == 1
            joined += piece.lines
            messages += piece.messages
            place = place._replace(offset=piece.next_offset)
        assert (joined, messages) == (whole.lines, whole.messages)


@pytest.fixture
def outgoing(broker: Serving, monkeypatch: pytest.MonkeyPatch) -> Outgoing:
    """Room for one reader at a time; one that takes nothing is cut off soon."""
    monkeypatch.setattr("holdfast.broker.outgoing.STALL_S", 0.2)
    monkeypatch.setattr("holdfast.frontends.text.server._SWEEP_INTERVAL_S", 0.1)
    room = broker.node.broker.outgoing
    room.bytes_max = 1
    return room


async def test_subscriber_that_takes_nothing_is_not_in_the_way_of_one_that_reads(
    broker: Serving, outgoing: Outgoing
) -> None:
    stalled = await broker.stalled(b"t")
    value = "x" * 1_000_000
    async with await broker.subscribe(b"t") as reading:
        for _ in range(12):
            await broker.http("POST", "/v1/topics/t/messages", {"messages": [{"value": value}]})
        assert len(await reading.lines(12)) == 12
        await until(lambda: broker.node.broker.stats.subscriptions == 1, "the other one is closed")
        await until(lambda: outgoing.bytes_held == 0, "nothing is held for it")
    assert broker.node.broker.stats.errors["overloaded"] == 1
    stalled.abort()


async def test_subscriber_that_takes_a_large_message_byte_by_byte_is_not_in_the_way_of_one_that_reads(
    broker: Serving, outgoing: Outgoing
) -> None:
    loop = asyncio.get_running_loop()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    await loop.sock_connect(slow, broker.address)
    await loop.sock_sendall(slow, b"SUBSCRIBE|t\n")
    await until(lambda: broker.node.broker.stats.subscriptions == 1, "it is subscribed")
    (accepted,) = (each for each in found() if isinstance(each, TextConnection) and each._broker is broker.node.broker)
    # As on a slow link, where the system's own buffer is small: the broker sees every step.
    accepted._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)

    async def trickle() -> None:
        while await loop.sock_recv(slow, 4096):
            await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    value = "x" * 5_000_000
    async with await broker.subscribe(b"t") as reading:
        for _ in range(3):
            await broker.http("POST", "/v1/topics/t/messages", {"messages": [{"value": value}]})
        assert len(await reading.lines(3)) == 3
        await until(lambda: broker.node.broker.stats.subscriptions == 1, "the other one is closed")
    with contextlib.suppress(ConnectionError):
        await trickling
    slow.close()


async def test_lines_that_were_read_before_a_topic_was_made_anew_go_to_no_subscriber_of_the_new_one(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, is_read, may_go_on = Follower.read, asyncio.Event(), asyncio.Event()

    async def read_slowly(self: Follower, number: int, bytes_max: int) -> Delivery | None:
        delivery = await read(self, number, bytes_max)
        if not is_read.is_set():
            is_read.set()
            await may_go_on.wait()
        return delivery

    monkeypatch.setattr(Follower, "read", read_slowly)
    async with await broker.subscribe(b"t") as early:
        await broker.http("POST", "/v1/topics/t/messages", {"messages": [{"value": "old"}]})
        await is_read.wait()
        await broker.node.broker.delete_topic("t")
        await broker.node.broker.create_topic("t", TopicConfig())
        async with await broker.subscribe(b"t") as late:
            may_go_on.set()
            assert await early.line() == b"MESSAGE|t|old"
            await broker.http("POST", "/v1/topics/t/messages", {"messages": [{"value": "new"}]})
            assert await late.line() == b"MESSAGE|t|new"

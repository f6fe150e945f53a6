"""What receivers cost a node is bounded, and what one of them does is not paid by the others."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.serving import Serving, serving
from testkit.wait import until

from holdfast.broker.callback_addresses import CallbackPolicy, parse_callback_address
from holdfast.broker.callback_window import Budget, Window
from holdfast.frontends.callbacks import resolving
from holdfast.frontends.callbacks.dialing import Dialer
from holdfast.frontends.callbacks.feed import Feed
from holdfast.frontends.callbacks.resolving import Resolver
from holdfast.model.errors import ConnectionLost
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.limits import (
    CALLBACK_ATTEMPTS_PER_S,
    CALLBACK_WINDOW_BYTES_MAX,
    CALLBACK_WINDOWS_BYTES,
    CALLBACK_WINDOWS_BYTES_MAX,
    CALLBACKS_MAX,
)
from holdfast.testing.ports import free_port
from holdfast.wire import record_batch
from holdfast.wire.batch_builder import build_values
from holdfast.wire.callbacks import numbered_lines, parse_messages, plain_lines
from tests.callbacks.receivers import DumbReceiver, listening, payloads
from tests.callbacks.test_callbacks import standing, subscribe, until_acknowledged, until_state

EVERYWHERE = CallbackPolicy(["127.0.0.0/8"], port_min=1024, is_local=True)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A name server that does not answer for some names until it is told to."""
    released = threading.Event()
    real = socket.getaddrinfo

    def answer(host: str, *rest: object, **options: object) -> object:
        if host.startswith("hanging"):
            released.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return real(host, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    yield released
    released.set()


async def test_receivers_whose_names_nobody_answers_for_do_not_keep_the_others_waiting(
    broker: Serving, hanging: threading.Event
) -> None:
    for number in range(6):
        await subscribe(broker, "other", f"hanging{number}:9000")
    async with DumbReceiver() as receiver:
        await subscribe(broker, "orders", f"localhost:{receiver.port}")
        async with asyncio.timeout(4):  # before the first of the others is given up
            await until_state(broker, "connected")


async def test_however_many_names_are_not_answered_others_are(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "_LOOKUP_S", 0.1)
    resolver = Resolver()

    async def try_again_and_again(number: int) -> None:
        while not hanging.is_set():
            with pytest.raises(ConnectionLost, match="no name server"):
                await resolver.resolve(f"hanging{number}", 9000)
            await asyncio.sleep(0)

    trying = [asyncio.create_task(try_again_and_again(number)) for number in range(60)]
    await until(lambda: len(resolver._slow) == 60, "all of them are found to be slow")
    assert threading.active_count() < 100
    async with asyncio.timeout(2):
        for _ in range(20):
            assert await resolver.resolve("localhost", 9000)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "holdfast-resolve")
    for task in trying:
        task.cancel()
    await asyncio.gather(*trying, return_exceptions=True)


async def test_a_fault_while_connecting_is_noted_and_the_receiver_tried_again(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = Dialer.connect, [UnicodeError("label"), ValueError("a bug")]

    async def connect(self: Dialer, *rest: object) -> object:
        if faults:
            raise faults.pop()
        return await real(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Dialer, "connect", connect)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with DumbReceiver() as receiver:
        await subscribe(broker, "orders", receiver.address)
        await broker.publish(b"orders", payloads(1))
        await receiver.got(1)
        assert "a fault of this broker" in (await standing(broker))["error"]


async def test_receivers_take_no_more_sockets_than_they_may_and_give_them_back() -> None:
    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    dialer = Dialer(EVERYWHERE, 1)

    class Counted(asyncio.Protocol):
        def connection_made(self, transport: object) -> None:
            dialer.opened()

    nobody = parse_callback_address(f"127.0.0.1:{free_port()}")
    async with listening(sleep) as address:
        for _ in range(3):
            with pytest.raises(ConnectionLost, match="refused"):
                await dialer.connect(nobody, Counted)
        await dialer.connect(parse_callback_address(address), Counted)
        with pytest.raises(ConnectionLost, match="ulimit"):
            await dialer.connect(parse_callback_address(address), Counted)
        dialer.hung_up()
        await dialer.connect(parse_callback_address(address), Counted)


async def test_a_receiver_that_comes_and_goes_gives_its_socket_back(broker: Serving) -> None:
    deliveries = broker.node.deliveries
    assert deliveries is not None
    receiver = DumbReceiver()
    await subscribe(broker, "orders", receiver.address)
    for _ in range(3):
        async with receiver:
            await until_state(broker, "connected")
        await until_state(broker, "waiting")
    await broker.http("DELETE", "/v1/topics/orders", expect=204)
    await until(lambda: deliveries._dialer._connections == deliveries._dialer._attempts == 0, "no socket is counted")


async def test_thousands_that_are_away_are_not_all_tried_at_once() -> None:
    dialer, loop = Dialer(EVERYWHERE, 10), asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.gather(*(dialer.turn() for _ in range(100)))
    assert loop.time() - began_s >= 99 / CALLBACK_ATTEMPTS_PER_S - 0.01


async def test_one_that_acknowledges_and_hangs_up_is_tried_more_and_more_seldom(broker: Serving) -> None:
    connected_s: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected_s.append(asyncio.get_running_loop().time())
        await reader.readline()
        writer.write(b"ACK\n")
        await writer.drain()

    async with listening(serve) as address:
        await subscribe(broker, "orders", address)
        await broker.publish(b"orders", payloads(100))
        await until(lambda: len(connected_s) > 5, "five more")
        # 0.05 s, 0.1, 0.2, 0.4 and 0.8, each of them half of that at the least.
        assert connected_s[5] - connected_s[0] > 0.7


def test_the_windows_of_a_node_have_a_bound_of_their_own() -> None:
    budget = Budget()
    budget.receivers = 1
    assert budget.share == CALLBACK_WINDOW_BYTES_MAX
    budget.receivers = CALLBACKS_MAX
    assert CALLBACKS_MAX * (budget.share + budget.piece) <= 2 * CALLBACK_WINDOWS_BYTES
    windows = [Window(budget) for _ in range(3)]
    windows[0].sent(0, Offset(0), Offset(1), 1, CALLBACK_WINDOWS_BYTES_MAX)
    assert not any(window.has_room for window in windows)
    windows[0].acknowledged(1)
    assert all(window.has_room for window in windows)
    windows[1].sent(0, Offset(0), Offset(1), 1, 77)
    windows[1].clear()
    assert budget.size == 0


def test_what_was_sent_of_a_partition_before_another_node_had_it_moves_nothing() -> None:
    window = Window(Budget())
    window.sent(0, Offset(0), Offset(4), 4, 40)
    window.sent(1, Offset(0), Offset(4), 4, 40)
    window.disown(0)
    window.sent(0, Offset(2), Offset(3), 1, 10)
    assert window.acknowledged(2) == {}
    assert window.acknowledged(4) == {1: 2}
    assert window.acknowledged(3) == {0: 3, 1: 4}


VALUES = st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"", b"\n", b"x" * 400])), min_size=1, max_size=12)


@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(1, 500), st.data())
def test_pieces_have_all_messages_once_and_are_not_larger_than_they_may_be(
    batches: list[list[bytes]], bytes_max: int, data: st.DataObject
) -> None:
    stored, offset = [], 10
    for values in batches:
        batch = build_values(values, 1)
        record_batch.place(batch, Offset(offset), 3)
        stored.append(bytes(batch))
        offset += len(values)
    every = [value for values in batches for value in values]
    start = data.draw(st.integers(10, 10 + len(batches[0]) - 1))
    plain = list(plain_lines(b"orders", stored, Offset(start), bytes_max))
    numbered = list(numbered_lines(b"orders", "token", 7, stored, Offset(start), bytes_max))
    for pieces in (plain, numbered):
        got = [message for piece in pieces for message in parse_messages(piece.data)]
        assert [message.value for message in got] == every[start - 10 :]
        place = start
        for piece in pieces:
            place += piece.messages
            assert piece.next_offset == place
            # Base64 is a third more than what is counted.
            assert piece.messages == 1 or len(piece.data) <= 4 * bytes_max // 3 + 4
    offsets = [message.offset for piece in numbered for message in parse_messages(piece.data)]
    assert offsets == list(range(start, offset))
    assert {message.stream for piece in numbered for message in parse_messages(piece.data)} == {b"token.3"}


async def test_small_messages_with_long_names_do_not_fill_the_memory(broker: Serving) -> None:
    """Their lines are thirty times as large as what is read."""
    topic = "t" * 200

    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with listening(sleep) as address:
        await broker.publish(topic.encode(), [b"x"] * 20_000)
        await subscribe(broker, topic, address, format="numbered", **{"from": "earliest"})
        deliveries = broker.node.deliveries
        assert deliveries is not None
        await until(lambda: deliveries._budget.size > 0, "something is under way")
        await asyncio.sleep(0.1)
        assert deliveries._budget.size <= CALLBACK_WINDOW_BYTES_MAX + deliveries._budget.piece


async def test_receiver_that_large_messages_of_others_left_no_room_is_sent_its_own_when_there_is(
    broker: Serving,
) -> None:
    deliveries = broker.node.deliveries
    assert deliveries is not None
    async with DumbReceiver() as receiver:
        await subscribe(broker, "orders", receiver.address)
        await broker.publish(b"orders", [b"one"])
        await receiver.got(1)
        [feed] = deliveries._feeds.values()
        await until(lambda: bool(feed._placed), "it can take more")
        deliveries._budget.size += CALLBACK_WINDOWS_BYTES_MAX
        await broker.publish(b"orders", [b"two"])
        await until(lambda: not feed._placed, "it was denied room")
        # A moment, and not when somebody looks after the receivers.
        deliveries._budget.size -= CALLBACK_WINDOWS_BYTES_MAX
        await broker.publish(b"orders", [b"three"])
        assert len(await receiver.got(3)) == 3


async def test_who_is_far_behind_is_read_for_in_its_turn(broker: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.frontends.callbacks.feed._BEHIND_MAX", 1)
    await broker.publish(b"orders", payloads(10))
    topic = broker.node.backend.topic(TopicName("orders"))
    assert topic is not None
    feed = Feed(broker.node.broker, Budget(), topic, PartitionId(topic.name, 0), 1)
    feed._furthest = Offset(10)
    served: list[int] = []

    async def serve(position: Offset, group: set[object]) -> None:
        served.append(position)

    monkeypatch.setattr(feed, "_serve", serve)
    feed._groups = {Offset(0): set(), Offset(5): set(), Offset(3): set()}
    feed._look_soon()
    await until(lambda: len(served) == 3, "all groups")
    assert served == [0, 5, 3]
    feed.close()


async def test_what_retention_takes_while_something_is_under_way_is_passed_when_that_is_done(tmp_path: Path) -> None:
    sent, acknowledge = asyncio.Queue[bytes](), asyncio.Queue[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def read() -> None:
            while line := await reader.readline():
                sent.put_nowait(line)

        reading = asyncio.create_task(read())
        while count := await acknowledge.get():
            writer.write(b"ACK|%d\n" % count)
        reading.cancel()

    value = b"x" * 10_000
    async with serving(tmp_path, segment_bytes=65536, retention_check_ms=20) as broker, listening(serve) as address:
        await broker.http("POST", "/v1/topics", {"topic": "orders", "retention_bytes": 65536}, expect=201)
        await subscribe(broker, "orders", address)
        for number in range(40):
            await broker.publish(b"orders", [b"%04d" % (number * 10 + nth) + value for nth in range(10)])
        await until(lambda: broker.node.broker.partition_range("orders", 0)[0] > 300, "retention")
        assert (await standing(broker))["deliveries"][0]["unacknowledged"] < 200
        under_way = (await standing(broker))["deliveries"][0]["unacknowledged"]
        # There is room again, and what comes next is gone; the rest of what came before is still under way.
        acknowledge.put_nowait(under_way // 2)
        lines = [await sent.get() for _ in range(under_way + 1)]
        assert int(lines[-1][15:19]) > 300

        async def place() -> int:
            found = await broker.http("GET", f"/v1/topics/orders/cursors/callback:{address.replace(':', '_')}")
            return int(found["partitions"][0]["offset"])

        while await place() < under_way // 2:
            await asyncio.sleep(0.01)
        # It is noted ten times a second.
        await asyncio.sleep(0.25)
        assert await place() == under_way // 2
        acknowledge.put_nowait(under_way - under_way // 2)
        while (left := (await standing(broker))["deliveries"][0]["unacknowledged"]) or (await standing(broker))[
            "behind"
        ]:
            if left and acknowledge.empty():
                acknowledge.put_nowait(left)
            await asyncio.sleep(0.02)
        await until_acknowledged(broker)
        found = await standing(broker)
        while not sent.empty():
            lines.append(sent.get_nowait())
        assert (found["state"], found["lost"]) == ("connected", 400 - len(lines))
        acknowledge.put_nowait(0)

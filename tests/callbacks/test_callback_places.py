"""Where a callback stands is its own, whoever reads, removes, subscribes and seeks beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from testkit.serving import SUBACK, UNSUBACK, Serving, serving
from testkit.wait import until

from holdfast.backends.cluster import callback_table
from holdfast.broker import callbacks as broker_callbacks
from holdfast.broker.callbacks import CallbackStore
from holdfast.client import Receiver
from holdfast.model.callbacks import Callback
from holdfast.model.errors import SubscriptionNotFound, TooManySubscriptions, TopicNotFound
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.topics import Topic
from holdfast.testing.ports import free_port
from tests.callbacks.receivers import DumbReceiver, listening, messages, payloads
from tests.callbacks.test_callbacks import standing, subscribe, until_acknowledged

ORDERS, BILLING = TopicName("orders"), CursorName("billing")
PLACE = "/v1/topics/orders/cursors/callback:billing"


def store_of(broker: Serving) -> CallbackStore:
    store = broker.node.store.callbacks
    assert store is not None
    return store


def made(broker: Serving) -> tuple[Callback, Topic]:
    callback, topic = store_of(broker).callback(ORDERS, BILLING), broker.node.backend.topic(ORDERS)
    assert callback is not None and topic is not None
    return callback, topic


async def place(broker: Serving) -> int:
    found = await broker.http("GET", PLACE)
    return int(found["partitions"][0]["offset"])


async def test_readers_of_the_same_name_take_nothing_from_a_receiver(broker: Serving) -> None:
    came = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        came.set()
        await reader.read()

    async with listening(mute) as address:
        await subscribe(broker, "orders", address, name="billing")
        await broker.publish(b"orders", payloads(5))
        await came.wait()
        found = await broker.http("GET", "/v1/topics/orders/cursors/billing/messages?auto_ack=true&from=earliest")
        assert len(found["messages"]) == 5
        async with await broker.connect() as talk:
            assert await talk.ask(b"SUBSCRIBE|orders|billing") == SUBACK
        await broker.http("POST", "/v1/topics/orders/cursors/billing/ack", {"offsets": {"0": 5}})
        await broker.http("DELETE", "/v1/topics/orders/cursors/billing", expect=204)
        assert (await place(broker), (await standing(broker))["behind"]) == (0, 5)


async def test_nobody_reads_through_the_place_of_a_receiver_or_drops_it(broker: Serving) -> None:
    await subscribe(broker, "orders", f"127.0.0.1:{free_port()}", name="billing")
    for method, path, body in (
        ("GET", f"{PLACE}/messages", None),
        ("POST", f"{PLACE}/ack", {"offsets": {"0": 0}}),
        ("DELETE", PLACE, None),
        ("PUT", "/v1/topics/orders/cursors/a:b", {"to": "earliest"}),
    ):
        told = await broker.http(method, path, body, expect=400)
        assert told["error"]["code"] == "bad_cursor"
    async with await broker.connect() as talk:
        assert await talk.error_of(b"SUBSCRIBE|orders|callback:billing") == "bad_cursor"
    assert await place(broker) == 0
    told = await broker.http("PUT", "/v1/topics/orders/cursors/callback:nobody", {"to": "earliest"}, expect=404)
    assert told["error"]["code"] == "cursor_not_found"
    assert len((await broker.http("GET", "/v1/topics/orders/cursors"))["cursors"]) == 1


async def test_who_is_removed_beside_subscribing_again_gets_nothing_a_second_time(broker: Serving) -> None:
    callbacks = broker.node.broker.callbacks
    async with DumbReceiver() as receiver:
        await broker.publish(b"orders", payloads(50))
        for _ in range(20):
            await callbacks.subscribe("orders", receiver.address, name="billing")
            await asyncio.gather(
                callbacks.unsubscribe("orders", "billing"),
                callbacks.subscribe("orders", receiver.address, name="billing"),
                return_exceptions=True,
            )
            if store_of(broker).callback(ORDERS, BILLING) is not None:
                assert await place(broker) == 50
            else:
                assert await broker.http("GET", "/v1/topics/orders/cursors") == {"cursors": []}
        await callbacks.subscribe("orders", receiver.address, name="billing")
        await broker.publish(b"orders", payloads(1, 50))
        assert await receiver.got(1) == messages("orders", 1, 50)


async def test_what_was_acknowledged_before_a_seek_does_not_undo_it(broker: Serving) -> None:
    await subscribe(broker, "orders", f"127.0.0.1:{free_port()}", name="billing")
    await broker.publish(b"orders", payloads(5))
    before, topic = made(broker)
    await broker.http("PUT", PLACE, {"to": 1})
    with pytest.raises(SubscriptionNotFound):
        await store_of(broker).move(before, topic, {0: Offset(5)}, {})
    assert await place(broker) == 1
    await store_of(broker).move(made(broker)[0], topic, {0: Offset(2)}, {})
    assert await place(broker) == 2


async def test_what_is_told_late_is_not_taken_for_another_subscription_of_the_name(broker: Serving) -> None:
    address = f"127.0.0.1:{free_port()}"
    await broker.publish(b"orders", payloads(5))
    await subscribe(broker, "orders", address, name="billing")
    before, topic = made(broker)
    await broker.http("DELETE", "/v1/subscriptions/orders/billing", expect=204)
    await subscribe(broker, "orders", address, name="billing", **{"from": "earliest"})
    with pytest.raises(SubscriptionNotFound):
        await store_of(broker).move(before, topic, {0: Offset(5)}, {})
    # The removal, which was tried again as its answer was lost.
    await store_of(broker).remove(before, ORDERS)
    assert (await standing(broker))["behind"] == 5
    # And of a topic that has the name of another one by now.
    await broker.http("DELETE", "/v1/topics/orders", expect=204)
    await broker.publish(b"orders", payloads(9))
    await subscribe(broker, "orders", address, name="billing", **{"from": "earliest"})
    with pytest.raises(TopicNotFound):
        await store_of(broker).move(made(broker)[0], topic, {0: Offset(5)}, {})
    assert await place(broker) == 0


async def test_who_is_removed_beside_a_seek_is_removed(broker: Serving) -> None:
    inside = broker.node.broker
    for _ in range(10):
        await inside.callbacks.subscribe("orders", "127.0.0.1:9000", name="billing")
        await asyncio.gather(
            inside.seek_cursor("orders", "callback:billing", "earliest"),
            inside.callbacks.unsubscribe("orders", "billing"),
            inside.seek_cursor("orders", "callback:billing", "earliest"),
            return_exceptions=True,
        )
        assert store_of(broker).callbacks() == []
        assert await broker.http("GET", "/v1/topics/orders/cursors") == {"cursors": []}


async def test_one_subscription_too_many_leaves_nothing_behind(
    broker: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = broker.node.broker.callbacks
    await broker.publish(b"orders", payloads(1))
    await broker.publish(b"other", payloads(1))
    await callbacks.subscribe("other", "127.0.0.1:9000", name="first")
    # As where two come at once: what is decided counts, and not what was known before.
    monkeypatch.setattr(callback_table, "CALLBACKS_MAX", 1)
    with pytest.raises(TooManySubscriptions):
        await callbacks.subscribe("orders", "127.0.0.1:9000", name="billing")
    assert await broker.http("GET", "/v1/topics/orders/cursors") == {"cursors": []}
    monkeypatch.setattr(broker_callbacks, "CALLBACKS_MAX", 1)
    with pytest.raises(TooManySubscriptions):
        await callbacks.subscribe("new", "127.0.0.1:9000", name="billing")
    assert broker.node.backend.topic(TopicName("new")) is None
    await callbacks.subscribe("other", "127.0.0.1:9001", name="first")


async def collected(receiver: Receiver, count: int) -> list[bytes]:
    async with asyncio.timeout(20):
        return [(await receiver.get()).value for _ in range(count)]


async def test_a_numbered_receiver_gets_what_stands_before_its_beginning_when_its_cursor_goes_there(
    broker: Serving,
) -> None:
    async with Receiver("127.0.0.1:0") as receiver:
        await broker.publish(b"orders", payloads(5))
        await subscribe(broker, "orders", receiver.address, name="billing", format="numbered")
        await broker.publish(b"orders", payloads(2, 5))
        assert await collected(receiver, 2) == payloads(2, 5)
        receiver.done()
        await until_acknowledged(broker)
        await broker.http("PUT", PLACE, {"to": "earliest"})
        assert await collected(receiver, 5) == payloads(5)
        await broker.publish(b"orders", payloads(1, 7))
        assert await collected(receiver, 1) == payloads(1, 7)


async def test_a_second_name_that_begins_earlier_brings_what_the_first_did_not(broker: Serving) -> None:
    async with Receiver("127.0.0.1:0") as receiver:
        await broker.publish(b"orders", payloads(5))
        await subscribe(broker, "orders", receiver.address, name="billing", format="numbered")
        await broker.publish(b"orders", payloads(2, 5))
        assert await collected(receiver, 2) == payloads(2, 5)
        await subscribe(broker, "orders", receiver.address, name="audit", format="numbered", **{"from": 2})
        assert await collected(receiver, 3) == payloads(3, 2)
        await broker.http("DELETE", "/v1/subscriptions/orders/audit", expect=204)
        await subscribe(broker, "orders", receiver.address, name="audit", format="numbered", **{"from": "earliest"})
        assert await collected(receiver, 2) == payloads(2)


async def test_two_brokers_that_send_to_one_receiver_are_told_apart(tmp_path: Path) -> None:
    """Also one that lost its disk and begins anew: its first message is not one that came before."""
    async with Receiver("127.0.0.1:0") as receiver:
        for life in ("one", "two"):
            async with serving(tmp_path / life) as broker:
                await subscribe(broker, "orders", receiver.address, name="billing", format="numbered")
                await broker.publish(b"orders", [b"%s-%d" % (life.encode(), number) for number in range(3)])
                assert await collected(receiver, 3) == [b"%s-%d" % (life.encode(), number) for number in range(3)]


async def test_an_offset_that_is_used_again_after_a_power_loss_is_in_another_stream(tmp_path: Path) -> None:
    streams: set[bytes] = set()
    async with DumbReceiver() as receiver:
        for start in (0, 3):
            async with serving(tmp_path, sync="interval:1000") as broker:
                await subscribe(broker, "orders", receiver.address, name="billing", format="numbered")
                await broker.publish(b"orders", payloads(3, start))
                await receiver.got(start + 3)
                await until_acknowledged(broker)
                streams |= {line.split(b"|")[1] for line in receiver.lines[start:]}
                token = made(broker)[1].token.encode()
    assert {stream.rpartition(b".")[0] for stream in streams} == {token}
    assert len(streams) == 2


async def test_lines_in_one_piece_change_callbacks_in_their_order(broker: Serving) -> None:
    address = f"127.0.0.1:{free_port()}".encode()
    async with await broker.connect() as talk:
        for _ in range(10):
            talk.send(b"SUBSCRIBE_CALLBACK|orders|" + address, b"UNSUBSCRIBE_CALLBACK|orders|" + address)
            assert await talk.lines(2) == [SUBACK, UNSUBACK]
        assert store_of(broker).callbacks() == []
        talk.send(*(b"SUBSCRIBE_CALLBACK|orders|%b|n%d" % (address, number) for number in range(20)))
        # It hangs up as soon as the first is there, and what it asked for is done all the same.
        await talk.line()
    await until(lambda: len(store_of(broker).callbacks()) == 20, "all that was asked for")


async def test_it_is_logged_who_subscribes_and_who_does_no_more(broker: Serving) -> None:
    address = f"127.0.0.1:{free_port()}"
    with capture_logs() as logged:
        await subscribe(broker, "orders", address, name="billing")
        await subscribe(broker, "orders", address, name="billing")
        await broker.http("DELETE", "/v1/subscriptions/orders/billing", expect=204)
    told: list[Any] = [each for each in logged if each["event"] in ("subscribed", "unsubscribed")]
    assert [each["event"] for each in told] == ["subscribed", "unsubscribed"]
    for each in told:
        assert (each["topic"], each["name"], each["address"], each["log_level"]) == (
            "orders",
            "billing",
            address,
            "info",
        )


async def test_a_stop_in_the_midst_of_changes_leaves_nobody_connected(tmp_path: Path) -> None:
    async with DumbReceiver() as receiver, serving(tmp_path) as broker:
        deliveries, callbacks = broker.node.deliveries, broker.node.broker.callbacks
        assert deliveries is not None
        await broker.publish(b"orders", payloads(3))

        async def change(number: int) -> None:
            for round_number in range(1000):
                await callbacks.subscribe("orders", receiver.address, name=f"n{number}", start="earliest")
                if number and round_number % 3 == 2:  # one of them stays
                    await callbacks.unsubscribe("orders", f"n{number}")

        changing = [asyncio.create_task(change(number)) for number in range(5)]
        await receiver.got(10)
        await deliveries.stop()
        before = receiver.connections
        await asyncio.sleep(0.2)
        assert receiver.connections == before
        assert deliveries._budget.receivers == 0 and deliveries._budget.size == 0
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)

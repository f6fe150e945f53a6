"""What a receiver is promised: every message, in order, also after it, or the broker, was away."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from testkit.serving import PUBACK, SUBACK, UNSUBACK, Serving, serving
from testkit.wait import until

from holdfast.client import Receiver
from tests.callbacks.receivers import DumbReceiver, listening, messages, payloads


async def subscribe(broker: Serving, topic: str, callback: str, **fields: Any) -> Any:
    body = {"topic": topic, "callback": callback, **fields}
    return await broker.http("POST", "/v1/subscriptions", body, expect=201)


async def standing(broker: Serving, topic: str = "orders") -> Any:
    (found,) = (await broker.http("GET", f"/v1/subscriptions?topic={topic}"))["subscriptions"]
    return found


async def until_acknowledged(broker: Serving, topic: str = "orders") -> None:
    """Until its cursor, which is what survives, stands at the end."""
    while (await standing(broker, topic))["behind"]:
        await asyncio.sleep(0.01)


async def until_state(broker: Serving, state: str) -> Any:
    while (found := await standing(broker))["state"] != state:
        await asyncio.sleep(0.01)
    return found


async def test_a_receiver_that_answers_each_line_gets_every_message_in_order(broker: Serving) -> None:
    async with DumbReceiver() as receiver, await broker.connect() as talk:
        assert await talk.ask(f"SUBSCRIBE_CALLBACK|orders|{receiver.address}".encode()) == SUBACK
        await broker.publish(b"orders", payloads(2500))
        assert await receiver.got(2500) == messages("orders", 2500)
        await until_acknowledged(broker)
        found = await standing(broker)
        assert (found["state"], found["lost"], found["callback"]) == ("connected", 0, receiver.address)
        cursors = await broker.http("GET", "/v1/topics/orders/cursors")
        assert [(each["name"], each["lag"]) for each in cursors["cursors"]] == [("callback:" + found["name"], 0)]


async def test_a_receiver_that_was_away_gets_what_it_missed_in_order(broker: Serving) -> None:
    receiver = DumbReceiver()
    await subscribe(broker, "orders", receiver.address, name="billing")
    await broker.publish(b"orders", payloads(100))
    found = await until_state(broker, "waiting")
    assert found["behind"] == 100
    async with receiver:
        assert await receiver.got(100) == messages("orders", 100)
        await until_acknowledged(broker)
    await broker.publish(b"orders", payloads(50, 100))
    async with receiver:
        assert await receiver.got(150) == messages("orders", 150)


async def test_what_was_not_acknowledged_when_the_connection_broke_comes_again(broker: Serving) -> None:
    seen: list[list[bytes]] = []

    async def break_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got: list[bytes] = []
        seen.append(got)
        while line := await reader.readline():
            got.append(line[:-1])
            if len(seen) > 1:
                writer.write(b"ACK\n")
            elif len(got) == 20:
                writer.write(b"ACK|7\n")
                await writer.drain()
                await until(lambda: broker.node.deliveries.stats.acknowledged == 7, "the acknowledgement")  # type: ignore[union-attr]
                return

    async with listening(break_once) as address:
        await broker.publish(b"orders", payloads(20))
        await subscribe(broker, "orders", address, **{"from": "earliest"})
        await until(lambda: len(seen) > 1 and len(seen[1]) == 13, "the rest")
        assert seen == [messages("orders", 20), messages("orders", 13, 7)]


async def test_messages_that_are_not_acknowledged_in_time_are_sent_again(tmp_path: Path) -> None:
    connections: list[list[bytes]] = []

    async def forget_at_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got: list[bytes] = []
        connections.append(got)
        while line := await reader.readline():
            got.append(line[:-1])
            if len(connections) > 1:
                writer.write(b"ACK\n")

    async with serving(tmp_path, callback_ack_timeout_ms=200) as broker, listening(forget_at_first) as address:
        await subscribe(broker, "orders", address)
        await broker.publish(b"orders", payloads(3))
        await until(lambda: len(connections) > 1 and len(connections[1]) == 3, "the second connection")
        assert connections == [messages("orders", 3)] * 2
        await until_acknowledged(broker)
        assert "no acknowledgement came" in (await standing(broker))["error"]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n", b"ACK|5\n", b"ACK|0\n", b"ACK|-1\n", b"x" * 40, b"\n", b"\xff\x1b[2J\n"]
)
async def test_who_answers_nonsense_is_dropped_and_moves_no_cursor(broker: Serving, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        await reader.read()

    async with listening(serve) as address:
        await subscribe(broker, "orders", address)
        await broker.publish(b"orders", payloads(1))
        found = await until_state(broker, "refused")
        assert found["behind"] == 1
        assert found["error"].isprintable() and len(found["error"]) < 200


async def test_an_acknowledgement_before_any_message_counts_for_none(broker: Serving) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ACK\n")
        await reader.read()

    async with listening(serve) as address:
        await subscribe(broker, "orders", address)
        await broker.publish(b"orders", payloads(1))
        found = await until_state(broker, "refused")
        assert found["behind"] == 1


async def test_one_that_neither_reads_nor_answers_delays_nobody(broker: Serving) -> None:
    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    count, value = 3000, b"x" * 1000
    async with listening(sleep) as address, DumbReceiver() as receiver:
        for each in (address, receiver.address):
            await subscribe(broker, "orders", each)
        await broker.publish(b"orders", [value] * count)
        await receiver.got(count)
        found = await broker.http("GET", "/v1/subscriptions")
        stuck = next(each for each in found["subscriptions"] if each["callback"] == address)
        # The window and one read more, and not all that there is.
        assert 0 < stuck["deliveries"][0]["unacknowledged"] < 1500
        assert stuck["behind"] == count


async def test_a_restarted_broker_goes_on_where_the_receiver_acknowledged(tmp_path: Path) -> None:
    async with DumbReceiver() as receiver:
        async with serving(tmp_path) as broker:
            await subscribe(broker, "orders", receiver.address, name="billing")
            await broker.publish(b"orders", payloads(500))
            await receiver.got(500)
        async with serving(tmp_path) as broker:
            await broker.publish(b"orders", payloads(10, 500))
            assert await receiver.got(510) == messages("orders", 510)
            assert (await standing(broker))["name"] == "billing"


async def test_after_unsubscribing_nothing_more_comes_and_no_cursor_is_left(broker: Serving) -> None:
    async with DumbReceiver() as receiver, await broker.connect() as talk:
        await subscribe(broker, "orders", receiver.address)
        publishing = asyncio.create_task(broker.publish(b"orders", payloads(5000)))
        await receiver.got(1)
        assert await talk.ask(f"UNSUBSCRIBE_CALLBACK|orders|{receiver.address}".encode()) == UNSUBACK
        await publishing
        await broker.publish(b"orders", [b"late"])
        assert await broker.http("GET", "/v1/subscriptions") == {"subscriptions": []}
        assert await broker.http("GET", "/v1/topics/orders/cursors") == {"cursors": []}
        await until(lambda: not broker.node.deliveries.told(), "the delivery to end")  # type: ignore[union-attr]
        assert b"MESSAGE|orders|late" not in receiver.lines


async def test_subscriptions_go_with_their_topic(broker: Serving) -> None:
    async with DumbReceiver() as receiver:
        await subscribe(broker, "orders", receiver.address)
        await broker.publish(b"orders", payloads(3))
        await receiver.got(3)
        await broker.http("DELETE", "/v1/topics/orders", expect=204)
        assert await broker.http("GET", "/v1/subscriptions") == {"subscriptions": []}
        await broker.publish(b"orders", payloads(3, 3))
        async with await broker.connect() as talk:
            assert await talk.ask(b"PUBLISH|orders|new") == PUBACK
        await until(lambda: not broker.node.deliveries.told(), "the delivery to end")  # type: ignore[union-attr]
        assert receiver.lines == messages("orders", 3)


async def test_two_hundred_receivers_each_get_everything(broker: Serving) -> None:
    async with contextlib.AsyncExitStack() as stack:
        receivers = [await stack.enter_async_context(DumbReceiver()) for _ in range(200)]
        for receiver in receivers:
            await subscribe(broker, "orders", receiver.address)
        await broker.publish(b"orders", payloads(30))
        for receiver in receivers:
            assert await receiver.got(30) == messages("orders", 30)


async def test_a_name_that_moves_to_another_address_goes_on_there(broker: Serving) -> None:
    async with DumbReceiver() as first, DumbReceiver() as second:
        await subscribe(broker, "orders", first.address, name="billing")
        await broker.publish(b"orders", payloads(5))
        await first.got(5)
        await until_acknowledged(broker)
        await subscribe(broker, "orders", second.address, name="billing")
        await broker.publish(b"orders", payloads(5, 5))
        assert await second.got(5) == messages("orders", 5, 5)
        assert first.lines == messages("orders", 5)


async def test_a_cursor_that_somebody_moves_back_is_followed(broker: Serving) -> None:
    async with DumbReceiver() as receiver:
        await subscribe(broker, "orders", receiver.address, name="billing")
        await broker.publish(b"orders", payloads(5))
        await receiver.got(5)
        await until_acknowledged(broker)
        await broker.http("PUT", "/v1/topics/orders/cursors/callback:billing", {"to": 3})
        assert await receiver.got(7) == messages("orders", 5) + messages("orders", 2, 3)


async def test_what_retention_took_before_it_was_delivered_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=4096, retention_check_ms=20) as broker:
        await broker.http("POST", "/v1/topics", {"topic": "orders", "retention_bytes": 4096}, expect=201)
        receiver = DumbReceiver()
        await subscribe(broker, "orders", receiver.address)
        for number in range(40):
            await broker.publish(b"orders", [b"%04d" % number + b"x" * 1000])
        await until(lambda: broker.node.broker.partition_range("orders", 0)[0] > 0, "retention")
        async with receiver:
            await until_acknowledged(broker)
            found = await standing(broker)
            assert found["lost"] == 40 - len(receiver.lines) > 0
            assert [line[15:19] for line in receiver.lines] == [b"%04d" % each for each in range(found["lost"], 40)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"SUBSCRIBE_CALLBACK|orders", b"bad_command"),
        (b"SUBSCRIBE_CALLBACK|orders|nowhere", b"bad_value"),
        (b"SUBSCRIBE_CALLBACK|orders|127.0.0.1:99999", b"bad_value"),
        (b"SUBSCRIBE_CALLBACK|or,ders|127.0.0.1:9000", b"bad_topic"),
        (b"SUBSCRIBE_CALLBACK|orders|10.1.2.3:9000", b"callback_refused"),
        (b"SUBSCRIBE_CALLBACK|orders|127.0.0.1:80", b"callback_refused"),
        (b"UNSUBSCRIBE_CALLBACK|orders|127.0.0.1:9000", b"subscription_not_found"),
    ],
)
async def test_a_line_that_cannot_be_followed_is_answered_with_why(broker: Serving, line: bytes, code: bytes) -> None:
    async with await broker.connect() as talk:
        assert (await talk.ask(line)).startswith(b"ERROR|" + code + b"|")
        assert await talk.is_usable()


async def test_receiver_is_told_that_it_was_subscribed_and_removed_where_that_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path, callback_acks=True) as broker, DumbReceiver() as receiver:
        async with await broker.connect() as talk:
            assert await talk.ask(f"SUBSCRIBE_CALLBACK|orders|{receiver.address}".encode()) == SUBACK
            assert await receiver.got(1) == [b"SUBACK|orders"]
            await broker.publish(b"orders", payloads(2))
            assert (await receiver.got(3))[1:] == messages("orders", 2)
            await until_acknowledged(broker)
            assert (await standing(broker))["state"] == "connected", "an ACK for such a line does no harm"
            assert await talk.ask(f"UNSUBSCRIBE_CALLBACK|orders|{receiver.address}".encode()) == UNSUBACK
            assert (await receiver.got(4))[3] == b"UNSUBACK|orders"
        # Over HTTP, too.
        await subscribe(broker, "orders", receiver.address, name="billing")
        assert (await receiver.got(5))[4] == b"SUBACK|orders"


async def test_subscription_of_a_receiver_that_cannot_be_told_is_made_all_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path, callback_acks=True) as broker:
        receiver = DumbReceiver()
        await subscribe(broker, "orders", receiver.address, name="billing")
        await broker.publish(b"orders", payloads(1))
        async with receiver:
            assert (await receiver.got(1))[-1:] == messages("orders", 1)
            await until_acknowledged(broker)


async def test_receiver_of_the_client_passes_over_what_it_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path, callback_acks=True) as broker, Receiver("127.0.0.1:0") as receiver:
        await subscribe(broker, "orders", receiver.address, format="numbered")
        await broker.publish(b"orders", payloads(3))
        assert [(await receiver.get()).value for _ in range(3)] == payloads(3)

"""Finding the broker: wrong ports, missing brokers, deadlines, few connections."""

from __future__ import annotations

import asyncio
import logging

import pytest

from holdfast.client import (
    Client,
    ClientClosed,
    ConnectionLost,
    RemoteError,
    WrongPort,
    connect,
)
from holdfast.testing.ports import free_port
from tests.client.client_servers import (
    INFO,
    Answer,
    Call,
    HangUp,
    Script,
    ScriptedServer,
    described,
    error,
    scripted,
    serving,
)


async def test_a_silent_broker_ends_in_an_error_that_says_what_was_tried() -> None:
    async with scripted(Script("never"), timeout_s=0.3) as (server, broker):
        with pytest.raises(ConnectionLost, match="no answer within") as caught:
            await broker.publish("orders", b"v")
    assert server.address in caught.value.message
    assert "/v1/topics/orders/partitions/0/batches" in caught.value.message


async def test_no_broker_at_all_ends_in_an_error_that_names_every_address() -> None:
    first, second = free_port(), free_port()
    with pytest.raises(ConnectionLost) as caught:
        async with connect(f"holdfast://127.0.0.1:{first},127.0.0.1:{second}", timeout_s=0.5):
            pass
    assert f"127.0.0.1:{first}: Connection refused" in caught.value.message
    assert f"127.0.0.1:{second}: Connection refused" in caught.value.message


async def test_the_second_address_is_used_when_the_first_is_down(caplog: pytest.LogCaptureFixture) -> None:
    down = free_port()
    async with ScriptedServer(Script()).running() as server, connect(f"127.0.0.1:{down},{server.address}") as broker:
        for _ in range(5):
            await broker.publish("orders", b"v")
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        f"lost the broker at 127.0.0.1:{down}: Connection refused; trying again"
    ], "one line a change, not one a try"


async def test_a_broker_that_comes_up_late_is_found() -> None:
    port = free_port()
    connecting = asyncio.create_task(Client(f"127.0.0.1:{port}").__aenter__())
    await asyncio.sleep(0.2)
    async with ScriptedServer(Script()).running(port):
        broker = await connecting
        await broker.publish("orders", b"v")
        await broker.close()


async def test_the_text_port_is_named_as_the_mistake() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"CONN")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"ACK|holdfast|0.1.0\n")
        await reader.read()

    async with serving(greet) as address:
        with pytest.raises(WrongPort, match=f"{address} is the broker's text port.*8090"):
            async with connect(address):
                pass


async def test_a_port_that_speaks_something_else_is_named_as_the_mistake() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP\r\n")
        await reader.read()

    async with serving(greet) as address:
        with pytest.raises(WrongPort, match="does not speak HTTP"):
            async with connect(address):
                pass


async def test_connections_are_few_and_reused() -> None:
    async with scripted(Script(partitions=50)) as (server, broker):
        for _ in range(20):
            await broker.publish("orders", b"v")
        assert server.connections == 1
        await asyncio.gather(*(broker.publish("orders", b"v", partition=number) for number in range(50)))
        assert server.connections <= 8


async def test_a_topic_created_behind_a_broken_connection_is_not_somebody_elses() -> None:
    tries = 0

    async def lose_first(call: Call) -> Answer:
        nonlocal tries
        if call.method == "POST":
            tries += 1
            if tries == 1:
                raise HangUp
            return 409, error("topic_exists")
        return (200, INFO) if call.target == "/v1/info" else (200, described("orders"))

    async with scripted(lose_first) as (_, broker):
        assert (await broker.create_topic("orders")).topic == "orders"
        with pytest.raises(RemoteError):
            await broker.create_topic("orders")


async def test_nothing_is_done_with_a_closed_client() -> None:
    async with ScriptedServer(Script()).running() as server:
        broker = connect(server.address)
        await broker.publish("orders", b"v")
        await broker.close()
        with pytest.raises(ClientClosed):
            await broker.publish("orders", b"v")
        with pytest.raises(ClientClosed):
            broker.subscribe("orders")


async def test_leaving_the_client_waits_for_publishes_that_were_begun() -> None:
    async with ScriptedServer(Script()).running() as server:
        broker = connect(server.address)
        publishing = asyncio.create_task(broker.publish("orders", b"v"))
        await asyncio.sleep(0)
        await broker.close()
        assert publishing.done()
        assert publishing.result().offset == 0


async def test_an_answer_that_is_no_json_is_an_error_and_no_crash() -> None:
    async def proxy(call: Call) -> Answer:
        return (200, INFO) if call.target == "/v1/info" else (403, b"<h1>Forbidden</h1>")

    async with scripted(proxy, timeout_s=0.3) as (_, broker):
        with pytest.raises(RemoteError, match="Forbidden") as caught:
            await broker.describe("orders")
    assert caught.value.code == "http_403"


@pytest.mark.parametrize(
    "answer",
    [
        (404, b"<h1>Not here</h1>"),
        (403, b""),
        (500, b"upstream trouble"),
        (404, b'{"error": {"code": "ResourceNotFound", "message": "no such resource"}}'),
        (400, b'{"error": {"code": 400, "message": "bad"}}'),
    ],
)
async def test_what_no_broker_said_is_asked_again_and_of_the_next_address(answer: Answer) -> None:
    asked: list[str] = []

    async def something_else(call: Call) -> Answer:
        asked.append(call.target)
        return answer

    async with ScriptedServer(something_else).running() as other, ScriptedServer(Script()).running() as server:
        addresses = other.address + "," + server.address.removeprefix("holdfast://")
        async with connect(addresses) as broker:
            assert (await broker.describe("orders")).topic == "orders"
    assert asked == ["/v1/info"]


async def test_what_a_broker_refuses_is_not_asked_again() -> None:
    asked: list[str] = []

    async def broker_says_no(call: Call) -> Answer:
        asked.append(call.target)
        return (200, INFO) if call.target == "/v1/info" else (404, error("topic_not_found"))

    async with scripted(broker_says_no) as (_, broker):
        with pytest.raises(RemoteError) as caught:
            await broker.describe("orders")
    assert caught.value.code == "topic_not_found" and asked == ["/v1/info", "/v1/topics/orders"]

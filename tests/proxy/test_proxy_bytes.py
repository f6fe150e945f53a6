"""What passes between a client, the proxy and a node: no byte of one request or answer becomes part of another."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.client.addresses import Address
from holdfast.model.limits import READERS_PER_CURSOR_MAX
from holdfast.proxy.groups import Group
from holdfast.proxy.readers import AT_ONCE_MAX
from holdfast.proxy.relay import Relay
from holdfast.proxy.settings import SLOTS, Settings, parse_groups
from holdfast.testing.ports import free_port
from tests.proxy.fake_node import Got, answer, faking
from tests.proxy.proxies import ProxyClient, proxying

TOPIC = b'{"topic":"orders"}'


async def plain(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(json.dumps({"line": got.line}).encode()))


def raw(proxy: ProxyClient, request: bytes) -> bytes:
    """One answer to bytes as they are."""
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=60)) as client:
        client.sendall(request)
        found = b""
        while b"\r\n\r\n" not in found:
            found += client.recv(65536)
        return found


def queue_of(proxy: ProxyClient, number: int = 1) -> int:
    return number * SLOTS + proxy.running.groups[0].slot


CONNECTION_FIELDS = [
    "Connection: content-length",
    "Connection: keep-alive\r\nConnection: x, Content-Length",
    "Connection: host, content-length, transfer-encoding, content-type",
]


@pytest.mark.parametrize("connection", CONNECTION_FIELDS)
def test_client_cannot_hide_a_second_request_in_the_body_of_its_first(connection: str) -> None:
    hidden = b"POST /create_queue HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
    fields = f"{connection}\r\nContent-Type: application/json\r\nContent-Length: {len(hidden)}"
    with faking(plain) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        for method in ("GET", "POST"):
            head = f"{method} /v1/topics/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}\r\n\r\n"
            assert raw(proxy, head.encode() + hidden).startswith(b"HTTP/1.1 200")
        for got in node.got:
            assert got.body == hidden and got.values("content-length") == [str(len(hidden))]
            assert got.values("content-type") == ["application/json"] and got.values("host") != ["127.0.0.1"]
            assert not got.values("transfer-encoding") and not got.values("connection")
        assert not any("create_queue" in line for line in node.lines)


@pytest.mark.parametrize("ending", ["Content-Length: 400", "Transfer-Encoding: chunked"])
def test_body_that_an_upgrade_cuts_off_reaches_no_node(ending: str) -> None:
    upgrade = "Connection: upgrade\r\nUpgrade: h2c\r\nContent-Type: text/plain"
    head = f"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{upgrade}\r\n{ending}\r\n\r\n"
    with faking(plain) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        assert raw(proxy, head.encode()).startswith(b"HTTP/1.1 400")
        assert "orders" in proxy.get("/v1/topics/orders").json["line"]
        assert node.lines == ["GET /v1/topics/orders HTTP/1.1"]


async def test_connection_that_owes_a_node_a_body_carries_no_other_request() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer(b"{}"))
            await reader.read()

    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    events.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    server = await asyncio.start_server(early, "127.0.0.1", free_port())
    host, port = server.sockets[0].getsockname()
    groups = parse_groups([f"g={host}:{port}"])
    group = Group(groups[0], Settings(listen=Address(host, 0), groups=groups), Counter())
    relay = Relay(group, "POST", b"/v1/topics/t/messages", [(b"content-length", b"400")], events.get)
    response = await relay.response()
    assert response.stream is not None
    assert b"".join([piece async for piece in response.stream]) == b"{}"
    assert group.nodes[0].calls.open == 0
    server.close()


def test_fields_of_one_connection_stay_there_in_both_directions() -> None:
    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        more = ("Connection: x-hop", "Connection: content-length, x-other", "X-Hop: 1", "X-Other: 1", "X-Kept: 1")
        writer.write(answer(b"{}", *more))

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        found = raw(
            proxy,
            b"GET /v1/topics/orders HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: x-mine\r\nConnection: x-too\r\n"
            b"X-Mine: 1\r\nX-Too: 1\r\nX-Stays: 1\r\n\r\n",
        ).lower()
        assert b"x-kept" in found and b"x-hop" not in found and b"x-other" not in found
        assert found.count(b"content-length: 2") == 1 and b"transfer-encoding" not in found
        names = {name for name, _ in node.got[-1].fields}
        assert "x-stays" in names and not names & {"x-mine", "x-too", "connection"}


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_answer_that_nobody_asked_for_reaches_nobody(pause_s: float) -> None:
    told = 0

    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        nonlocal told
        own, stolen = answer(json.dumps({"line": got.line}).encode()), answer(b'{"line":"stolen"}')
        writer.write(own if pause_s else own + stolen)
        if pause_s:
            await asyncio.sleep(pause_s)
            writer.write(stolen)
        told += 1

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        calls = proxy.running.groups[0].nodes[0].calls
        append = {"queue_id": queue_of(proxy), "value": 1}
        for place in range(6):
            is_append = place % 2 == 1
            found = proxy.call("POST", "/append", append) if is_append else proxy.get(f"/v1/topics/t-{place}")
            assert ("/append" if is_append else f"t-{place}") in found.json["line"]
            wait_until(lambda: told == len(node.got), "the node has said more than it was asked")
            wait_until(lambda: not any(each.is_reusable for each in calls._idle), "nobody will get that connection")


def test_answer_that_comes_in_pieces_arrives_whole() -> None:
    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        whole = answer(b'{"topic":"orders"}', status="201 Created")
        writer.write(whole[:-10])
        await asyncio.sleep(0.05)
        writer.write(whole[-10:])

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        made = proxy.call("POST", "/v1/topics", TOPIC)
        assert (made.status, made.body) == (201, TOPIC)
        [got] = node.got
        assert got.body == TOPIC and got.values("content-length") == [str(len(TOPIC))]


def test_publish_that_may_be_stored_is_told_from_one_that_was_never_sent() -> None:
    async def hang_up(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.line.startswith("POST"):
            writer.transport.abort()
        else:
            writer.write(answer(b'{"topic":"orders"}'))

    published = {"messages": [{"value": "x"}]}
    with faking(hang_up) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        unknown = proxy.call("POST", "/v1/topics/orders/messages", published)
        assert (unknown.status, unknown.code) == (503, "leader_changed")
    with proxying([f"g=127.0.0.1:{free_port()}"]) as proxy:
        unsent = proxy.call("POST", "/v1/topics/orders/messages", published)
        assert (unsent.status, unsent.code) == (503, "no_group_answers")


def test_tails_and_uploads_leave_queue_calls_and_health_checks_their_connections() -> None:
    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        if "/tail" in got.line:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\n\r\n")
            await asyncio.sleep(30)
        await plain(got, writer)

    bounds = {"streams_per_node_max": 2, "connections_per_node_max": 2, "attempt_s": 0.3}
    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"], **bounds) as proxy:
        tails = []
        for _ in range(2):
            tail = proxy.connect()
            tail.request("GET", "/v1/topics/orders/tail")
            assert tail.getresponse().status == 200
            tails.append(tail)
        for path in ("/v1/topics/orders/tail", "/v1/topics/orders/partitions/0/messages?wait_ms=1000"):
            refused = proxy.get(path)
            assert (refused.status, refused.code) == (503, "overloaded")
        assert proxy.call("POST", "/append", {"queue_id": queue_of(proxy), "value": 1}).status == 200
        assert proxy.get("/v1/topics/orders").status == 200
        assert proxy.nodes_up == [True]
        tails[0].close()
        wait_until(lambda: proxy.running.groups[0].nodes[0].streams.open < 2, "whoever leaves makes room")
        assert proxy.get("/v1/topics/orders/partitions/0/messages").status == 200
        tails[1].close()


def test_client_that_leaves_during_a_long_poll_takes_no_connection_with_it() -> None:
    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        poll = proxy.connect()
        poll.request("GET", "/v1/topics/orders/partitions/0/messages?wait_ms=60000")
        streams = proxy.running.groups[0].nodes[0].streams
        wait_until(lambda: streams.open == 1 and bool(node.got), "the node is asked")
        poll.close()
        wait_until(lambda: streams.open == 0, "the node is hung up on")


def test_node_that_has_all_it_may_have_is_passed_over_for_the_next_one() -> None:
    async def never(got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    bounds = {"connections_per_node_max": 1, "attempt_s": 0.3, "patience_s": 5.0}
    with (
        faking(never) as stuck,
        faking(plain) as well,
        proxying([f"g=127.0.0.1:{stuck.port},127.0.0.1:{well.port}"], **bounds) as proxy,
    ):
        for _ in range(6):
            assert proxy.call("POST", "/append", {"queue_id": queue_of(proxy), "value": 1}).status == 200
        [(name, count)] = [(line, len(well.lines)) for line in set(well.lines)]
        assert "/append" in name and count == 6


def test_whoever_looks_after_the_nodes_survives_what_it_did_not_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    with faking(plain) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        watched = proxy.running.groups[0].nodes[0]

        async def broken(*_: object) -> None:
            raise RuntimeError("no node has ever done this")

        with monkeypatch.context() as patched:
            patched.setattr(watched, "exchange", broken)
            wait_until(lambda: not watched.is_up, "the check has failed")
        wait_until(lambda: watched.is_up, "the next check is made")


def test_name_in_a_path_is_the_same_name_however_it_is_written() -> None:
    with faking(plain) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        proxy.get(f"/v1/topics/queue%2D{queue_of(proxy, 7)}")
        proxy.get("/v1/topics/%6Frders/cursors/a%2Fb?x=%20")
        proxy.get("/v1/topics/a%20b%2Fc")
        assert node.lines == [
            "GET /v1/topics/queue-7 HTTP/1.1",
            "GET /v1/topics/orders/cursors/a%2Fb?x=%20 HTTP/1.1",
            "GET /v1/topics/a%20b%2Fc HTTP/1.1",
        ]
        assert proxy.get("/v1/topics/%ff").code == "bad_value"


def test_queues_get_their_numbers_from_a_group_and_not_from_a_name() -> None:
    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        is_there = got.line.startswith("GET /v1/topics/queue-3 ") or got.line.startswith("POST")
        writer.write(answer(b"{}", status="200 OK" if is_there else "404 Not Found"))

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        refused = proxy.call("POST", "/v1/topics", {"topic": f"queue-{queue_of(proxy, 9)}"})
        assert (refused.status, refused.code) == (400, "bad_topic")
        published = {"messages": [{"value": "x"}]}
        unknown = proxy.call("POST", f"/v1/topics/queue-{queue_of(proxy, 9)}/messages", published)
        assert (unknown.status, unknown.code) == (404, "topic_not_found")
        assert not any(line.startswith("POST") for line in node.lines)
        for _ in range(2):
            assert proxy.call("POST", f"/v1/topics/queue-{queue_of(proxy, 3)}/messages", published).status == 200
        assert node.lines[-3:] == [
            "GET /v1/topics/queue-3 HTTP/1.1",
            *["POST /v1/topics/queue-3/messages HTTP/1.1"] * 2,
        ]


def test_metrics_have_few_labels_whatever_is_asked() -> None:
    with faking(plain) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        for place in range(3):
            raw(proxy, b'GET /zz%d"}%%20 HTTP/1.1\r\nHost: evil.example\r\n\r\n' % place)
            raw(proxy, b'GET /v1/zz%d"}/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n' % place)
            proxy.get(f"/v1/topics/t{place}")
        assert {call for call, _ in proxy.running.proxy.answers} == {"topics", "other"}
        assert "zz" not in proxy.get("/metrics").body.decode()


def test_queue_is_made_in_a_pair_that_keeps_no_ids() -> None:
    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.json:
            writer.write(answer(b'{"error":{"code":"not_replicable","message":"m"}}', status="400 Bad Request"))
        else:
            writer.write(answer(b'{"queue_id":5}'))

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        assert proxy.ask("/create_queue") == {"queue_id": queue_of(proxy, 5)}
        # The client's own id is a promise that the pair does not give.
        assert proxy.call("POST", "/create_queue", {"request_id": "a:1"}).code == "not_replicable"


def test_topics_of_a_group_that_fails_are_not_left_out_of_the_list() -> None:
    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b'{"error":{"code":"internal","message":"m"}}', status="500 Internal Server Error"))

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        listed = proxy.get("/v1/topics")
        assert (listed.status, listed.code) == (503, "no_group_answers")


async def test_broker_remembers_all_readers_that_a_proxy_asks_for_at_once() -> None:
    under_way: set[str] = set()
    most = 0

    async def reply(got: Got, writer: asyncio.StreamWriter) -> None:
        nonlocal most
        reader = got.json["request_id"].rpartition(":")[0]
        assert reader not in under_way, "two requests of one reader at the same time"
        under_way.add(reader)
        most = max(most, len(under_way))
        await asyncio.sleep(0.2 if len(node.got) <= AT_ONCE_MAX else 0)
        under_way.discard(reader)
        writer.write(answer(b'{"message_id":null,"value":null}'))

    async def read(port: int, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        fields = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"POST /read HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body)
        try:
            return await reader.readuntil(b"null}")
        finally:
            writer.close()

    with faking(reply) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        body = json.dumps({"queue_id": queue_of(proxy), "client_id": "w"}).encode()
        found = await asyncio.gather(*(read(proxy.port, body) for _ in range(AT_ONCE_MAX + 40)))
        assert all(b" 200 OK" in each for each in found)
        names = {got.json["request_id"].rpartition(":")[0] for got in node.got}
    assert most == len(names) == AT_ONCE_MAX and AT_ONCE_MAX * 4 <= READERS_PER_CURSOR_MAX


def test_value_that_the_proxy_sent_again_is_no_duplicate_of_its_client() -> None:
    answered = 0

    async def lose_the_first(got: Got, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        if answered == 1:
            writer.close()
        else:
            writer.write(answer(b'{"message_id":5,"duplicate":true}'))

    with faking(lose_the_first) as node, proxying([f"g=127.0.0.1:{node.port}"]) as proxy:
        assert proxy.ask("/append", queue_id=queue_of(proxy), value=1) == {"message_id": 5}
        again = proxy.ask("/append", queue_id=queue_of(proxy), value=1, id="of the client")
        assert again == {"message_id": 5, "duplicate": True}
    assert answered == 3

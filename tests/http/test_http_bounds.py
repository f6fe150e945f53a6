"""What one client may take of memory, time and connections, and how the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.frontends.http import HttpFrontend
from holdfast.frontends.http.connection import Bounds
from tests.http.http_server import JSON, Answer, Server, answer_of, serving

PUBLISH = "/v1/topics/orders/messages"
HEAD = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def response_on(raw: socket.socket) -> Answer:
    response = http.client.HTTPResponse(raw)
    response.begin()
    return answer_of(response)


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def closed_by_server(raw: socket.socket) -> bool:
    try:
        return raw.recv(1) == b""
    except ConnectionResetError:
        return True


def send_for_ever(raw: socket.socket, piece: bytes) -> None:
    """Until the server ends the connection, which is an error here."""
    for _ in range(2000):
        raw.sendall(piece)
        time.sleep(0.01)


# --- bodies ---------------------------------------------------------------------------------------------


def test_announced_body_over_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with serving(tmp_path / "data", body_bytes_max=1000) as server, connect(server) as raw:
        raw.sendall(HEAD + b"Content-Length: 1001\r\n\r\n")
        refused = response_on(raw)
        assert (refused.status, refused.code) == (413, "too_large")
        assert "1001" in refused.message and "1000" in refused.message


def test_body_without_length_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    """A client that streams for ever is answered, and never more than the limit is held."""
    with serving(tmp_path / "data", body_bytes_max=100_000) as server, connect(server) as raw:
        raw.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%b\r\n" % (50_000, b"x" * 50_000)
        for _ in range(40):
            raw.sendall(piece)
            assert server.load.body_bytes <= 100_000
        refused = response_on(raw)
        assert (refused.status, refused.code) == (413, "too_large")
        raw.sendall(b"0\r\n\r\n")
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert response_on(raw).status == 200, "the connection is still good"


def test_request_for_another_protocol_is_answered_as_it_is_unless_its_body_would_be_lost(server: Server) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    with connect(server) as raw:
        for _ in range(2):
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
            assert response_on(raw).status == 200
        raw.sendall(HEAD + upgrade + b"Content-Length: 2\r\n\r\n{}")
        refused = response_on(raw)
        assert (refused.status, refused.code) == (400, "bad_http") and "Upgrade" in refused.message
        assert closed_by_server(raw)


def test_body_at_the_limit_is_taken(tmp_path: Path) -> None:
    body = json.dumps({"messages": [{"value": "x" * 900}]}).encode()
    with serving(tmp_path / "data", body_bytes_max=len(body)) as server:
        assert server.call("POST", PUBLISH, body).status == 200
        assert server.call("POST", PUBLISH, body + b" ").code == "too_large"


def test_body_in_many_pieces_is_joined(server: Server) -> None:
    body = json.dumps({"messages": [{"value": str(number) * 50} for number in range(3000)]}).encode()
    with connect(server) as raw:
        raw.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 7001):
            piece = body[start : start + 7001]
            raw.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        raw.sendall(b"0\r\n\r\n")
        assert len(response_on(raw).json["results"]) == 3000


def test_refused_body_that_never_ends_is_not_read_for_ever(tmp_path: Path) -> None:
    bounds = Bounds(connections_max=10, sweep_interval_s=0.05, refused_body_s=0.3)
    with serving(tmp_path / "data", body_bytes_max=1000, bounds=bounds) as server, connect(server) as raw:
        raw.sendall(HEAD + b"Content-Length: 100000000000\r\n\r\n")
        assert response_on(raw).code == "too_large"
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_for_ever(raw, b"x" * 10_000)


def test_all_bodies_together_are_bounded(tmp_path: Path) -> None:
    with serving(tmp_path / "data", body_bytes_max=100_000) as server:
        holders = [connect(server) for _ in range(8)]
        for raw in holders:
            raw.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b" " * 99_999)
        wait_until(lambda: server.load.body_bytes == 8 * 99_999, "all that was sent is held")
        refused = server.call("POST", PUBLISH, b" " * 100)
        assert (refused.status, refused.code) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert server.get("/health").status == 200
        for raw in holders:
            raw.close()
        wait_until(lambda: server.load.body_bytes == 0, "nothing is held")
        assert server.publish("orders", "a")


def test_expect_continue_is_answered_before_the_body_comes(tmp_path: Path) -> None:
    body = b'{"messages": [{"value": "a"}]}'
    with serving(tmp_path / "data", body_bytes_max=1000) as server:
        with connect(server) as raw:
            raw.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            raw.sendall(body)
            assert response_on(raw).status == 200
        with connect(server) as raw:
            raw.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n")
            refused = response_on(raw)
            assert (refused.code, refused.headers["connection"]) == ("too_large", "close")
            assert closed_by_server(raw)


# --- time -----------------------------------------------------------------------------------------------


def test_request_that_stops_halfway_is_ended(tmp_path: Path) -> None:
    bounds = Bounds(connections_max=10, sweep_interval_s=0.05, headers_timeout_s=0.3, body_silence_s=0.3)
    with serving(tmp_path / "data", bounds=bounds) as server:
        for sent in (
            b"",
            b"GET /heal",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
            HEAD + b"Content-Length: 100\r\n\r\nhalf",
        ):
            with connect(server) as raw:
                raw.sendall(sent)
                began = time.monotonic()
                refused = response_on(raw)
                assert time.monotonic() - began > 0.2
                assert (refused.status, refused.code) == (408, "request_timeout"), sent
                assert closed_by_server(raw)


def test_headers_that_drip_do_not_hold_a_connection(tmp_path: Path) -> None:
    bounds = Bounds(connections_max=10, sweep_interval_s=0.05, headers_timeout_s=0.5)
    with serving(tmp_path / "data", bounds=bounds) as server, connect(server) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_for_ever(raw, b"X-Drip: 1\r\n")


def test_body_that_drips_is_taken_while_it_moves(tmp_path: Path) -> None:
    body = b'{"messages": [{"value": "slow"}]}'
    bounds = Bounds(connections_max=10, sweep_interval_s=0.05, headers_timeout_s=0.3, body_silence_s=0.4)
    with serving(tmp_path / "data", bounds=bounds) as server, connect(server) as raw:
        raw.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
        for place in range(len(body)):
            raw.sendall(body[place : place + 1])
            time.sleep(0.03)
        assert response_on(raw).status == 200


def test_answer_that_nobody_takes_is_dropped(tmp_path: Path) -> None:
    bounds = Bounds(connections_max=10, sweep_interval_s=0.05, write_stall_s=0.5)
    with serving(tmp_path / "data", bounds=bounds) as server:
        for _ in range(8):
            server.publish("orders", "x" * 1_000_000)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(
            b"GET /v1/topics/orders/partitions/0/messages?max_bytes=8000000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        wait_until(lambda: server.load.connections == 1, "the request is there")
        wait_until(lambda: server.load.connections == 0, "its connection is dropped")
        raw.close()


def test_client_that_takes_no_answers_gets_no_more_of_them_into_memory(server: Server) -> None:
    queue = server.call("POST", "/create_queue", {}).json["queue_id"]
    server.call("POST", "/append", {"queue_id": queue, "value": "x" * 500_000})
    body = json.dumps({"queue_id": queue, "client_id": "w", "request_id": "r:1"}).encode()
    head = b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(server) as raw:
        for _ in range(60):
            raw.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            time.sleep(0.01)  # each comes in one piece, as from a client that waits
        assert server.load.untaken_bytes < 3_000_000
        taken = 0
        while taken < 60 * 500_000:
            taken += len(raw.recv(1_000_000))


# --- connections ----------------------------------------------------------------------------------------


def test_endless_headers_are_refused(server: Server) -> None:
    for filler in (b"X-Many: 1\r\n" * 1000, b"x" * 10_000):
        with connect(server) as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\nX-Long: ")
            sent = 0
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                while sent < 10_000_000:
                    raw.sendall(filler)
                    sent += len(filler)
                    time.sleep(0.002)
            assert sent < 2_000_000


def test_headers_just_over_the_limit_get_an_answer(server: Server) -> None:
    with connect(server) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nX-Long: ")
        time.sleep(0.1)
        raw.sendall(b"x" * 66_000)
        refused = response_on(raw)
        assert (refused.status, refused.code) == (431, "headers_too_large")


def test_long_headers_within_the_limit_are_taken(server: Server) -> None:
    server.create("orders")
    last = ",".join(f"{number}-1000000000" for number in range(1024))
    assert server.get("/v1/topics", Last_Event_ID=last).status == 200


def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    with serving(tmp_path / "data", connections_max=3) as server:
        held = [connect(server) for _ in range(3)]
        wait_until(lambda: server.load.connections == 3, "all places are taken")
        with connect(server) as raw:
            refused = response_on(raw)
            assert (refused.status, refused.code) == (429, "too_many_connections")
        for raw in held:
            raw.close()
        wait_until(lambda: server.load.connections == 0, "the places are given back")
        metrics = server.get("/metrics").body
        assert b'"holdfast_http_refused_connections_total"' in metrics


def test_connection_is_kept_for_the_next_request(server: Server) -> None:
    connection = server.connect()
    for number in range(50):
        connection.request("POST", PUBLISH, json.dumps({"messages": [{"value": str(number)}]}), JSON)
        assert json.loads(connection.getresponse().read())["results"][0]["offset"] == number
    sock = connection.sock
    connection.request("GET", "/nothing")
    assert connection.getresponse().read()
    assert connection.sock is sock
    connection.close()


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    body = b'{"messages": [{"value": "a"}]}'
    one = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with connect(server) as raw:
        raw.sendall(one * 20)
        offsets = []
        stream = raw.makefile("rb")
        for _ in range(20):
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.startswith(b"content-length: "):
                    length = int(line.split()[1])
            offsets.append(json.loads(stream.read(length))["results"][0]["offset"])
        assert offsets == list(range(20))


# --- start and stop -------------------------------------------------------------------------------------


def test_address_that_is_taken_is_named(server: Server, tmp_path: Path) -> None:
    async def start() -> None:
        other = HttpFrontend(server.broker, info=lambda: None, log=lambda event, **fields: None)  # type: ignore[arg-type, return-value]
        await other.start("127.0.0.1", server.port)

    with pytest.raises(OSError, match=rf"Address already in use: '127.0.0.1:{server.port}'"):
        asyncio.run(start())


def test_unknown_host_is_named(server: Server) -> None:
    with pytest.raises(OSError, match=r"no\.such\.host\.invalid:8090"):
        server.run(server.frontend.start("no.such.host.invalid", 8090))


def test_stop_ends_polls_and_streams_at_once(server: Server) -> None:
    server.create("orders")
    answers: list[Answer] = []
    poll = threading.Thread(
        target=lambda: answers.append(server.get("/v1/topics/orders/partitions/0/messages?wait_ms=60000"))
    )
    poll.start()
    stream = server.connect()
    stream.request("GET", "/v1/topics/orders/tail")
    response = stream.getresponse()
    idle = connect(server)
    half = connect(server)
    half.sendall(b"GET /hea")
    wait_until(lambda: (server.load.waits, server.load.tails, server.load.connections) == (2, 1, 4), "all are there")
    server.run(server.frontend.stop(drain_s=600))
    poll.join(60)
    assert answers[0].json == {"messages": [], "next_offset": 0}
    assert response.read() == b"retry: 1000\n\n"
    assert closed_by_server(idle) and closed_by_server(half)
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    for one in (stream, idle, half):
        one.close()


def test_publish_that_has_begun_is_finished_before_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    original = server.broker.publish_values
    begun: list[Any] = []

    def slow(topic: str, values: list[bytes]) -> Any:
        publishing = original(topic, values)
        begun.append(publishing)

        async def later() -> Any:
            offset = await publishing.offset
            await asyncio.get_running_loop().run_in_executor(None, release.wait)
            return offset

        return publishing._replace(offset=asyncio.ensure_future(later()))

    monkeypatch.setattr(server.broker, "publish_values", slow)
    answers: list[list[dict[str, Any]]] = []
    publisher = threading.Thread(target=lambda: answers.append(server.publish("orders", "a")))
    publisher.start()
    wait_until(lambda: len(begun) == 1, "it has begun")
    stopping = asyncio.run_coroutine_threadsafe(server.frontend.stop(drain_s=10), server.loop)
    time.sleep(0.2)
    assert not stopping.done()
    release.set()
    stopping.result(60)
    publisher.join(60)
    assert answers == [[{"partition": 0, "offset": 0, "duplicate": False}]]


def test_request_that_never_ends_does_not_hold_up_the_end(server: Server) -> None:
    with connect(server) as raw:
        raw.sendall(HEAD + b"Content-Length: 100\r\n\r\nhalf")
        wait_until(lambda: server.load.body_bytes == 4, "the server has half of it")
        began = time.monotonic()
        server.run(server.frontend.stop(drain_s=0.5))
        assert time.monotonic() - began > 0.4
        assert closed_by_server(raw)


def test_bounds_are_what_the_docs_say() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    bounds = Bounds(connections_max=1)
    for value in (bounds.headers_timeout_s, bounds.body_silence_s, bounds.write_stall_s):
        assert f"{value:g} seconds" in text
    assert f"{bounds.headers_bytes_max // 1024} KiB" in text
    assert bounds.sweep_interval_s <= 5

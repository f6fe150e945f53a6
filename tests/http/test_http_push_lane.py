"""The short way of a small push: the same answers as the general way, whatever comes in between."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.http.http_server import Server, serving

BODY = b'{"items": [{"queue": "q", "payload": 1, "transactionId": "%b"}]}'
HEAD = b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def request(transaction: bytes = b"t", more: bytes = b"", body: bytes = BODY) -> bytes:
    body = body % transaction if b"%b" in body else body
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def talking(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        yield connection


def answers(connection: socket.socket, count: int) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    found = []
    stream = connection.makefile("rb")
    for _ in range(count):
        status = int(stream.readline().split()[1])
        headers = dict(line.strip().split(b": ", 1) for line in iter(stream.readline, b"\r\n"))
        found.append((status, headers, stream.read(int(headers[b"content-length"]))))
    return found


def took_the_short_way(server: Server) -> bool:
    """Whether the last request did; the general way makes a task of each."""
    return not any(connection.cycle for connection in server.frontend._listening._connections())


def test_short_way_and_general_way_answer_the_same(server: Server) -> None:
    bodies = [
        BODY % b"new",
        BODY % b"new",
        b'{"items": []}',
        b'{"items": [{"queue": "bad,name"}]}',
        b'{"items": [{"queue": "q", "payload": NaN}]}',
        b'{"items": [{"queue": "q", "transactionId": "\\u0000"}]}',
        b'{"items": [{"queue": "a", "transactionId": "x"}, {"queue": "b", "transactionId": "x"}]}',
    ]
    for place, body in enumerate(bodies):
        with talking(server) as short, talking(server) as general:
            short.sendall(request(body=body))
            [one] = answers(short, 1)
            general.sendall(request(body=body, more=b"TE: trailers\r\n"))
            [other] = answers(general, 1)
        if place == 0:
            assert (json.loads(one[2])[0]["status"], json.loads(other[2])[0]["status"]) == ("queued", "duplicate")
            one, other = ((each[0], {}, re.sub(b"queued|duplicate", b"", each[2])) for each in (one, other))
        assert _without_lengths(one) == _without_lengths(other)
    metrics = server.get("/metrics?format=prometheus").body.decode()
    assert 'holdfast_http_requests_total{operation="push",status="201"}' in metrics


def _without_lengths(answer: tuple[int, dict[bytes, bytes], bytes]) -> object:
    status, headers, body = answer
    body = re.sub(b"queued", b"duplicate", body)
    return status, {name: text for name, text in headers.items() if name != b"content-length"}, body


def test_pushes_in_any_pieces_are_all_answered_in_order(shared_server: Server) -> None:
    for step in (1, 7, 60, 170, 1000):
        stream = b"".join(request(b"%d-%d" % (step, number)) for number in range(20))
        with talking(shared_server) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start in range(0, len(stream), step):
                connection.sendall(stream[start : start + step])
            found = [json.loads(body)[0] for _, _, body in answers(connection, 20)]
        assert [each["transaction_id"] for each in found] == [f"{step}-{number}" for number in range(20)]
        assert {each["status"] for each in found} == {"queued"}


def test_other_requests_between_pushes_keep_their_turn(shared_server: Server) -> None:
    health = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with talking(shared_server) as connection:
        for first, second in ((request(b"a"), health), (health, request(b"b"))):
            connection.sendall(first)
            connection.sendall(second)
            bodies = [body for _, _, body in answers(connection, 2)]
            assert [b"alive" in body for body in bodies] == [b"/health" in first, b"/health" in second]
        connection.sendall(request(b"c"))
        assert answers(connection, 1)[0][0] == 201
        connection.sendall(b"nonsense\r\n\r\n")
        assert answers(connection, 1)[0][0] == 400


def test_head_that_is_not_usual_is_for_the_general_way(shared_server: Server) -> None:
    for more, status in [
        (b"Origin: http://elsewhere.example\r\n", 403),
        (b"Content-Encoding: gzip\r\n", 415),
        (b"Content-Length: 3\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n", 400),
        (b"X-Folded: a\r\n b\r\n", 400),
        (b"Expect: 100-continue\r\n", 100),
        (b"X: \xff\r\n", 201),
    ]:
        with talking(shared_server) as connection:
            connection.sendall(request(more=more))
            found = connection.recv(65536)
        assert int(found.split()[1]) == status, (more, found)


def test_body_that_is_too_large_is_refused_on_either_way(tmp_path: Path) -> None:
    body = b'{"items":[{"queue":"q","payload":"%b"}]}' % (b"x" * 2000)
    with serving(tmp_path / "data", body_bytes_max=2000) as server, talking(server) as connection:
        connection.sendall(request(body=body))
        connection.settimeout(30)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_usual_head_of_another_host_is_refused(shared_server: Server) -> None:
    for _ in range(2):
        with talking(shared_server) as connection:
            connection.sendall(request().replace(b"Host: 127.0.0.1", b"Host: evil.example"))
            assert answers(connection, 1)[0][0] == 403


def test_small_pushes_of_many_connections_are_one_write(server: Server) -> None:
    server.create("q")
    before = server.broker.stats.published_batches
    gate = threading.Event()
    server.loop.call_soon_threadsafe(gate.wait, 20)
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(30)]
    for number, connection in enumerate(connections):
        connection.sendall(request(b"t%d" % number))
    gate.set()
    for connection in connections:
        assert answers(connection, 1)[0][0] == 201
    assert took_the_short_way(server)
    for connection in connections:
        connection.close()
    assert server.broker.stats.published_batches - before < 15


def test_push_under_way_is_answered_before_the_broker_leaves(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, talking(server) as connection:
        server.create("q")
        gate = threading.Event()
        server.loop.call_soon_threadsafe(gate.wait, 20)
        connection.sendall(request())
        stopping = threading.Thread(target=lambda: server.run(server.frontend.stop(5)))
        stopping.start()
        gate.set()
        try:
            found = connection.recv(65536)
        except ConnectionResetError:
            found = b""  # the connection was closed before the request was read
        stopping.join(60)
        _, stored = server.broker.partition_range("q", 0)
    assert (found[:12], stored) in {(b"", 0), (b"HTTP/1.1 201", 1)}, "it was not begun, or it is answered"


def test_client_that_leaves_is_pushed_all_the_same(server: Server) -> None:
    server.create("q")
    gate = threading.Event()
    server.loop.call_soon_threadsafe(gate.wait, 20)
    with talking(server) as connection:
        connection.sendall(request(b"left"))
    gate.set()
    with talking(server) as connection:
        connection.sendall(request(b"left"))
        [(status, _, body)] = answers(connection, 1)
    assert status == 201 and json.loads(body)[0]["status"] in {"queued", "duplicate"}
    assert len(server.get("/v1/topics/q/partitions/0/messages").json["messages"]) == 1

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.frontends.http import tail as tail_module
from tests.http.http_server import Server


@dataclass
class Event:
    name: str = "message"
    id: str = ""
    data: Any = None


@dataclass
class Stream:
    """Server-sent events as the standard describes how to read them."""

    response: http.client.HTTPResponse

    def __iter__(self) -> Iterator[Event]:
        event = Event()
        data: list[str] = []
        while line := self.response.readline().decode():
            line = line.rstrip("\n")
            name, _, value = line.partition(": ")
            if name == "event":
                event.name = value
            elif name == "id":
                event.id = value
            elif name == "data":
                data.append(value)
            elif not line and data:
                event.data = json.loads("\n".join(data))
                yield event
                event, data = Event(), []

    def take(self, count: int) -> list[Event]:
        events = iter(self)
        return [next(events) for _ in range(count)]


@contextmanager
def tailing(server: Server, query: str = "", topic: str = "orders", **headers: str) -> Iterator[Stream]:
    connection = server.connect()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", f"/v1/topics/{topic}/tail{query}", headers=named)
    response = connection.getresponse()
    try:
        assert response.status == 200, response.read()
        assert response.getheader("content-type") == "text/event-stream"
        yield Stream(response)
    finally:
        connection.sock and connection.sock.close()
        response.close()
        connection.close()


def test_messages_come_as_they_are_published(server: Server) -> None:
    server.publish("orders", "before")
    with tailing(server) as stream:
        wait_until(lambda: server.load.tails == 1, "the stream has begun")
        server.publish("orders", "a", "line\nbreak")
        events = stream.take(2)
        assert [event.data["value"] for event in events] == ["a", "line\nbreak"]
        assert [event.id for event in events] == ["0-1", "0-2"]
        assert events[0].data["partition"] == 0 and events[0].data["offset"] == 1
        server.publish("orders", "b")
        assert stream.take(1)[0].data["value"] == "b"
    wait_until(lambda: server.load.tails == 0, "a reader that left is forgotten")


def test_stream_begins_where_it_was_asked_to(server: Server) -> None:
    server.publish("orders", *"abcd")
    for query, expected in (("?from=earliest", "abcd"), ("?from=2", "cd"), ("?from=-10m&partition=0", "abcd")):
        with tailing(server, query) as stream:
            assert "".join(event.data["value"] for event in stream.take(len(expected))) == expected


def test_broken_stream_resumes_without_gap_or_repeat(server: Server) -> None:
    server.publish("orders", *map(str, range(3000)))
    seen: list[str] = []
    last = ""
    while len(seen) < 3000:
        headers = {"Last_Event_ID": last} if last else {}
        with tailing(server, "?from=earliest", **headers) as stream:
            for event in stream.take(min(701, 3000 - len(seen))):
                seen.append(event.data["value"])
                last = event.id
    assert seen == list(map(str, range(3000)))


def test_stream_of_many_partitions_resumes_without_loss(server: Server) -> None:
    server.create("orders", partitions=4)
    for number in range(4):
        body = {"messages": [{"value": f"{number}/{place}", "partition": number} for place in range(300)]}
        assert server.call("POST", "/v1/topics/orders/messages", body).status == 200
    expected = {f"{number}/{place}" for number in range(4) for place in range(300)}
    seen: list[str] = []
    last = ""
    while set(seen) != expected:
        headers = {"Last_Event_ID": last} if last else {}
        with tailing(server, "?from=earliest", **headers) as stream:
            for count, event in enumerate(stream, 1):
                seen.append(event.data["value"])
                last = event.id or last
                if count == 117 or set(seen) == expected:
                    break
    assert len(seen) < 1.5 * len(expected), "few events come again"
    assert last.count(",") == 3
    with tailing(server, "?from=earliest", Last_Event_ID=last) as stream:
        server.publish("orders", "new")
        assert stream.take(1)[0].data["value"] == "new"


def test_one_partition_of_many_is_followed_alone(server: Server) -> None:
    server.create("orders", partitions=2)
    for number in (0, 1):
        server.call("POST", "/v1/topics/orders/messages", {"messages": [{"value": str(number), "partition": number}]})
    with tailing(server, "?from=earliest&partition=1") as stream:
        [event] = stream.take(1)
        assert (event.id, event.data["value"]) == ("1-0", "1")


def test_silent_stream_is_kept_alive(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "KEEP_ALIVE_S", 0.05)
    server.create("orders")
    with tailing(server) as stream:
        comments = 0
        while comments < 2:
            line = stream.response.readline()
            assert line, "the stream ended"
            comments += line.startswith(b":")
        server.publish("orders", "end")
        assert stream.take(1)[0].data["value"] == "end"


def test_reader_that_stands_still_costs_little_and_misses_nothing(server: Server) -> None:
    """Twenty megabytes run past a reader that does not read; the broker must not hold them."""
    server.create("orders")
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", server.port))
    reader.sendall(b"GET /v1/topics/orders/tail?from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: server.load.tails == 1, "the stream has begun")
    value = "x" * 10_000
    for _ in range(8):
        server.publish("orders", *[value] * 250)

    for _ in range(30):
        assert server.load.untaken_bytes < 512 * 1024
        time.sleep(0.01)
    received = 0
    with reader, reader.makefile("rb") as stream:
        for line in stream:
            received += line.startswith(b"data: ")
            if received == 2_000:
                break
    assert received == 2_000


def test_reader_behind_expired_or_recreated_log_is_told_of_the_gap(server: Server) -> None:
    server.publish("orders", *"abc")
    with tailing(server, Last_Event_ID="0-99") as stream:
        gap, first = stream.take(2)
        assert gap.name == "gap"
        assert gap.data == {"partition": 0, "from": 100, "to": 0, "reason": "offset_out_of_range"}
        assert first.data["value"] == "a"


def test_stream_of_a_deleted_topic_ends_with_the_reason(server: Server) -> None:
    server.publish("orders", "a")
    with tailing(server) as stream:
        wait_until(lambda: server.load.tails == 1, "the stream has begun")
        server.call("DELETE", "/v1/topics/orders")
        [end] = list(stream)
        assert (end.name, end.data["error"]["code"]) == ("end", "topic_not_found")


def test_bad_places_are_refused_before_the_stream_begins(server: Server) -> None:
    server.create("orders")
    for query, headers in (
        ("?from=nowhere", {}),
        ("?from=", {"Last_Event_ID": "x"}),
        ("", {"Last_Event_ID": "0"}),
        ("", {"Last_Event_ID": "0-1,"}),
        ("", {"Last_Event_ID": "0-" + "9" * 40}),
        ("?partition=-1", {}),
        ("?since=1", {}),
    ):
        refused = server.get(f"/v1/topics/orders/tail{query}", **headers)
        assert (refused.status, refused.code) == (400, "bad_value"), (query, headers, refused)
    assert server.load.tails == 0


def test_head_of_a_stream_ends_at_once(server: Server) -> None:
    server.create("orders")
    answer = server.call("HEAD", "/v1/topics/orders/tail")
    assert (answer.status, answer.body) == (200, b"")

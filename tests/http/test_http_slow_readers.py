"""What readers that do not take their answers and events cost, and that they are not in the way of others."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.wait import wait_until

from holdfast.frontends.http.connection import Bounds
from tests.http.http_server import Server, serving

VALUE = "x" * 100_000


def asking(server: Server, path: str) -> socket.socket:
    """A reader that sends a request and does not read."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", server.port))
    reader.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader


def until_quiet(measure: Callable[[], int], at_least: int) -> None:
    deadline, last, since = time.monotonic() + 60, measure(), time.monotonic()
    while last < at_least or time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline, "still moving"
        time.sleep(0.02)
        if measure() != last:
            last, since = measure(), time.monotonic()


def test_streams_that_are_not_read_hold_no_batches(server: Server) -> None:
    """Each topic has a batch of nine megabytes, so nothing of one stream's memory serves another one."""
    topics = [f"t{number}" for number in range(10)]
    for topic in topics:
        server.publish(topic, *[VALUE] * 90)
    tracemalloc.start()
    try:
        readers = [asking(server, f"/v1/topics/{topic}/tail?from=earliest") for topic in topics]
        until_quiet(lambda: server.broker.stats.delivered_bytes, 10 * len(VALUE))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What they share is 16 MiB, and each has a piece or two. The events of all of them would be 90 MB.
    assert held_bytes < 35_000_000
    for reader in readers:
        reader.close()


def test_stream_shows_each_message_of_a_large_batch_once(server: Server) -> None:
    server.create("t", partitions=2)
    for batch in range(2):
        for partition in range(2):
            values = [f"{batch}-{partition}-{number}-{VALUE}" for number in range(60)]
            messages = [{"value": value, "partition": partition} for value in values]
            assert server.call("POST", "/v1/topics/t/messages", {"messages": messages}).status == 200
    reader = asking(server, "/v1/topics/t/tail?from=earliest")
    got: list[list[str]] = [[], []]
    with reader, reader.makefile("rb") as stream:
        for line in stream:
            if line.startswith(b"data: "):
                message = json.loads(line[6:])
                got[message["partition"]].append(message["value"].removesuffix(VALUE))
            if sum(map(len, got)) == 240:
                break
    for partition in range(2):
        assert got[partition] == [f"{batch}-{partition}-{number}-" for batch in range(2) for number in range(60)]


def test_answer_in_json_ends_within_a_batch_that_is_larger_than_what_was_asked_for(server: Server) -> None:
    server.publish("t", *[VALUE] * 90)
    path = "/v1/topics/t/partitions/0/messages"
    answer = server.get(f"{path}?max_bytes=250000").json
    assert 2 <= len(answer["messages"]) <= 3
    assert answer["next_offset"] == len(answer["messages"])
    assert len(server.get(f"{path}?max_bytes=1").json["messages"]) == 1
    offset, seen = 0, 0
    while found := server.get(f"{path}?offset={offset}&max_bytes=1000000").json["messages"]:
        assert [one["offset"] for one in found] == list(range(offset, offset + len(found)))
        offset, seen = offset + len(found), seen + len(found)
    assert seen == 90


@pytest.mark.parametrize("path", ["/v1/topics/t/partitions/0/messages?max_bytes=8000000", "/v1/topics/t/tail?from=0"])
def test_reader_that_takes_nothing_is_not_in_the_way_of_one_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("holdfast.broker.outgoing.STALL_S", 0.2)
    bounds = Bounds(connections_max=10, sweep_interval_s=0.1)
    with serving(tmp_path / "data", bounds=bounds) as server:
        # More than the system's own buffers take.
        server.publish("t", *["x" * 8_000_000] * 2)
        server.broker.outgoing.bytes_max = 500_000
        stalled = asking(server, path)
        errors = server.broker.stats.errors
        wait_until(lambda: server.broker.outgoing.bytes_held >= 500_000 or errors["overloaded"], "it is in the way")
        answer = server.get("/v1/topics/t/partitions/0/messages?max=1").json
        assert len(answer["messages"]) == 1
        with stalled:
            while stalled.recv(1 << 20):
                pass
        assert server.broker.outgoing.bytes_held < 500_000


def test_small_answers_do_not_wait_for_readers_that_take_their_large_ones_slowly(server: Server) -> None:
    outgoing = server.broker.outgoing
    server.publish("t", *["x" * 50_000] * 20)
    path = "/v1/topics/t/partitions/0/messages"

    async def hold(size: int) -> None:
        outgoing.hold(size)

    held = outgoing.bytes_max // 2 + 1
    server.run(hold(held))
    short = server.get(path).json["messages"]
    server.run(hold(-held))
    assert 0 < len(short) < len(server.get(path).json["messages"]) == 20


def test_stream_of_a_topic_that_was_made_anew_ends_and_shows_none_of_its_messages(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads, may_go_on = server.broker.read, [0], threading.Event()

    async def read_slowly(*args: Any, **named: Any) -> Any:
        reads[0] += 1
        while not may_go_on.is_set():
            await asyncio.sleep(0.01)
        return await read(*args, **named)

    server.publish("t", "old", "old")
    monkeypatch.setattr(server.broker, "read", read_slowly)
    reader = asking(server, "/v1/topics/t/tail?from=1")
    until_quiet(lambda: reads[0], 1)
    assert server.call("DELETE", "/v1/topics/t").status == 204
    server.publish("t", "new", "new", "new")
    may_go_on.set()
    with reader, reader.makefile("rb") as stream:
        told = []
        for line in stream:
            told.append(line)
            if b"error" in line:
                break
    assert b"event: end\n" in told and b"topic_not_found" in told[-1]
    assert not any(b"new" in line for line in told)

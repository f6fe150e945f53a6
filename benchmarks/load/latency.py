"""Latency: every connection has one message under way and sends the next when that is acknowledged.

With one connection the loop blocks in the kernel, so that nothing of the generator stands between the
reply and the clock. With several it is one epoll loop, and the time a reply waits for its turn in that
loop counts as latency: the same for every server that is measured with as many connections.
"""

import select
import socket
import time
from array import array
from dataclasses import dataclass

from benchmarks.load.wire import Dial, LoadFailed, NewReplies

RECEIVE_BUFFER_BYTES = 65_536
SAMPLES_MAX = 2_000_000
STALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """One request for each connection, sent over and over; connections are spread over the ports."""

    ports: tuple[int, ...]
    dial: Dial
    replies: NewReplies
    requests: tuple[bytes, ...]
    seconds: float
    warmup_seconds: float = 0.3


@dataclass(frozen=True, slots=True)
class Latencies:
    messages: int
    per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float


def quantile(ordered: "array[int] | list[int]", share: float) -> float:
    """The value that `share` of the sorted samples do not exceed."""
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


def run(load: ClosedLoop) -> Latencies:
    connections = [load.dial(load.ports[number % len(load.ports)]) for number in range(len(load.requests))]
    try:
        measure = _one if len(connections) == 1 else _many
        measure(load, connections, load.warmup_seconds)
        start = time.perf_counter()
        samples_ns = measure(load, connections, load.seconds)
        seconds = time.perf_counter() - start
    finally:
        for connection in connections:
            connection.close()
    return _summary(samples_ns, seconds)


def _summary(samples_ns: "array[int]", seconds: float) -> Latencies:
    if not samples_ns:
        raise LoadFailed("no message was acknowledged")
    ordered = sorted(samples_ns)
    return Latencies(
        messages=len(ordered),
        per_s=len(ordered) / seconds,
        p50_us=quantile(ordered, 0.5) / 1000,
        p99_us=quantile(ordered, 0.99) / 1000,
        p999_us=quantile(ordered, 0.999) / 1000,
        max_us=ordered[-1] / 1000,
    )


def _one(load: ClosedLoop, connections: list[socket.socket], seconds: float) -> "array[int]":
    (connection,), (request,) = connections, load.requests
    buffer, replies, clock = bytearray(RECEIVE_BUFFER_BYTES), load.replies(), time.perf_counter_ns
    samples_ns = array("q")
    deadline_ns = clock() + int(seconds * 1e9)
    while len(samples_ns) < SAMPLES_MAX:
        sent_ns = clock()
        connection.sendall(request)
        while True:
            size_bytes = connection.recv_into(buffer)
            if size_bytes == 0:
                raise LoadFailed("the server closed the connection")
            if replies.feed(buffer, size_bytes):
                break
        now_ns = clock()
        samples_ns.append(now_ns - sent_ns)
        if now_ns > deadline_ns:
            break
    return samples_ns


def _many(load: ClosedLoop, connections: list[socket.socket], seconds: float) -> "array[int]":
    buffer, clock = bytearray(RECEIVE_BUFFER_BYTES), time.perf_counter_ns
    samples_ns = array("q")
    poller = select.epoll()
    waiting = {}
    deadline_ns = clock() + int(seconds * 1e9)
    for connection, request in zip(connections, load.requests, strict=True):
        poller.register(connection.fileno(), select.EPOLLIN)
        waiting[connection.fileno()] = (connection, request, load.replies())
    sent_ns = dict.fromkeys(waiting, 0)
    for fd, (connection, request, _) in waiting.items():
        sent_ns[fd] = clock()
        connection.sendall(request)
    outstanding = len(waiting)
    try:
        while outstanding:
            events = poller.poll(STALL_TIMEOUT_S)
            if not events:
                raise LoadFailed(f"{outstanding} messages were not acknowledged in time")
            for fd, _ in events:
                connection, request, replies = waiting[fd]
                size_bytes = connection.recv_into(buffer)
                if size_bytes == 0:
                    raise LoadFailed("the server closed the connection")
                if not replies.feed(buffer, size_bytes):
                    continue
                now_ns = clock()
                samples_ns.append(now_ns - sent_ns[fd])
                if now_ns < deadline_ns and len(samples_ns) < SAMPLES_MAX:
                    sent_ns[fd] = clock()
                    connection.sendall(request)
                else:
                    outstanding -= 1
    finally:
        poller.close()
    return samples_ns

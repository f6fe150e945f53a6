"""Receivers that a broker connects to: one that takes what it can, and many of which one is stuck."""

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.load import http, text
from benchmarks.load.wire import SOCKET_TIMEOUT_S, LoadFailed, read_exactly, read_until
from benchmarks.process import HOST
from holdfast.testing.ports import free_port

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Backlog:
    """A topic that is delivered to one receiver from its beginning."""

    http_port: int
    topic: str
    messages: int
    format: str


@dataclass(frozen=True, slots=True)
class Crowd:
    """Receivers of one topic, the first `stuck` of which never read; `fill_bytes` come before anything is measured."""

    text_port: int
    http_port: int
    topic: str
    receivers: int
    stuck: int
    fill_bytes: int
    messages: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Delays:
    """From before a publish to when a receiver has the message."""

    p50_us: float
    p99_us: float
    worst_us: float
    deliveries: int


def run_backlog(spec: Backlog) -> float:
    """Messages a second, from the first to the last, acknowledged many together."""
    with _listener() as listener:
        _subscribe(spec.http_port, spec.topic, listener, "one", spec.format, "earliest")
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(SOCKET_TIMEOUT_S)
            got, start_s = 0, time.perf_counter()
            while got < spec.messages:
                data = connection.recv(_READ_BYTES)
                if not data:
                    raise LoadFailed("the broker closed the connection")
                lines = data.count(b"\n")
                got += lines
                if lines:
                    connection.sendall(b"ACK|%d\n" % lines)
            return got / (time.perf_counter() - start_s)


def run_crowd(spec: Crowd) -> Delays:
    """One message at a time, to all of them."""
    well = spec.receivers - spec.stuck
    with _listener() as listener, selectors.EpollSelector() as selector, text.dial(spec.text_port) as publisher:
        connections: list[socket.socket] = []
        for number in range(spec.receivers):
            _subscribe(spec.http_port, spec.topic, listener, f"r{number}", "plain", "earliest")
            connection, _ = listener.accept()
            connection.setblocking(False)
            connections.append(connection)
            if number >= spec.stuck:
                selector.register(connection, selectors.EVENT_READ)
        filling = max(1, spec.fill_bytes // 1000)
        publisher.sendall(b"PUBLISH|%s|%s\n" % (spec.topic.encode(), b"x" * 1000) * filling)
        read_exactly(publisher, len(text.PUBACK) * filling)
        _collect(selector, well * filling)
        delays: list[float] = []
        for number in range(spec.messages):
            start_s = time.perf_counter()
            publisher.sendall(text.publish(spec.topic, number))
            read_until(publisher, b"\n")
            delays += [came_s - start_s for came_s in _collect(selector, well)]
            time.sleep(spec.pause_s)
        for connection in connections:
            connection.close()
    cuts = quantiles(delays, n=100)
    return Delays(cuts[49] * 1e6, cuts[98] * 1e6, max(delays) * 1e6, len(delays))


def _collect(selector: selectors.BaseSelector, messages: int) -> list[float]:
    """When each of so many messages came, whoever got it; they are acknowledged."""
    came: list[float] = []
    deadline = time.perf_counter() + SOCKET_TIMEOUT_S
    while len(came) < messages:
        for key, _ in selector.select(1.0):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            lines = connection.recv(_READ_BYTES).count(b"\n")
            if lines:
                came += [time.perf_counter()] * lines
                connection.send(b"ACK|%d\n" % lines)
        if time.perf_counter() > deadline:
            raise LoadFailed(f"{len(came)} of {messages} deliveries came within {SOCKET_TIMEOUT_S:.0f} s")
    return came


@contextmanager
def _listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, free_port()), backlog=4096) as listener:
        listener.settimeout(SOCKET_TIMEOUT_S)
        yield listener


def _subscribe(port: int, topic: str, listener: socket.socket, name: str, form: str, start: str) -> None:
    callback = f"{HOST}:{listener.getsockname()[1]}"
    fields = {"topic": topic, "callback": callback, "name": name, "format": form, "from": start}
    http.ask(port, http.post_json("/v1/subscriptions", fields))

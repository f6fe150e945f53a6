"""Throughput: keep a bounded window of unacknowledged messages on every connection.

One loop serves every protocol. A request is a prebuilt run of bytes that carries a fixed number of
messages; it is sent whenever the window has room for it, and replies are only counted. So the generator
costs a few system calls per thousand messages and the server is the one that is measured.
"""

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.load.wire import Dial, LoadFailed, NewReplies, Replies

RECEIVE_BUFFER_BYTES = 1 << 20
DRAIN_TIMEOUT_S = 60.0


Renew = Callable[[bytes, int], bytes]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One load: what is sent, how deep, on how many connections and for how long at most."""

    port: int
    dial: Dial
    replies: NewReplies
    request: bytes
    messages_per_request: int
    window: int
    connections: int
    seconds: float
    messages_max: int = 1 << 62
    renewed: Renew | None = None
    """Makes another request of `request`, with a number that no other has, where each is to have ids of its own."""

    def __post_init__(self) -> None:
        if self.window < self.messages_per_request:
            raise ValueError("the window must hold at least one request")


@dataclass(frozen=True, slots=True)
class Flow:
    """What came of it: messages acknowledged, and the time from the first byte to the last reply."""

    messages: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    replies: Replies
    request: memoryview
    position: int = 0
    unacknowledged: int = 0
    wants_write: bool = False


class _Sender:
    """Starts requests while time, count and window allow."""

    def __init__(self, load: Pipeline, deadline: float) -> None:
        self._load = load
        self._deadline = deadline
        # Microseconds now: no run takes less than one for a request, so no later run has the same numbers.
        self._number = time.time_ns() // 1000
        self.started = 0

    def _may_start(self, connection: _Connection) -> bool:
        load = self._load
        return (
            connection.unacknowledged + load.messages_per_request <= load.window
            and self.started < load.messages_max
            and time.perf_counter() < self._deadline
        )

    def push(self, connection: _Connection) -> bool:
        """Send what can be sent; true when the socket is full and the request is not out yet."""
        while True:
            if connection.position == 0:
                if not self._may_start(connection):
                    return False
                self._renew(connection)
                self.started += self._load.messages_per_request
                connection.unacknowledged += self._load.messages_per_request
            try:
                connection.position += connection.socket.send(connection.request[connection.position :])
            except BlockingIOError:
                return True
            if connection.position == len(connection.request):
                connection.position = 0

    def _renew(self, connection: _Connection) -> None:
        if self._load.renewed is not None:
            self._number += 1
            connection.request = memoryview(self._load.renewed(self._load.request, self._number))


def run(load: Pipeline) -> Flow:
    """Put the load on and wait until everything that was sent is acknowledged."""
    connections: dict[int, _Connection] = {}
    poller = select.epoll()
    try:
        for _ in range(load.connections):
            dialled = load.dial(load.port)
            dialled.setblocking(False)
            connections[dialled.fileno()] = _Connection(dialled, load.replies(), memoryview(load.request))
            poller.register(dialled.fileno(), select.EPOLLIN)
        return _pump(load, poller, connections)
    finally:
        poller.close()
        for connection in connections.values():
            connection.socket.close()


def _pump(load: Pipeline, poller: select.epoll, connections: dict[int, _Connection]) -> Flow:
    buffer = bytearray(RECEIVE_BUFFER_BYTES)
    start = last_reply = time.perf_counter()
    sender = _Sender(load, start + load.seconds)
    acknowledged = 0
    for fd, connection in connections.items():
        _register(poller, fd, connection, sender.push(connection))
    while acknowledged < sender.started:
        if time.perf_counter() > start + load.seconds + DRAIN_TIMEOUT_S:
            raise LoadFailed(f"{sender.started - acknowledged} messages were not acknowledged in time")
        for fd, event in poller.poll(1.0):
            connection = connections[fd]
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                size_bytes = connection.socket.recv_into(buffer)
                if size_bytes == 0:
                    raise LoadFailed("the server closed the connection")
                count = connection.replies.feed(buffer, size_bytes)
                acknowledged += count
                connection.unacknowledged -= count
                last_reply = time.perf_counter()
            _register(poller, fd, connection, sender.push(connection))
    if acknowledged != sender.started:
        raise LoadFailed(f"{acknowledged} acknowledgements for {sender.started} messages")
    return Flow(acknowledged, last_reply - start)


def _register(poller: select.epoll, fd: int, connection: _Connection, wants_write: bool) -> None:
    if wants_write != connection.wants_write:
        connection.wants_write = wants_write
        poller.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wants_write else 0))

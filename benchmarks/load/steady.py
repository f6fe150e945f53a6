"""A publisher with a fixed rate: it sends when it is time, unless too much is under way already.

What it could not send in time it does not send later, so that its throughput falls when the cluster is slow.
"""

import select
import socket
import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass

from benchmarks.load import http
from benchmarks.load.background import Told
from benchmarks.load.wire import LoadFailed

UNDER_WAY_MAX = 16
STALL_TIMEOUT_S = 30.0
RECEIVE_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Steady:
    port: int
    request: bytes
    messages_per_request: int
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Answers:
    """When each request was acknowledged, by the monotonic clock."""

    at_s: "array[float]"

    def per_s(self, from_s: float, until_s: float) -> float:
        """Requests acknowledged in that time, a second."""
        count = bisect_left(self.at_s, until_s) - bisect_left(self.at_s, from_s)
        return count / (until_s - from_s)


class _Publisher:
    def __init__(self, load: Steady, connection: socket.socket) -> None:
        self._load = load
        self._connection = connection
        self._replies = http.PublishReplies(1)
        self._buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self.under_way = 0
        self.answered_s: array[float] = array("d")

    def send(self) -> None:
        self._connection.sendall(self._load.request)
        self.under_way += 1

    def receive(self, timeout_s: float) -> None:
        readable, _, _ = select.select([self._connection], [], [], timeout_s)
        if not readable:
            return
        size_bytes = self._connection.recv_into(self._buffer)
        if size_bytes == 0:
            raise LoadFailed("the server closed the connection")
        count = self._replies.feed(self._buffer, size_bytes)
        self.under_way -= count
        self.answered_s.extend([time.monotonic()] * count)


def run(load: Steady, told: Told) -> Answers:
    with http.dial(load.port) as connection:
        publisher = _Publisher(load, connection)
        publisher.send()
        publisher.receive(STALL_TIMEOUT_S)
        told.say_ready()
        interval_s = 1 / load.requests_per_s
        due_s = time.monotonic()
        while not told.to_stop:
            now_s = time.monotonic()
            if now_s < due_s:
                publisher.receive(due_s - now_s)
            elif publisher.under_way == UNDER_WAY_MAX:
                publisher.receive(interval_s)
            else:
                publisher.send()
                # What is late by more than one turn is left out.
                due_s = max(due_s + interval_s, now_s)
        deadline_s = time.monotonic() + STALL_TIMEOUT_S
        while publisher.under_way and time.monotonic() < deadline_s:
            publisher.receive(1.0)
        if publisher.under_way:
            raise LoadFailed(f"{publisher.under_way} requests were not acknowledged in time")
        return Answers(publisher.answered_s)

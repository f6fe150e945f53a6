"""Pushes as Queen's clients send them: each connection waits for its answer before it asks again.

Every item has a transaction id that was not used before, a UUID of version 7 as those clients make them, so each
request differs from all others. All but the first 18 characters of its ids stand in it already; one `replace` makes it
another.
"""

import os
import selectors
import socket
import time
from dataclasses import dataclass

from benchmarks.load.http import PublishReplies, post
from benchmarks.load.pipeline import DRAIN_TIMEOUT_S, RECEIVE_BUFFER_BYTES, Flow
from benchmarks.load.wire import LoadFailed, connect

PAYLOAD_BYTES = 190
_STAMP = b"ssssssss-ssss-7sss"


@dataclass(frozen=True, slots=True)
class PushLoad:
    """So many connections, each with one request of so many items under way."""

    port: int
    queue: str
    partitions: int
    connections: int
    items_per_request: int
    seconds: float


def request(load: PushLoad) -> bytes:
    """One request, with a mark where its ids are to differ from all others."""
    payload = '"' + "x" * (PAYLOAD_BYTES - 2) + '"'
    items = [
        f'{{"queue":"{load.queue}","partition":"p{number % load.partitions}","payload":{payload},'
        f'"transactionId":"{_STAMP.decode()}-8000-{number:012x}"}}'
        for number in range(load.items_per_request)
    ]
    return post("/api/v1/push", f'{{"items":[{",".join(items)}]}}'.encode())


class _Requests:
    """Requests that are all different. Where they have one item, the partition changes, too."""

    def __init__(self, load: PushLoad) -> None:
        self._template = request(load)
        self._partitions = load.partitions if load.items_per_request == 1 else 0
        self._count = os.getpid() << 20

    def next(self) -> bytes:
        self._count += 1
        stamp = f"{int(time.time() * 1000):012x}{self._count & 0xFFF:03x}"
        made = self._template.replace(_STAMP, f"{stamp[:8]}-{stamp[8:12]}-7{stamp[12:]}".encode())
        if self._partitions:
            # The last digits of the only id, so that a millisecond may have more than 4096 requests.
            made = made.replace(b"000000000000", b"%012x" % (self._count & 0xFFFFFFFFFFFF))
            made = made.replace(b'"p0"', b'"p%d"' % (self._count % min(10, self._partitions)))
        return made


def run(load: PushLoad) -> Flow:
    """Push for so long, and wait for the last answers."""
    requests = _Requests(load)
    selector = selectors.DefaultSelector()
    replies: dict[socket.socket, PublishReplies] = {}
    buffer = bytearray(RECEIVE_BUFFER_BYTES)
    messages = 0
    began_s = time.perf_counter()
    for _ in range(load.connections):
        connection = connect(load.port)
        selector.register(connection, selectors.EVENT_READ, connection)
        replies[connection] = PublishReplies(load.items_per_request)
        connection.sendall(requests.next())
    waiting = len(replies)
    while waiting:
        ready = selector.select(DRAIN_TIMEOUT_S)
        if not ready:
            raise LoadFailed(f"no answer for {DRAIN_TIMEOUT_S:g} s")
        for key, _ in ready:
            connection = key.data
            size_bytes = connection.recv_into(buffer)
            if not size_bytes:
                raise LoadFailed("the broker closed a connection")
            acknowledged = replies[connection].feed(buffer, size_bytes)
            messages += acknowledged
            if not acknowledged:
                continue
            if time.perf_counter() - began_s < load.seconds:
                connection.sendall(requests.next())
            else:
                waiting -= 1
    seconds = time.perf_counter() - began_s
    for connection in replies:
        connection.close()
    return Flow(messages, seconds)

"""Numbered queues: clients that append one value or read the next one, each with one request under way."""

import selectors
import socket
import time
from dataclasses import dataclass

from benchmarks.load.pipeline import DRAIN_TIMEOUT_S, RECEIVE_BUFFER_BYTES, Flow
from benchmarks.load.wire import LoadFailed, connect

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "
_OK = b"HTTP/1.1 200"
_NOTHING = b'"message_id":null'


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """One request for each client, sent over and over; clients are spread over the ports."""

    ports: tuple[int, ...]
    requests: tuple[bytes, ...]
    seconds: float


def _is_whole(reply: bytes) -> bool:
    end = reply.find(_HEAD_END)
    if end < 0:
        return False
    if not reply.startswith(_OK):
        raise LoadFailed(f"refused: {reply[:400]!r}")
    begin = reply.index(_LENGTH) + len(_LENGTH)
    return len(reply) >= end + len(_HEAD_END) + int(reply[begin : reply.index(b"\r\n", begin)])


def run(load: QueueLoad) -> Flow:
    """Ask for so long, and wait for the last answers. A read that finds nothing is no message, and ends the run."""
    selector = selectors.DefaultSelector()
    held: dict[socket.socket, bytes] = {}
    buffer = bytearray(RECEIVE_BUFFER_BYTES)
    messages = waiting = 0
    is_over = False
    connections = [connect(load.ports[number % len(load.ports)]) for number in range(len(load.requests))]
    for connection, asked in zip(connections, load.requests, strict=True):
        selector.register(connection, selectors.EVENT_READ, (connection, asked))
    began_s = ended_s = time.perf_counter()
    for connection, asked in zip(connections, load.requests, strict=True):
        connection.sendall(asked)
        waiting += 1
    while waiting:
        ready = selector.select(DRAIN_TIMEOUT_S)
        if not ready:
            raise LoadFailed(f"no answer for {DRAIN_TIMEOUT_S:g} s")
        for key, _ in ready:
            connection, asked = key.data
            size_bytes = connection.recv_into(buffer)
            if not size_bytes:
                raise LoadFailed("the broker closed a connection")
            reply = held.pop(connection, b"") + bytes(buffer[:size_bytes])
            if not _is_whole(reply):
                held[connection] = reply
                continue
            if _NOTHING in reply:
                is_over = True
            else:
                messages += 1
                ended_s = time.perf_counter()
            if not is_over and time.perf_counter() - began_s < load.seconds:
                connection.sendall(asked)
            else:
                waiting -= 1
    for connection in connections:
        connection.close()
    return Flow(messages, ended_s - began_s)

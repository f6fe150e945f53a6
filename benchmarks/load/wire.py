"""What all generators share: 100-byte payloads, sockets, and how replies are counted."""

import socket
from collections.abc import Callable
from typing import Protocol

from benchmarks.process import HOST

MESSAGE_BYTES = 100
SOCKET_TIMEOUT_S = 30.0

# Letters and digits, so that a payload is legal in a text line, in JSON and as a command argument.
_FILLER = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" * 2


class LoadFailed(RuntimeError):
    """The load could not be put on, or the server refused some of it."""


class Replies(Protocol):
    """Counts acknowledgements in what came from the socket, however it was cut up on the way."""

    def feed(self, buffer: bytearray, size_bytes: int) -> int:
        """How many messages the first `size_bytes` of `buffer` acknowledge."""


Dial = Callable[[int], socket.socket]
NewReplies = Callable[[], Replies]


class Marker:
    """Counts one byte that stands in every reply exactly once."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker

    def feed(self, buffer: bytearray, size_bytes: int) -> int:
        return buffer.count(self._marker, 0, size_bytes)


class FixedLength:
    """Counts replies that all have the same bytes; the first one is compared."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._seen_bytes = 0

    def feed(self, buffer: bytearray, size_bytes: int) -> int:
        length = len(self._reply)
        if self._seen_bytes == 0:
            first = bytes(buffer[: min(length, size_bytes)])
            if not self._reply.startswith(first):
                raise LoadFailed(f"unexpected reply {first!r}")
        before = self._seen_bytes // length
        self._seen_bytes += size_bytes
        return self._seen_bytes // length - before


def payload(number: int, size_bytes: int = MESSAGE_BYTES) -> bytes:
    """One message of exactly that size, different for each number."""
    filler = _FILLER * (size_bytes // len(_FILLER) + 1)
    return (b"%08d" % number + filler)[:size_bytes]


def connect(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=SOCKET_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_until(connection: socket.socket, end: bytes, size_bytes_max: int = 1 << 20) -> bytes:
    """Everything up to and including `end`, which is the last thing the server sends for now."""
    received = bytearray()
    while not received.endswith(end):
        piece = connection.recv(65_536)
        if not piece or len(received) > size_bytes_max:
            raise LoadFailed(f"connection ended before {end!r}: {bytes(received[-200:])!r}")
        received += piece
    return bytes(received)


def read_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = connection.recv(size_bytes - len(received))
        if not piece:
            raise LoadFailed(f"connection ended {size_bytes - len(received)} bytes early")
        received += piece
    return bytes(received)

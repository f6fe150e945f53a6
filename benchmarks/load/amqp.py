"""AMQP 0-9-1 on the wire: publisher confirms into a quorum queue, frames prebuilt.

A message is three frames (basic.publish, header, body). The server confirms with basic.ack frames of a
fixed 21 bytes; one with the `multiple` bit confirms everything up to its tag.
"""

import socket
import struct
from collections.abc import Mapping

from benchmarks.load.wire import LoadFailed, connect, payload, read_exactly

QUEUE = "bench-quorum"
CHANNEL = 1
FRAME_END = b"\xce"
FRAME_MAX_BYTES = 131_072

_METHOD, _HEADER, _BODY = 1, 2, 3
_ACK = (60, 80)
_ACK_FRAME_BYTES = 21
_PERSISTENT = 2
_HAS_HEADERS, _HAS_DELIVERY_MODE = 1 << 13, 1 << 12


def _frame(kind: int, channel: int, content: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(content)) + content + FRAME_END


def _method(channel: int, number: tuple[int, int], arguments: bytes) -> bytes:
    return _frame(_METHOD, channel, struct.pack(">HH", *number) + arguments)


def _short(text: str) -> bytes:
    return struct.pack(">B", len(text)) + text.encode()


def _long(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _expect(connection: socket.socket, number: tuple[int, int]) -> bytes:
    """The next frame, which must be this method; its arguments."""
    _, _, size_bytes = struct.unpack(">BHI", read_exactly(connection, 7))
    content = read_exactly(connection, size_bytes + 1)
    if struct.unpack(">HH", content[:4]) != number:
        raise LoadFailed(f"expected method {number}, got {content[:80]!r}")
    return content[4:-1]


def _call(
    connection: socket.socket,
    channel: int,
    number: tuple[int, int],
    arguments: bytes,
    answer: tuple[int, int],
) -> None:
    connection.sendall(_method(channel, number, arguments))
    _expect(connection, answer)


def dial(port: int) -> socket.socket:
    """Connect, declare the quorum queue (again, by every connection) and switch confirms on."""
    connection = connect(port)
    connection.sendall(b"AMQP\x00\x00\x09\x01")
    _expect(connection, (10, 10))
    start_ok = _long(b"") + _short("PLAIN") + _long(b"\0guest\0guest") + _short("en_US")
    _call(connection, 0, (10, 11), start_ok, (10, 30))
    connection.sendall(_method(0, (10, 31), struct.pack(">HIH", CHANNEL, FRAME_MAX_BYTES, 0)))
    _call(connection, 0, (10, 40), _short("/") + b"\0\0", (10, 41))
    _call(connection, CHANNEL, (20, 10), _short(""), (20, 11))
    kind = _short("x-queue-type") + b"S" + _long(b"quorum")
    durable = b"\x02"
    _call(connection, CHANNEL, (50, 10), b"\0\0" + _short(QUEUE) + durable + _long(kind), (50, 11))
    _call(connection, CHANNEL, (85, 10), b"\0", (85, 11))
    return connection


def publish(number: int) -> bytes:
    return publish_body(payload(number), {})


def publish_body(body: bytes, headers: Mapping[str, str]) -> bytes:
    method = _method(CHANNEL, (60, 40), b"\0\0" + _short("") + _short(QUEUE) + b"\0")
    table = b"".join(_short(name) + b"S" + _long(value.encode()) for name, value in headers.items())
    flags = _HAS_DELIVERY_MODE | (_HAS_HEADERS if headers else 0)
    properties = (_long(table) if headers else b"") + struct.pack(">B", _PERSISTENT)
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    return method + _frame(_HEADER, CHANNEL, header) + _frame(_BODY, CHANNEL, body)


class Acks:
    """Counts confirmed tags, each once, whether they come one by one or in ranges."""

    def __init__(self) -> None:
        self._rest = b""
        self._all_up_to = 0
        self._beyond: set[int] = set()

    def feed(self, buffer: bytearray, size_bytes: int) -> int:
        data = self._rest + bytes(buffer[:size_bytes])
        whole_bytes = len(data) - len(data) % _ACK_FRAME_BYTES
        count = 0
        for frame in struct.iter_unpack(">BHIHHQBB", data[:whole_bytes]):
            if (frame[3], frame[4]) != _ACK:
                raise LoadFailed(f"expected basic.ack, got {data[:80]!r}")
            count += self._confirm(frame[5], multiple=bool(frame[6]))
        self._rest = data[whole_bytes:]
        return count

    def _confirm(self, tag: int, multiple: bool) -> int:
        if tag <= self._all_up_to:
            return 0
        if not multiple and tag != self._all_up_to + 1:
            self._beyond.add(tag)
            return 1
        covered = {seen for seen in self._beyond if seen <= tag}
        self._beyond -= covered
        count = tag - self._all_up_to - len(covered)
        self._all_up_to = tag
        return count

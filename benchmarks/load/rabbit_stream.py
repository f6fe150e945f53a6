"""RabbitMQ's stream protocol on the wire: Publish frames prebuilt, PublishConfirm frames counted.

A frame is a 4-byte length, key, version and content. A message is an AMQP 1.0 data section. Publishers
without a name are not deduplicated, so one prebuilt frame may be sent over and over.
"""

import socket
import struct

from benchmarks.load.wire import LoadFailed, connect, payload, read_exactly

STREAM = "bench"
PUBLISHER = 1

_DECLARE_PUBLISHER, _PUBLISH, _CONFIRM, _CREATE = 0x01, 0x02, 0x03, 0x0D
_PEER_PROPERTIES, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = 0x11, 0x12, 0x13
_TUNE, _OPEN = 0x14, 0x15
_RESPONSE = 0x8000
_OK, _STREAM_EXISTS = 0x01, 0x05
_FRAME_MAX_BYTES = 1 << 20


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _frame(key: int, content: bytes) -> bytes:
    return struct.pack(">IHH", len(content) + 4, key, 1) + content


def _read_frame(connection: socket.socket) -> tuple[int, bytes]:
    size_bytes, key, _ = struct.unpack(">IHH", read_exactly(connection, 8))
    return key, read_exactly(connection, size_bytes - 4)


def _call(connection: socket.socket, key: int, content: bytes, *accepted: int) -> None:
    connection.sendall(_frame(key, struct.pack(">I", 1) + content))
    answer_key, answer = _read_frame(connection)
    code = struct.unpack(">H", answer[4:6])[0]
    if answer_key != key | _RESPONSE or code not in (_OK, *accepted):
        raise LoadFailed(f"stream command {key:#x} was answered with {answer_key:#x}, code {code:#x}")


def dial(port: int) -> socket.socket:
    """Connect, create the stream unless it is there, declare a publisher."""
    connection = connect(port)
    _call(connection, _PEER_PROPERTIES, struct.pack(">I", 0))
    _call(connection, _SASL_HANDSHAKE, b"")
    secret = b"\0guest\0guest"
    _call(connection, _SASL_AUTHENTICATE, _string("PLAIN") + struct.pack(">I", len(secret)) + secret)
    if _read_frame(connection)[0] != _TUNE:
        raise LoadFailed("expected a tune frame")
    connection.sendall(_frame(_TUNE, struct.pack(">II", _FRAME_MAX_BYTES, 0)))
    _call(connection, _OPEN, _string("/"))
    _call(connection, _CREATE, _string(STREAM) + struct.pack(">I", 0), _STREAM_EXISTS)
    no_name = _string("")
    _call(connection, _DECLARE_PUBLISHER, struct.pack(">B", PUBLISHER) + no_name + _string(STREAM))
    return connection


def publish(count: int) -> bytes:
    """One Publish frame with `count` messages."""
    content = bytearray(struct.pack(">BI", PUBLISHER, count))
    for number in range(count):
        body = payload(number)
        section = b"\x00\x53\x75\xa0" + struct.pack(">B", len(body)) + body
        content += struct.pack(">QI", number, len(section)) + section
    return _frame(_PUBLISH, bytes(content))


class Confirms:
    """Counts the publishing ids in PublishConfirm frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, buffer: bytearray, size_bytes: int) -> int:
        self._rest += buffer[:size_bytes]
        count = position = 0
        while len(self._rest) - position >= 13:
            length, key, _, _, confirmed = struct.unpack_from(">IHHBI", self._rest, position)
            if key != _CONFIRM:
                raise LoadFailed(f"expected a confirm, got key {key:#x}")
            if len(self._rest) - position < length + 4:
                break
            position += length + 4
            count += confirmed
        del self._rest[:position]
        return count

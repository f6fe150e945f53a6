"""How each protocol looks to a load generator: bytes to send, and replies to count.

A reply is counted in units. Over text every message is answered with a line, so a request of a thousand
messages has a thousand units; over HTTP a request has one answer.
"""

from __future__ import annotations

import re
import socket
from typing import Final, Protocol

import msgspec

from holdfast.client.addresses import Address
from holdfast.model.errors import NotStored
from holdfast.wire.batch_builder import build_values

SOCKET_TIMEOUT_S: Final = 30.0
_RECEIVE_BYTES: Final = 256 * 1024
# Letters and digits, so that a payload is legal in a line and in JSON.
_FILLER: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"


class BenchFailed(NotStored):
    """The load could not be put on, or the broker refused some of it."""


class Replies(Protocol):
    """Counts replies, however they were cut up on the way."""

    def feed(self, data: bytes) -> int:
        """How many units are complete with `data`. Raises `BenchFailed` for a refusal."""


def dial(address: Address) -> socket.socket:
    try:
        connection = socket.create_connection(address, timeout=SOCKET_TIMEOUT_S)
    except OSError as error:
        raise BenchFailed(f"cannot connect to {address}: {error.strerror or error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def received(connection: socket.socket) -> bytes:
    """What has come. Raises `BenchFailed` if the broker hung up or says nothing."""
    try:
        data = connection.recv(_RECEIVE_BYTES)
    except TimeoutError:
        raise BenchFailed(f"the broker said nothing for {SOCKET_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise BenchFailed(f"the connection broke: {error.strerror or error}") from error
    if not data:
        raise BenchFailed("the broker closed the connection")
    return data


def payloads(count: int, size_bytes: int) -> list[bytes]:
    """Messages of one size that differ in their first bytes."""
    filler = _FILLER * (size_bytes // len(_FILLER) + 1)
    return [(b"%08d" % number + filler)[:size_bytes] for number in range(count)]


# --- text -------------------------------------------------------------------------------------------


class LineReplies:
    """Every line is a unit, an `ERROR` line is a refusal."""

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, data: bytes) -> int:
        data = self._begun + data
        end = data.rfind(b"\n") + 1
        self._begun, data = data[end:], data[:end]
        if data.startswith(b"ERROR|") or b"\nERROR|" in data:
            refusal = next(line for line in data.split(b"\n") if line.startswith(b"ERROR|"))
            raise BenchFailed("the broker refused: " + refusal.decode("utf-8", "replace"))
        return data.count(b"\n")


def dial_text(address: Address) -> socket.socket:
    """A text connection whose greeting, if its dialect has one, is out of the way."""
    connection = dial(address)
    ask_text(connection, b"")
    return connection


def ask_text(connection: socket.socket, line: bytes) -> bytes:
    """Send a line and wait until it is answered; returns what came behind the answer."""
    connection.sendall(line + b"PING\n")
    data = b""
    while b"PONG\n" not in data:
        data += received(connection)
    answer, _, rest = data.partition(b"PONG\n")
    LineReplies().feed(answer)
    return rest


def text_publish(topic: str, values: list[bytes]) -> bytes:
    prefix = f"PUBLISH|{topic}|".encode()
    return b"".join([prefix + value + b"\n" for value in values])


# --- HTTP -------------------------------------------------------------------------------------------


class HttpReplies:
    """Every answer is a unit; `last_body` is the newest one's."""

    def __init__(self) -> None:
        self.last_body = b""
        self._begun = b""

    def feed(self, data: bytes) -> int:
        data = self._begun + data if self._begun else data
        count = position = 0
        while (head_end := data.find(_HEAD_END, position)) >= 0:
            length = _CONTENT_LENGTH.search(data, position, head_end + 2)
            if length is None:
                raise BenchFailed("an answer without a length: this is not a broker's HTTP address")
            body_at = head_end + len(_HEAD_END)
            end = body_at + int(length[1])
            if end > len(data):
                break
            self.last_body = data[body_at:end]
            if data[position + 9 : position + 10] != b"2":
                raise BenchFailed("the broker refused: " + _reason(self.last_body))
            count += 1
            position = end
        self._begun = data[position:]
        return count


def _reason(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        return f"{error['message']} [{error['code']}]"
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def http_publish(address: Address, topic: str, values: list[bytes]) -> bytes:
    """Messages as JSON."""
    body = msgspec.json.encode({"messages": [{"value": value.decode("ascii")} for value in values]})
    return _post(address, f"/v1/topics/{topic}/messages", "application/json", body)


def batches_publish(address: Address, topic: str, values: list[bytes], timestamp_ms: int) -> bytes:
    """Messages as one record batch: the way of bulk writers."""
    body = bytes(build_values(values, timestamp_ms))
    return _post(address, f"/v1/topics/{topic}/partitions/0/batches", "application/vnd.holdfast.batches", body)


def http_read(address: Address, topic: str, offset: int, *, messages_max: int, wait_ms: int, accept: str) -> bytes:
    path = f"/v1/topics/{topic}/partitions/0/messages?offset={offset}&max={messages_max}&wait_ms={wait_ms}"
    return (f"GET {path}&max_bytes=1048576 HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n").encode()


def _post(address: Address, path: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body

"""HTTP on the wire: publish requests, prebuilt, and replies framed by their Content-Length."""

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.load.wire import LoadFailed, connect, payload
from benchmarks.process import HOST

BATCHES = "application/vnd.holdfast.batches"
HEAD_BYTES_MAX = 16_384
_HEAD_END = b"\r\n\r\n"


def post(path: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def post_json(path: str, content: Any) -> bytes:
    return post(path, json.dumps(content, separators=(",", ":")).encode())


def publish(topic: str, count: int) -> bytes:
    """One request with `count` messages, as a client with `json.dumps` or better would send it."""
    return publish_messages(topic, [{"value": payload(number).decode()} for number in range(count)])


def publish_messages(topic: str, messages: Sequence[Mapping[str, Any]]) -> bytes:
    return post_json(f"/v1/topics/{topic}/messages", {"messages": messages})


def publish_batches(topic: str, batches: Sequence[bytes | bytearray], partition: int = 0) -> bytes:
    """One request with record batches as they are to be stored, one after the other."""
    return post(f"/v1/topics/{topic}/partitions/{partition}/batches", b"".join(batches), BATCHES)


def create_topic(topic: str, partitions: int) -> bytes:
    return post_json("/v1/topics", {"topic": topic, "partitions": partitions})


def get(path: str, accept: str = "application/json") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: {accept}\r\n\r\n".encode()


def dial(port: int) -> socket.socket:
    return connect(port)


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if "content-length" not in headers:
        raise LoadFailed(f"a reply without Content-Length: {first}")
    return int(first.split()[1]), headers


class PublishReplies:
    """Counts successful replies; each stands for all messages of its request."""

    def __init__(self, messages_per_request: int) -> None:
        self._messages_per_request = messages_per_request
        self._head = bytearray()
        self._body_bytes_left = 0

    def feed(self, buffer: bytearray, size_bytes: int) -> int:
        position = acknowledged = 0
        while position < size_bytes:
            if self._body_bytes_left == 0:
                position = self._feed_head(buffer, position, size_bytes)
                if self._head:
                    break
            taken = min(self._body_bytes_left, size_bytes - position)
            position += taken
            self._body_bytes_left -= taken
            if self._body_bytes_left == 0:
                acknowledged += self._messages_per_request
        return acknowledged

    def _feed_head(self, buffer: bytearray, position: int, size_bytes: int) -> int:
        """Collect a head; when it is whole, take the body's length from it. Where to go on reading."""
        held_bytes = len(self._head)
        self._head += buffer[position : min(size_bytes, position + HEAD_BYTES_MAX)]
        end = self._head.find(_HEAD_END)
        if end < 0:
            if len(self._head) > HEAD_BYTES_MAX:
                raise LoadFailed("a reply's head does not end")
            return size_bytes
        status, headers = parse_head(bytes(self._head[:end]))
        if not 200 <= status < 300:
            raise LoadFailed(f"status {status}: {bytes(self._head[end + 4 : end + 400])!r}")
        self._body_bytes_left = int(headers["content-length"])
        self._head.clear()
        return position + end + len(_HEAD_END) - held_bytes


def ask(port: int, request: bytes) -> Any:
    """One request whose answer is JSON."""
    with connect(port) as connection:
        connection.sendall(request)
        status, _, body = read_reply(connection, bytearray(1 << 20))
    if not 200 <= status < 300:
        raise LoadFailed(f"status {status}: {bytes(body[:300])!r}")
    return json.loads(bytes(body))


def read_reply(connection: socket.socket, buffer: bytearray) -> tuple[int, dict[str, str], memoryview]:
    """One whole reply into `buffer`, which grows when it must; the body is a view into it."""
    filled = 0
    while (end := buffer.find(_HEAD_END, 0, filled)) < 0:
        filled += _receive(connection, memoryview(buffer)[filled:])
    status, headers = parse_head(bytes(buffer[:end]))
    start = end + len(_HEAD_END)
    total_bytes = start + int(headers["content-length"])
    if total_bytes > len(buffer):
        buffer.extend(bytes(total_bytes - len(buffer)))
    view = memoryview(buffer)
    while filled < total_bytes:
        filled += _receive(connection, view[filled:total_bytes])
    return status, headers, view[start:total_bytes]


def _receive(connection: socket.socket, view: memoryview) -> int:
    size_bytes = connection.recv_into(view)
    if size_bytes == 0:
        raise LoadFailed("the server closed the connection")
    return size_bytes

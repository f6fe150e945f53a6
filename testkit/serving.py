"""A whole broker in the test's own loop, and clients that know nothing but sockets and lines."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from holdfast.node.config import Config
from holdfast.node.node import Node
from testkit.text_client import CONNACK, PUBACK, SUBACK, UNSUBACK

__all__ = [
    "CONNACK",
    "DEADLINE_S",
    "PUBACK",
    "SUBACK",
    "UNSUBACK",
    "Serving",
    "Talk",
    "address_of",
    "code_of",
    "serving",
]

# The machine may be busy with something else: this is for what never happens, not for what is slow.
DEADLINE_S = 60.0
LINE_BYTES_MAX = 64 << 20


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


class Talk:
    """One connection: lines out, lines in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Talk:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def abort(self) -> None:
        """Close as a client that crashes: nothing that waits here is sent."""
        self.writer.transport.abort()

    def pause(self) -> None:
        """Stop reading, so that what comes fills the buffers of this machine and then of the broker."""
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def resume(self) -> None:
        cast(asyncio.Transport, self.writer.transport).resume_reading()

    def send(self, *lines: bytes) -> None:
        """All lines in one piece."""
        self.writer.write(b"".join(line + b"\n" for line in lines))

    async def line(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            line = await self.reader.readuntil(b"\n")
        return line[:-1]

    async def lines(self, count: int) -> list[bytes]:
        async with asyncio.timeout(DEADLINE_S):
            return [(await self.reader.readuntil(b"\n"))[:-1] for _ in range(count)]

    async def ask(self, *lines: bytes) -> bytes:
        """Send lines and get the next one."""
        self.send(*lines)
        return await self.line()

    async def error_of(self, *lines: bytes) -> str:
        """Send lines and get the code of the error that comes next."""
        return code_of(await self.ask(*lines))

    async def is_usable(self) -> bool:
        """Whether the connection still does its work, and nothing else was under way on it."""
        return await self.ask(b"PING") == b"PONG"

    async def closed_after(self) -> bytes:
        """Everything that comes until the broker closes the connection."""
        rest = b""
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(1 << 16):
                    rest += piece
        return rest


def code_of(line: bytes) -> str:
    word, code, text = line.split(b"|", 2)
    assert word == b"ERROR" and text, line
    return code.decode()


class Serving:
    """A running broker."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.address = address_of(node.addresses["text"])

    async def raw(self, receive_buffer_bytes: int | None = None, line_bytes_max: int = LINE_BYTES_MAX) -> Talk:
        """A connection of which nothing was read yet.

        Small buffers make a reader that stalls soon: it holds no more than two of the longest lines.
        """
        connected = socket.socket()
        try:
            if receive_buffer_bytes is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            connected.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connected, self.address)
            return Talk(*await asyncio.open_connection(sock=connected, limit=line_bytes_max))
        except BaseException:
            connected.close()
            raise

    async def connect(self) -> Talk:
        talk = await self.raw()
        assert await talk.line() == CONNACK
        return talk

    async def subscribe(self, *fields: bytes) -> Talk:
        """A connection with a subscription."""
        talk = await self.connect()
        assert await talk.ask(b"|".join((b"SUBSCRIBE", *fields))) == SUBACK
        return talk

    async def stalled(
        self, topic: bytes, *fields: bytes, command: bytes = b"SUBSCRIBE", receive_buffer_bytes: int = 4096
    ) -> Talk:
        """A connection with a subscription that does not read; its machine takes little for it."""
        talk = await self.raw(receive_buffer_bytes)
        assert await talk.line() == CONNACK
        assert await talk.ask(b"|".join((command, topic, *fields))) == SUBACK
        talk.pause()
        return talk

    async def publish(self, topic: bytes, values: Sequence[bytes]) -> None:
        """Publish over a connection of its own, all lines at once, and wait for every acknowledgement."""
        async with await self.connect() as talk:
            for start in range(0, len(values), 1000):
                part = values[start : start + 1000]
                talk.send(*[b"PUBLISH|%b|%b" % (topic, value) for value in part])
                assert set(await talk.lines(len(part))) == {PUBACK}

    async def http(self, method: str, path: str, body: object = None, expect: int = 200) -> Any:
        """One call of the HTTP interface."""
        status, answer = await asyncio.to_thread(_call, self.node.addresses["http"], method, path, body)
        assert status == expect, (status, answer)
        return json.loads(answer) if answer else None

    def end_offset(self, topic: str, partition: int = 0) -> int:
        return self.node.broker.partition_range(topic, partition)[1]

    async def stored(self, topic: str, partition: int = 0) -> list[bytes]:
        """Every value in a partition."""
        start, end = self.node.broker.partition_range(topic, partition)
        values: list[bytes] = []
        offset = start
        while offset < end:
            messages, offset = await self.node.broker.read(topic, partition, offset, 100_000, 1 << 22)
            values += [message.value for message in messages]
        return values


def _call(address: str, method: str, path: str, body: object) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address_of(address), timeout=DEADLINE_S)
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[Serving]:
    """A broker for as long as the block lasts."""
    chosen = {"text": "127.0.0.1:0", "http": "127.0.0.1:0", "drain_ms": 2000, **settings}
    node = Node(Config(data=str(directory / "data"), **chosen).checked())
    await node.start()
    try:
        yield Serving(node)
    finally:
        await node.stop()


def values_of(lines: Sequence[bytes], topic: bytes) -> list[bytes]:
    """The payloads of deliveries; anything else among them is a failure."""
    prefix = b"MESSAGE|" + topic + b"|"
    assert all(line.startswith(prefix) for line in lines), [line for line in lines if not line.startswith(prefix)][:3]
    return [line[len(prefix) :] for line in lines]

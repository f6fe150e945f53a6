"""Text brokers that do what a test tells them: acknowledge late or never, die, deliver twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from holdfast.testing.ports import free_port
from tests.client.client_servers import serving

PUBACK = b"PUBACK|Published successfully\n"


class FakeBroker:
    """Stores by id, as a broker does; several that share a `store` are a pair.

    `answers` says what becomes of a publish: `ack`, `silent`, `hang up`, or an `ERROR` line. It may be changed at any
    time, and may be a function of how many publishes came before.
    """

    def __init__(self, store: dict[str, bytes] | None = None, *, dialect: str = "standard") -> None:
        self.port = free_port()
        self.address = f"localhost:{self.port}"
        self.store: dict[str, bytes] = {} if store is None else store
        self.answers: str | Callable[[int], str] = "ack"
        self.answers_pings = True
        # What comes is taken and counted, and nothing is said, not even to a subscriber.
        self.is_mute = False
        self.refuses_subscribers_with = b""
        self.published: list[str] = []
        self.subscribed: list[bytes] = []
        self.connections = 0
        self._dialect = dialect
        self._writers: list[asyncio.StreamWriter] = []
        self._subscribers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 24)

    async def die(self) -> None:
        """As by SIGKILL: no port, and every connection reset."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()
        self._server = None
        self._writers, self._subscribers = [], []

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscribers)

    def reset_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def deliver(self, *messages: tuple[str, bytes]) -> None:
        """To every subscriber, in one piece."""
        data = b"".join(b"MESSAGE_ID|%b|t|%b\n" % (message_id.encode(), value) for message_id, value in messages)
        self.say_to_subscribers(data)

    def say_to_subscribers(self, data: bytes) -> None:
        assert self._subscribers, "nobody is subscribed"
        for writer in self._subscribers:
            writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        self.connections += 1
        try:
            if self._dialect == "standard" and not self.is_mute:
                writer.write(b"CONNACK|Connected to Message Broker\n")
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    self._answer((await reader.readuntil(b"\n"))[:-1], writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        command, _, rest = line.partition(b"|")
        if self.is_mute:
            return
        if command == b"PING":
            if self.answers_pings:
                writer.write(b"PONG\n")
        elif command == b"SUBSCRIBE_ID":
            self.subscribed.append(rest)
            if self.refuses_subscribers_with:
                writer.write(self.refuses_subscribers_with)
                return
            self._subscribers.append(writer)
            if self._dialect == "standard":
                writer.write(b"SUBACK|Subscribed successfully\n")
        else:
            assert command == b"PUBLISH_ID", line
            self._publish(rest, writer)

    def _publish(self, rest: bytes, writer: asyncio.StreamWriter) -> None:
        message_id, _, value = rest.split(b"|", 2)
        answer = self.answers if isinstance(self.answers, str) else self.answers(len(self.published))
        self.published.append(message_id.decode())
        if answer == "hang up":
            writer.transport.abort()
        elif answer == "store and hang up":
            self.store.setdefault(message_id.decode(), value)
            writer.transport.abort()
        elif answer == "ack":
            self.store.setdefault(message_id.decode(), value)
            writer.write(PUBACK if self._dialect == "standard" else b"ACK\n")
        elif answer != "silent":
            writer.write(answer.encode() + b"\n")


@contextlib.asynccontextmanager
async def fake_pair(*, dialect: str = "standard") -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    """Two brokers that know each other's messages by their ids."""
    store: dict[str, bytes] = {}
    brokers = FakeBroker(store, dialect=dialect), FakeBroker(store, dialect=dialect)
    for broker in brokers:
        await broker.start()
    try:
        yield brokers
    finally:
        for broker in brokers:
            await broker.die()


@contextlib.asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """Something that speaks HTTP where a text broker is expected; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with serving(serve) as address:
        yield address

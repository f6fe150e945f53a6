"""The other end of a callback: listens, hands out what the cluster sends, and acknowledges what was processed.

::

    async with Receiver("127.0.0.1:9000") as receiver:
        await broker.subscribe_callback("orders", receiver.address)
        async for order in receiver:
            print(order.json())

A message counts as processed when the next one is asked for, and is acknowledged then, many together. Several nodes
may be connected, and after a failover one of them sends again what another has sent: what has a number is handed out
once, for as long as the receiver runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final, cast

import msgspec

from holdfast.client.errors import ClientClosed
from holdfast.model.errors import BadCommand, ConfigError
from holdfast.model.limits import BATCH_BYTES_MAX, MIB
from holdfast.wire.callbacks import Received, parse_messages

_log = logging.getLogger("holdfast.client")

# What waits to be handed out before nothing more is read; each connection may add what its broker has under way.
_BUFFER_BYTES_MAX: Final = 8 * MIB
# Base64 makes four bytes of three, and topic, id and numbers come on top.
_LINE_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
# One for each node and subscription.
_CONNECTIONS_MAX: Final = 4_096
# Streams and partitions of which it is remembered what came; with more, the one that rested longest is forgotten.
_STREAMS_MAX: Final = 100_000
# Of each so many runs: as many as there are messages in the smallest lines that wait to be handed out.
_RUNS_MAX: Final = 300_000
# Acknowledgements are gathered so long while there is more to hand out.
_GATHER_S: Final = 0.005
# So many are handed out before the loop gets to read and to acknowledge.
_HAND_OUT_MAX: Final = 256

# A broker that does not read is not waited for any longer at the end.
_HANG_UP_S: Final = 1.0
# A task begins, it makes the transport, and that tells its protocol; one turn to spare.
_TURNS_OF_ACCEPTING: Final = 4

_StreamKey = tuple[bytes, int, str]


class ReceivedMessage:
    """A message; `partition` and `offset` are `None` where the subscription's format is `plain`."""

    __slots__ = ("_received",)

    def __init__(self, received: Received) -> None:
        self._received = received

    @property
    def topic(self) -> str:
        return self._received.topic

    @property
    def value(self) -> bytes:
        return self._received.value

    @property
    def partition(self) -> int | None:
        return self._received.partition if self._received.stream else None

    @property
    def offset(self) -> int | None:
        return self._received.offset if self._received.stream else None

    @property
    def id(self) -> str | None:
        """The one its publisher gave it."""
        return self._received.id

    @property
    def text(self) -> str:
        return self.value.decode()

    def json(self) -> Any:
        return msgspec.json.decode(self.value)

    def __repr__(self) -> str:
        where = f"{self.partition}@{self.offset}" if self._received.stream else "-"
        return f"<ReceivedMessage {self.topic} {where}: {self.value[:40]!r}>"


class _Run:
    """Messages of one stream with offsets that follow one another, as their numbers do."""

    __slots__ = ("end", "first", "number")

    def __init__(self, first: int, number: int) -> None:
        self.first, self.end = first, first + 1
        self.number = number

    def last_number(self) -> int:
        return self.number + self.end - self.first - 1


class _Seen:
    """What came of one stream. Somebody may begin before what came first, so it is not enough to keep the highest."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def take(self, offset: int, number: int, processed: int) -> int:
        """The number that a message came with before, or else `number`, which it has from now on."""
        runs = self._runs
        if runs and (run := runs[-1]).end == offset and run.number + offset - run.first == number:
            run.end += 1  # as almost always
            return number
        place = bisect_right(runs, offset, key=lambda run: run.first) - 1
        if place >= 0:
            run = runs[place]
            if offset < run.end:
                return run.number + offset - run.first
            if offset == run.end and run.last_number() + 1 == number:
                run.end += 1
                return number
        runs.insert(place + 1, _Run(offset, number))
        # Of those that are processed it does not matter which number they had.
        while place > 0 and runs[place - 1].end == runs[place].first:
            before, run = runs[place - 1], runs[place]
            if before.last_number() > processed or run.last_number() > processed:
                break
            del runs[place]
            before.end = run.end
            before.number = min(before.number, processed - (before.end - before.first) + 1)
            place -= 1
        if len(runs) > _RUNS_MAX:
            del runs[0]
        return number


class _Connection(asyncio.Protocol):
    """One broker that sends."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._half_line = bytearray()
        # How many lines there are whose messages have numbers that follow one another, and the last of these.
        self._unacknowledged: deque[tuple[int, int]] = deque()
        self._done_of_first = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._receiver._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver._closed(self)

    def data_received(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        if not end:
            self._half_line += data
        else:
            lines = bytes(self._half_line) + data[:end]
            self._half_line[:] = data[end:]
            try:
                messages = parse_messages(lines)
            except BadCommand as error:
                self._give_up(error.message)
                return
            if messages:
                self._receiver._arrived(self, messages, len(lines))
        if len(self._half_line) > _LINE_BYTES_MAX:
            self._give_up(f"a line has more than {_LINE_BYTES_MAX} bytes")

    def _give_up(self, why: str) -> None:
        _log.warning("closed a connection from %s: %s", self.transport.get_extra_info("peername"), why)
        self.transport.abort()

    def owe(self, lines: int, number: int) -> None:
        self._unacknowledged.append((lines, number))

    def acknowledge(self, processed: int) -> None:
        """Say how much of what came here is done, given the number of the last message that is."""
        count = 0
        while self._unacknowledged:
            lines, number = self._unacknowledged[0]
            if number <= processed:
                count += lines - self._done_of_first
                self._done_of_first = 0
                self._unacknowledged.popleft()
                continue
            if (done := processed - (number - lines)) > self._done_of_first:
                count += done - self._done_of_first
                self._done_of_first = done
            break
        if count and not self.transport.is_closing():
            self.transport.write(b"ACK|%d\n" % count)


class Receiver:
    """Listens at an address; port 0 takes a free one. Use it with `async with`, on one event loop."""

    def __init__(self, address: str) -> None:
        self._host, self._port = _parsed(address)
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._queue: deque[tuple[Received, int]] = deque()
        self._queued_bytes = 0
        self._is_reading = True
        # The one that came last is the last.
        self._seen: dict[_StreamKey, _Seen] = {}
        # Numbers of messages, in the order they came: the last that came, was handed out, and is processed.
        self._arrived_number = 0
        self.handed_out = 0
        self.processed = 0
        self._news = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._flusher: asyncio.TimerHandle | asyncio.Handle | None = None
        self._is_closed = False

    @property
    def address(self) -> str:
        """Where it listens."""
        if self._server is None:
            raise ClientClosed("the receiver does not listen; use it with `async with`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def __aenter__(self) -> Receiver:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), self._host, self._port, backlog=_CONNECTIONS_MAX
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.done()
        await self.close()

    async def close(self) -> None:
        """Listen no more, and hang up. What is not processed comes again, to whoever listens there next."""
        self._is_closed = True
        self._news.set()
        if self._flusher is not None:
            self._flusher.cancel()
        if self._server is not None:
            self._flush()
            await self._stop_listening(self._server)
        for connection in list(self._connections):
            connection.transport.close()
        # What was acknowledged last is on its way when they are gone.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_S):
                while self._connections:
                    self._hung_up.clear()
                    await self._hung_up.wait()

    @staticmethod
    async def _stop_listening(server: asyncio.Server) -> None:
        """Accept nobody more, wait for those who are being accepted, and only then close.

        A server that closes between accepting a connection and making its transport leaves that open for good, and a
        broker would take it for a receiver that is busy.
        """
        loop = asyncio.get_running_loop()
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(_TURNS_OF_ACCEPTING):
            await asyncio.sleep(0)
        server.close()

    # --- handing out ----------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while True:
            try:
                yield await self.get()
            except ClientClosed:
                return

    async def get(self) -> ReceivedMessage:
        """The next message; those before it are processed. Raises `ClientClosed`."""
        return (await self.get_many(1))[0]

    async def get_many(self, messages_max: int = 1000) -> list[ReceivedMessage]:
        """The next messages, at least one; those before them are processed."""
        self.done()
        if self.handed_out % _HAND_OUT_MAX == 0:
            await asyncio.sleep(0)
        while not self._queue:
            if self._is_closed:
                raise ClientClosed("the receiver is closed")
            self._news.clear()
            await self._news.wait()
        taken = [self._queue.popleft() for _ in range(min(messages_max, len(self._queue)))]
        self._queued_bytes -= sum(size for _, size in taken)
        self.handed_out += len(taken)
        if not self._is_reading and self._queued_bytes < _BUFFER_BYTES_MAX // 2:
            self._read(True)
        return [ReceivedMessage(received) for received, _ in taken]

    def done(self, count: int | None = None) -> None:
        """Everything that was handed out is processed, or the next `count` messages of it are."""
        through = self.handed_out if count is None else min(self.handed_out, self.processed + count)
        if through > self.processed:
            self.processed = through
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flusher is None:
            loop = asyncio.get_running_loop()
            self._flusher = loop.call_later(_GATHER_S, self._flush) if self._queue else loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flusher = None
        for connection in self._connections:
            connection.acknowledge(self.processed)

    # --- what comes -----------------------------------------------------------------------------------

    def _opened(self, connection: _Connection) -> None:
        if len(self._connections) >= _CONNECTIONS_MAX or self._is_closed:
            connection.transport.abort()
            return
        self._connections.add(connection)
        if not self._is_reading:
            connection.transport.pause_reading()

    def _closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._hung_up.set()

    def _arrived(self, connection: _Connection, messages: list[Received], size: int) -> None:
        """Keep what is new, and remember for whom each line waits."""
        each_bytes = size // len(messages)
        key: _StreamKey | None = None
        lines = last = 0
        for message in messages:
            topic, _, stream, partition, offset, _ = message
            number = self._arrived_number + 1
            if stream:
                if key != (stream, partition, topic):
                    key = (stream, partition, topic)
                    seen = self._seen.pop(key, None) or _Seen()
                    self._seen[key] = seen  # behind all others
                number = seen.take(offset, number, self.processed)
            if number > self._arrived_number:
                self._arrived_number = number
                self._queue.append((message, each_bytes))
                self._queued_bytes += each_bytes
            if number != last + 1 and lines:
                connection.owe(lines, last)
                lines = 0
            lines, last = lines + 1, number
        connection.owe(lines, last)
        while len(self._seen) > _STREAMS_MAX:
            del self._seen[next(iter(self._seen))]
        if self._queue:
            self._news.set()
        self._flush_soon()
        if self._is_reading and self._queued_bytes > _BUFFER_BYTES_MAX:
            self._read(False)

    def _read(self, is_reading: bool) -> None:
        self._is_reading = is_reading
        for connection in self._connections:
            if is_reading:
                connection.transport.resume_reading()
            else:
                connection.transport.pause_reading()


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{address!a} is no address to listen at; give HOST:PORT, for example 127.0.0.1:9000")
    return host, int(port)

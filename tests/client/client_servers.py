"""A scripted server for the client's tests: it answers what a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import h11
import msgspec

from holdfast.client import Client, connect
from holdfast.model.ids import Offset
from holdfast.wire.batch_builder import build_values
from holdfast.wire.record_batch import decode_values, header, place


class Call:
    """One request that reached a scripted server."""

    def __init__(self, method: str, target: str, body: bytes) -> None:
        self.method = method
        self.target = target
        self.body = body

    def __repr__(self) -> str:
        return f"{self.method} {self.target}"


class HangUp(Exception):
    """Raised by a script to close the connection instead of answering."""


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[str]:
    """A server at the address given; when it ends, so do its connections."""
    tasks: set[asyncio.Task[None]] = set()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (HangUp, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(on_connection, "127.0.0.1", port)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0)  # connections that were just accepted get their task
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()
        await asyncio.sleep(0)  # what was aborted is closed


Answer = tuple[int, bytes | dict[str, object]]
Answerer = Callable[[Call], Awaitable[Answer]]


class ScriptedServer:
    """Answers every request with what the script returns; parses with h11, as a foreign server would."""

    def __init__(self, script: Answerer) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.connections = 0
        self.address = ""

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[ScriptedServer]:
        async with serving(self._serve, port) as self.address:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        parser = h11.Connection(h11.SERVER)
        method, target, body = "", "", b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                method, target, body = event.method.decode(), event.target.decode(), b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.ConnectionClosed):
                return
            elif isinstance(event, h11.EndOfMessage):
                call = Call(method, target, body)
                self.calls.append(call)
                status, answer = await self.script(call)
                content = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
                head = h11.Response(status_code=status, headers=[("Content-Length", str(len(content)))])
                writer.write(parser.send(head) or b"")
                writer.write(parser.send(h11.Data(data=content)) or b"")
                writer.write(parser.send(h11.EndOfMessage()) or b"")
                await writer.drain()
                parser.start_next_cycle()


@contextlib.asynccontextmanager
async def scripted(script: Answerer, **options: Any) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    """A scripted server, and a client of it."""
    async with ScriptedServer(script).running() as server, connect(server.address, **options) as client:
        yield server, client


INFO: dict[str, object] = {"version": "0", "node": "n", "addresses": {}, "started_ms": 0, "uptime_ms": 0}


def described(topic: str, partitions: int = 1) -> dict[str, object]:
    each = {"leader": "n", "start_offset": 0, "end_offset": 0, "size_bytes": 0, "segments": 1}
    return {
        "topic": topic,
        "created_ms": 0,
        "retention_ms": None,
        "retention_bytes": None,
        "messages": 0,
        "size_bytes": 0,
        "delivers_from": topic,
        "partitions": [{"partition": number, **each} for number in range(partitions)],
    }


def error(code: str, **more: object) -> dict[str, object]:
    return {"error": {"code": code, "message": f"the script says {code}", **more}}


def stored(body: bytes, base_offset: int = 0) -> dict[str, object]:
    """What a broker answers to a batch that is all new."""
    count = header(body).record_count
    return {"results": [{"partition": 0, "base_offset": base_offset, "count": count, "duplicates": 0}]}


def is_publish(call: Call) -> bool:
    return call.target.endswith("/batches")


class Script:
    """Answers as a broker with one topic would, except where a test says otherwise."""

    def __init__(self, *publishes: Answer | str, partitions: int = 1) -> None:
        self._publishes = list(publishes)
        self._partitions = partitions
        self.end_offset = 0

    async def __call__(self, call: Call) -> Answer:
        if not is_publish(call):
            return (200, INFO) if call.target == "/v1/info" else (200, described("orders", self._partitions))
        planned = self._publishes.pop(0) if self._publishes else "store"
        if planned == "hang up":
            raise HangUp
        if planned == "never":
            await asyncio.Event().wait()
        if isinstance(planned, tuple):
            return planned
        answer = stored(call.body, self.end_offset)
        self.end_offset += len(decode_values(call.body))
        return 200, answer


def batches_of(server: ScriptedServer) -> list[list[bytes]]:
    return [decode_values(call.body) for call in server.calls if is_publish(call)]


class LogScript:
    """A topic of one partition whose reads are scripted by offset; others wait until the broker is down."""

    def __init__(self, reads: dict[int, Answer], earliest: int = 0) -> None:
        self.reads = reads
        self.earliest = earliest
        self.asked: list[int] = []
        self.down = asyncio.Event()

    async def __call__(self, call: Call) -> Answer:
        if self.down.is_set():
            raise HangUp
        if call.target == "/v1/info":
            return 200, INFO
        if "/offsets" in call.target:
            return 200, {"offset": self.earliest}
        if "/messages?" not in call.target:
            return 200, described("orders")
        offset = int(call.target.partition("offset=")[2].partition("&")[0])
        self.asked.append(offset)
        if offset not in self.reads:
            await self.down.wait()
            raise HangUp
        return self.reads[offset]


def batch_at(offset: int, *values: bytes) -> bytes:
    batch = build_values(list(values), 1)
    place(batch, Offset(offset), 0)
    return bytes(batch)

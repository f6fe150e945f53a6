"""Receivers made of nothing but sockets, which behave as they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from testkit.serving import DEADLINE_S
from testkit.wait import until

from holdfast.testing.ports import free_port

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class DumbReceiver:
    """Answers `ACK` to each line, as twenty lines of anybody's script do; comes and goes at will."""

    def __init__(self, port: int | None = None, answer: Callable[[int], bytes] = lambda nth: b"ACK\n") -> None:
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.lines: list[bytes] = []
        self.connections = 0
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> DumbReceiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> DumbReceiver:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        nth = 0
        try:
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    self.lines.append(line[:-1])
                    writer.write(self._answer(nth))
                    nth += 1
        finally:
            self._open.discard(writer)
            writer.close()

    async def got(self, count: int) -> list[bytes]:
        await until(lambda: len(self.lines) >= count, f"{count} lines, not {len(self.lines)}")
        return self.lines


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """Somebody who does with each connection what `serve` says; gives the address."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.timeout(DEADLINE_S):
                    await serve(reader, writer)
        finally:
            writer.close()

    port = free_port()
    server = await asyncio.start_server(guarded, "127.0.0.1", port)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.close()


def messages(topic: str, count: int, start: int = 0) -> list[bytes]:
    return [f"MESSAGE|{topic}|m{number}".encode() for number in range(start, start + count)]


def payloads(count: int, start: int = 0) -> list[bytes]:
    return [f"m{number}".encode() for number in range(start, start + count)]

"""A node that looks at the bytes it gets and answers as a test likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.testing.ports import free_port

Reply = Callable[["Got", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Got:
    """A request as it came."""

    line: str
    fields: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for field_name, value in self.fields if field_name == name]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answer(body: bytes, *fields: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *fields]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class FakeNode:
    reply: Reply
    port: int
    # All that was asked but whether it is well.
    got: list[Got] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
        with contextlib.suppress(*ends), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *lines = head[:-4].split("\r\n")
                fields = [(name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in lines)]
                body = b""
                for length in [value for name, value in fields if name == "content-length"]:
                    body = await reader.readexactly(int(length))
                got = Got(line, fields, body)
                if "/broker_info" in line:
                    writer.write(answer(b'{"is_leader":true,"has_quorum":true}'))
                    continue
                self.got.append(got)
                await self.reply(got, writer)

    @property
    def lines(self) -> list[str]:
        return [got.line for got in self.got]


@contextlib.contextmanager
def faking(reply: Reply) -> Iterator[FakeNode]:
    """A node that answers like this, in a thread of its own."""
    node = FakeNode(reply, free_port())
    started, done = threading.Event(), threading.Event()

    async def life() -> None:
        server = await asyncio.start_server(node.serve, "127.0.0.1", node.port)
        started.set()
        await asyncio.get_running_loop().run_in_executor(None, done.wait)
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(life()), name="fake-node")
    thread.start()
    try:
        assert started.wait(20)
        yield node
    finally:
        done.set()
        thread.join(60)

"""One HTTP/1.1 connection to a broker: bytes over an asyncio stream, parsed by h11.

A connection carries one exchange at a time. Whatever goes wrong, and also a cancelled exchange, leaves
it unusable: an answer that nobody read would be taken for the answer to the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import NamedTuple

import h11

from holdfast.client.addresses import PORT_DEFAULT, Address
from holdfast.client.errors import AttemptFailed, WrongPort
from holdfast.client.limits import RESPONSE_BYTES_MAX, SOCKET_READ_BYTES

JSON = b"application/json"
BATCHES = b"application/vnd.holdfast.batches"

# Below this size, head and body leave in one write.
_JOIN_BYTES_MAX = 64 * 1024
# Every answer of an HTTP server begins like this; the text port greets with its own packet instead.
_HTTP_BEGINS = b"HTTP/"
_TEXT_PORT_GREETING = b"CONNACK|"


class Request(NamedTuple):
    """What is asked; `target` is the path with its query."""

    method: str
    target: str
    body: bytes | bytearray = b""
    content_type: bytes = JSON
    accept: bytes = JSON

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


class Response(NamedTuple):
    """The answer; header names are lower-case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Connection:
    """An open connection. `exchange` raises `AttemptFailed`, or `WrongPort` where HTTP is not spoken."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.idle_since = 0.0
        self._reader = reader
        self._writer = writer
        self._parser = h11.Connection(h11.CLIENT)
        self._first_bytes: bytes | None = b""
        self._busy = False

    @classmethod
    async def open(cls, address: Address, timeout_s: float) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(address.host, address.port, limit=SOCKET_READ_BYTES)
        except TimeoutError:
            raise AttemptFailed(str(address), f"no connection within {timeout_s:.1f} s", sent=False) from None
        except OSError as error:
            raise AttemptFailed(str(address), _reason(error), sent=False) from error
        return cls(address, reader, writer)

    @property
    def reusable(self) -> bool:
        """Whether the last exchange ended cleanly and the other side has not hung up since."""
        return not (self._busy or self._reader.at_eof() or self._writer.is_closing())

    async def exchange(self, request: Request) -> Response:
        self._busy = True
        try:
            self._send(request)
            await self._writer.drain()
            response = await self._receive()
        except h11.RemoteProtocolError as error:
            raise AttemptFailed(
                str(self.address), f"sent half an answer, or none that is HTTP: {error}", sent=True
            ) from error
        except OSError as error:
            raise AttemptFailed(str(self.address), _reason(error), sent=True) from error
        if self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
            self._busy = False
        return response

    def abort(self) -> None:
        """Hang up without a word; for connections whose state is not known."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send(self, request: Request) -> None:
        head = self._parser.send(
            h11.Request(
                method=request.method,
                target=request.target,
                headers=[
                    (b"Host", str(self.address).encode()),
                    (b"Accept", request.accept),
                    (b"Content-Type", request.content_type),
                    (b"Content-Length", b"%d" % len(request.body)),
                ],
            )
        )
        assert head is not None
        if request.body:
            # h11 counts the bytes; with a Content-Length it hands the body back as it is.
            self._parser.send_with_data_passthrough(h11.Data(data=request.body))  # type: ignore[arg-type]
        self._parser.send(h11.EndOfMessage())
        if len(request.body) <= _JOIN_BYTES_MAX:
            self._writer.write(head + request.body)
        else:
            self._writer.write(head)
            self._writer.write(request.body)

    async def _receive(self) -> Response:
        status = 0
        headers: dict[bytes, bytes] = {}
        parts: list[bytes] = []
        size_bytes = 0
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                self._parser.receive_data(await self._read())
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = dict(event.headers)
            elif isinstance(event, h11.Data):
                parts.append(event.data)
                size_bytes += len(event.data)
                if size_bytes > RESPONSE_BYTES_MAX:
                    raise AttemptFailed(str(self.address), f"an answer of over {RESPONSE_BYTES_MAX} bytes", sent=True)
            elif isinstance(event, h11.EndOfMessage):
                return Response(status, headers, b"".join(parts))

    async def _read(self) -> bytes:
        data = await self._reader.read(SOCKET_READ_BYTES)
        if not data and self._parser.their_state is h11.SEND_RESPONSE:
            raise AttemptFailed(str(self.address), "hung up before it answered", sent=True)
        if self._first_bytes is not None:
            self._first_bytes = _checked_greeting(self._first_bytes + data, self.address)
        return data


def _checked_greeting(first_bytes: bytes, address: Address) -> bytes | None:
    """Refuse what is not HTTP at its first bytes; h11 would wait for the end of headers that never come."""
    if first_bytes.startswith(_HTTP_BEGINS):
        return None
    if _HTTP_BEGINS.startswith(first_bytes):
        return first_bytes
    if first_bytes.startswith(_TEXT_PORT_GREETING):
        raise WrongPort(
            f"{address} is the broker's text port; give the client its HTTP port (--http, default {PORT_DEFAULT})"
        )
    if _TEXT_PORT_GREETING.startswith(first_bytes):
        return first_bytes
    raise WrongPort(
        f"{address} does not speak HTTP (it says {first_bytes[:20]!r}); "
        f"give the client the broker's HTTP port (--http, default {PORT_DEFAULT})"
    )


def _reason(error: OSError) -> str:
    """asyncio puts the address into the text, where it is said already; the number has the plain words."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__

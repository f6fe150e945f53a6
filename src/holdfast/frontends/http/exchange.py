"""One request and its response: what handlers see in place of ASGI's dictionaries.

The body is read in the pieces in which it comes and joined once. It is measured while it comes, so
that no more than the limit is ever held, and what all requests hold together is bounded too: a
thousand connections that each send the largest allowed body must not take the broker down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from holdfast.model.errors import BadHttp, Overloaded, TooLarge, UnsupportedMediaType

Receive = Callable[[], Awaitable[dict[str, Any]]]
HeaderList = list[tuple[bytes, bytes]]

JSON_TYPE = "application/json"
BATCHES_TYPE = "application/vnd.holdfast.batches"

_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The other side closed the connection: there is nobody to answer."""


class BodyBudget:
    """How many bytes of request bodies are held, and how many may be."""

    __slots__ = ("bytes_max", "bytes_used", "request_bytes_max")

    def __init__(self, *, request_bytes_max: int, bytes_max: int) -> None:
        self.request_bytes_max = request_bytes_max
        self.bytes_max = bytes_max
        self.bytes_used = 0

    def take(self, count: int) -> None:
        if self.bytes_used + count > self.bytes_max:
            raise Overloaded(
                f"the requests being received hold {self.bytes_used} bytes, {self.bytes_max} is the most; "
                "nothing was stored: try again in a moment"
            )
        self.bytes_used += count


class Request:
    """What a handler may know of a request."""

    __slots__ = ("_body_bytes", "_budget", "_gone", "_receive", "headers", "params", "query")

    def __init__(
        self, headers: Mapping[bytes, bytes], params: tuple[str, ...], receive: Receive, budget: BodyBudget
    ) -> None:
        self.headers = headers
        self.params = params
        self.query: Mapping[str, str] = {}
        self._receive = receive
        self._budget = budget
        self._body_bytes = 0
        self._gone: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> str:
        """The value of a header, or nothing; bytes that are no Latin-1 text do not exist."""
        return self.headers.get(name, b"").decode("latin-1")

    def require_type(self, media_type: str) -> None:
        """Refuse a body of another type.

        This is also what keeps other people's web pages out: a browser sends these types across
        origins only after asking, and nobody answers that question here.
        """
        given = self.headers.get(b"content-type", b"")
        if given != media_type.encode() and given.split(b";")[0].strip().lower() != media_type.encode():
            said = f"not {given.decode('latin-1')[:80]!a}" if given else "and the request names none"
            raise UnsupportedMediaType(
                f"Content-Type must be {media_type}, {said}: add the header Content-Type: {media_type}"
            )
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UnsupportedMediaType("compressed bodies are not taken; send the body as it is")

    async def body(self) -> bytes:
        """The whole body. Raises `TooLarge` before it holds more than the limit."""
        limit = self._budget.request_bytes_max
        announced = self.headers.get(b"content-length", b"0")
        if not announced.isdigit():
            raise BadHttp("Content-Length is not a number")
        if int(announced[:18]) > limit:
            raise TooLarge(f"the body has {announced.decode()} bytes, {limit} is the most")
        pieces: list[bytes] = []
        while True:
            event = await self._receive()
            if event["type"] != "http.request":
                raise ClientGone
            piece = event.get("body", b"")
            if self._body_bytes + len(piece) > limit:
                raise TooLarge(f"the body has more than {limit} bytes")
            self._budget.take(len(piece))
            self._body_bytes += len(piece)
            if not event.get("more_body", False):
                break
            pieces.append(piece)
        if not pieces:
            return piece  # type: ignore[no-any-return]
        pieces.append(piece)
        return b"".join(pieces)

    @property
    def gone(self) -> asyncio.Task[None]:
        """Done when the other side has closed the connection; what is left of the body is dropped."""
        if self._gone is None:
            self._gone = asyncio.create_task(self._until_gone())
        return self._gone

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] == "http.request":
            pass

    def release(self) -> None:
        """Give back what the request held."""
        self._budget.bytes_used -= self._body_bytes
        self._body_bytes = 0
        if self._gone is not None:
            self._gone.cancel()


class Response:
    """A status with a body in one piece, or with a stream of pieces."""

    __slots__ = ("body", "headers", "status", "stream")

    def __init__(
        self, status: int, headers: HeaderList, body: bytes = b"", stream: AsyncGenerator[bytes, None] | None = None
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.stream = stream


# Answers are about this moment: a cache between us and the reader would serve yesterday's offsets.
NO_STORE = (b"cache-control", b"no-store")
_JSON_HEADER = (b"content-type", b"application/json")


def json_response(value: Any, status: int = 200, headers: HeaderList | None = None) -> Response:
    """`value` as compact JSON."""
    return json_text(_encode(value), status, headers)


def json_text(text: bytes, status: int = 200, headers: HeaderList | None = None) -> Response:
    """JSON that is text already."""
    return Response(status, [_JSON_HEADER, NO_STORE, *(headers or ())], text)


def no_content() -> Response:
    return Response(204, [NO_STORE])

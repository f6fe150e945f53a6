"""A request as it is to a node and its answer back, piece by piece: no more than a few pieces are in memory.

It goes to another node only where it cannot have been taken yet: nothing of it was sent, or it has no body and changes
nothing. Headers that are about one connection stay on theirs. Where a request ends is said to a node by the proxy
alone, from what it will send: whatever a client says of its connection, two sides can never see two ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final

from holdfast.frontends.http.exchange import ClientGone, HeaderList, Receive, Response
from holdfast.model.limits import KIB
from holdfast.proxy.groups import Group
from holdfast.proxy.nodes import Node
from holdfast.proxy.pool import Pool
from holdfast.proxy.upstream import Head, NodeConnection, NodeFailed

_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# The proxy has looked at where a request comes from; to the node it comes from the proxy.
_OF_BROWSERS: Final = frozenset((b"host", b"origin", b"referer", b"sec-fetch-site", b"expect"))
_NOT_FOR_NODES: Final = _HOP_BY_HOP | _OF_BROWSERS | {b"content-length"}
# The proxy's own server says this of every answer.
_NOT_FOR_CLIENTS: Final = _HOP_BY_HOP | {b"x-content-type-options"}
# A long poll may take a minute before it answers.
_HEAD_S: Final = 90.0
_SAFE: Final = frozenset(("GET", "HEAD"))
# A body of more than this takes as long as its client likes, and so do answers that are pages or tails.
_SHORT_BODY_BYTES_MAX: Final = 64 * KIB
_LONG_ANSWERS: Final = (b"/messages", b"/batches", b"/tail")


def _end_to_end(fields: Iterable[tuple[bytes, bytes]], left_out: frozenset[bytes]) -> HeaderList:
    """Without the fields of one connection, also those that it names itself; what says how to read a body stays."""
    fields = list(fields)
    named = {name.strip().lower() for field, value in fields if field == b"connection" for name in value.split(b",")}
    return [
        (name, value)
        for name, value in fields
        if name not in left_out and (name not in named or name.startswith(b"content-"))
    ]


class Relay:
    """One request on its way to a group. `body`: all of it, where it was received before."""

    def __init__(
        self,
        group: Group,
        method: str,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        receive: Receive,
        body: bytes | None = None,
    ) -> None:
        self._group = group
        self._method = method
        self._target = target
        self._headers = headers
        self._receive = receive
        self._body = body
        given = dict(headers)
        self._is_chunked = body is None and b"transfer-encoding" in given
        # The server's parser has checked that it is a number, and that there is one at most.
        self._body_bytes = len(body) if body is not None else int(given.get(b"content-length", b"0"))
        self._has_body = self._is_chunked or self._body_bytes > 0
        # Whether the node has all that was announced to it.
        self._is_sent = not self._has_body or body is not None
        is_upload = self._is_chunked or self._body_bytes > _SHORT_BODY_BYTES_MAX
        self._is_long = is_upload or (method in _SAFE and target.partition(b"?")[0].endswith(_LONG_ANSWERS))

    async def response(self) -> Response:
        """The node's answer; its body is a stream. Raises `NoGroupAnswers`, `Overloaded`."""
        may_repeat = self._method in _SAFE and not self._has_body
        refusal: tuple[Pool, NodeConnection, Head] | None = None
        failures: list[NodeFailed] = []
        for node in self._group.in_turn():
            pool = node.streams if self._is_long else node.calls
            try:
                connection = await pool.take(asyncio.get_running_loop().time() + self._group.attempt_s)
            except NodeFailed as error:
                failures.append(error)
                continue
            try:
                head = await self._head(node, connection)
            except NodeFailed as error:
                pool.give_back(connection)
                node.problem = str(error)
                failures.append(error)
                if may_repeat or not error.sent:
                    continue
                raise self._group.silent(failures) from None
            except BaseException:
                connection.abort()
                pool.give_back(connection)
                raise
            if refusal is not None:
                _drop(*refusal)
                refusal = None
            if head.status == 503 and may_repeat:
                refusal = (pool, connection, head)
                continue
            return self._relayed(pool, connection, head)
        if refusal is not None:
            return self._relayed(*refusal)
        raise self._group.silent(failures)

    async def _head(self, node: Node, connection: NodeConnection) -> Head:
        """Raises `NodeFailed`, `ClientGone`."""
        head = connection.begin(self._request_head(node), is_without_body=self._method == "HEAD")
        if not self._is_sent and not head.done():
            await self._send_body(connection, head)
        async with self._while_client_is_there(connection) as gone:
            try:
                return await asyncio.wait_for(head, _HEAD_S)
            except TimeoutError:
                raise NodeFailed(f"no answer within {_HEAD_S:g} s", sent=True) from None
            except NodeFailed:
                if gone.done():
                    raise ClientGone from None
                raise

    def _request_head(self, node: Node) -> bytes:
        fields = [(b"host", node.host), *_end_to_end(self._headers, _NOT_FOR_NODES)]
        if self._is_chunked:
            fields.append((b"transfer-encoding", b"chunked"))
        elif self._has_body or self._method not in _SAFE:
            fields.append((b"content-length", b"%d" % self._body_bytes))
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (self._method.encode(), self._target, lines, self._body or b"")

    async def _send_body(self, connection: NodeConnection, head: asyncio.Future[Head]) -> None:
        sending = asyncio.ensure_future(self._write_body(connection))
        try:
            # A node may refuse a body before it has all of it.
            await asyncio.wait((head, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not head.done():
                sending.result()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _write_body(self, connection: NodeConnection) -> None:
        sent_bytes = 0
        while True:
            event = await self._receive()
            if event["type"] != "http.request":
                raise ClientGone
            piece = event.get("body", b"")
            if piece:
                sent_bytes += len(piece)
                await connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)
            if not event.get("more_body", False):
                if self._is_chunked:
                    await connection.write(b"0\r\n\r\n")
                self._is_sent = self._is_chunked or sent_bytes == self._body_bytes
                return

    def _relayed(self, pool: Pool, connection: NodeConnection, head: Head) -> Response:
        if not self._is_sent:
            # The node waits for the rest of a body: it would take the next request for that.
            connection.keeps_alive = False
        headers = _end_to_end(head.headers, _NOT_FOR_CLIENTS)
        if self._method == "HEAD":
            pool.give_back(connection)
            return Response(head.status, headers, stream=_nothing())
        return Response(head.status, headers, stream=self._pieces(pool, connection))

    async def _pieces(self, pool: Pool, connection: NodeConnection) -> AsyncGenerator[bytes, None]:
        """The answer's body. It ends when the client leaves; where the node fails it breaks off, and does not end."""
        try:
            async with self._while_client_is_there(connection):
                while (piece := await connection.piece()) is not None:
                    yield piece
        finally:
            pool.give_back(connection)

    @contextlib.asynccontextmanager
    async def _while_client_is_there(self, connection: NodeConnection) -> AsyncGenerator[asyncio.Task[None], None]:
        """When the client leaves, the node is hung up on: nobody waits for its answer."""
        gone = asyncio.ensure_future(self._until_gone())
        gone.add_done_callback(lambda done: None if done.cancelled() else connection.abort())
        try:
            yield gone
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] == "http.request":
            pass


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""


def _drop(pool: Pool, connection: NodeConnection, _head: Head) -> None:
    connection.abort()
    pool.give_back(connection)

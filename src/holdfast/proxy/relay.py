"""A request as it is to a node and its answer back, piece by piece: no more than a few pieces are in memory.

It goes to another node only where it cannot have been taken yet: nothing of it was sent, or it has no body and changes
nothing. Headers that are about one connection stay on theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from holdfast.frontends.http.exchange import HeaderList, Receive, Response
from holdfast.model.errors import HoldfastError
from holdfast.proxy.groups import Group
from holdfast.proxy.nodes import Node
from holdfast.proxy.upstream import Answer, Head, NodeConnection, NodeFailed

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
# A long poll may take a minute before it answers.
_HEAD_S: Final = 90.0
_SAFE: Final = frozenset(("GET", "HEAD"))


async def asked(group: Group, target: bytes) -> Answer:
    """A small GET, of whichever node answers. Raises `NoGroupAnswers`."""
    for node in group.in_turn():
        try:
            connection = await node.take()
        except NodeFailed:
            continue
        timer = asyncio.get_running_loop().call_later(3.0, connection.abort)
        try:
            answer = await connection.answer(b"GET %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (target, node.host))
        except NodeFailed:
            continue
        finally:
            timer.cancel()
            node.give_back(connection)
        if answer.status != 503:
            return answer
    raise group.silent()


class Relay:
    """One request on its way to a group."""

    def __init__(
        self, group: Group, method: str, target: bytes, headers: Mapping[bytes, bytes], receive: Receive
    ) -> None:
        self._group = group
        self._method = method
        self._target = target
        self._headers = headers
        self._receive = receive
        self._is_chunked = b"transfer-encoding" in headers
        self._has_body = self._is_chunked or headers.get(b"content-length", b"0") != b"0"

    async def response(self) -> Response:
        """The node's answer; its body is a stream. Raises `NoGroupAnswers`."""
        may_repeat = self._method in _SAFE and not self._has_body
        refusal: tuple[Node, NodeConnection, Head] | None = None
        for node in self._group.in_turn():
            try:
                connection = await node.take()
            except NodeFailed:
                continue
            try:
                head = await self._head(node, connection)
            except NodeFailed as error:
                node.give_back(connection)
                node.problem = str(error)
                if may_repeat or not error.sent:
                    continue
                raise self._group.silent() from None
            except BaseException:
                connection.abort()
                node.give_back(connection)
                raise
            if refusal is not None:
                _drop(*refusal)
                refusal = None
            if head.status == 503 and may_repeat:
                refusal = (node, connection, head)
                continue
            return self._relayed(node, connection, head)
        if refusal is not None:
            return self._relayed(*refusal)
        raise self._group.silent()

    async def _head(self, node: Node, connection: NodeConnection) -> Head:
        head = connection.begin(self._request_head(node), is_without_body=self._method == "HEAD")
        if not self._has_body:
            return await _in_time(head)
        sending = asyncio.ensure_future(self._send_body(connection))
        try:
            # A node may refuse a body before it has all of it.
            await asyncio.wait((head, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not head.done():
                sending.result()
            return await _in_time(head)
        finally:
            if not sending.done():
                sending.cancel()
                # What is left of the body goes nowhere: the next request cannot use this connection.
                connection.keeps_alive = False
            await asyncio.gather(sending, return_exceptions=True)

    def _request_head(self, node: Node) -> bytes:
        named = {name.strip().lower() for name in self._headers.get(b"connection", b"").split(b",")}
        fields = [
            b"%b: %b\r\n" % field
            for field in self._headers.items()
            if field[0] not in _HOP_BY_HOP and field[0] not in _OF_BROWSERS and field[0] not in named
        ]
        if self._is_chunked:
            fields.append(b"transfer-encoding: chunked\r\n")
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (
            self._method.encode(),
            self._target,
            node.host,
            b"".join(fields),
        )

    async def _send_body(self, connection: NodeConnection) -> None:
        while True:
            event = await self._receive()
            if event["type"] != "http.request":
                connection.abort()
                raise NodeFailed("the client hung up", sent=True)
            piece = event.get("body", b"")
            if piece:
                await connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)
            if not event.get("more_body", False):
                if self._is_chunked:
                    await connection.write(b"0\r\n\r\n")
                return

    def _relayed(self, node: Node, connection: NodeConnection, head: Head) -> Response:
        headers: HeaderList = [
            field for field in head.headers if field[0] not in _HOP_BY_HOP and field[0] != b"x-content-type-options"
        ]
        if self._method == "HEAD":
            node.give_back(connection)
            return Response(head.status, headers, stream=_nothing())
        return Response(head.status, headers, stream=self._pieces(node, connection))

    async def _pieces(self, node: Node, connection: NodeConnection) -> AsyncGenerator[bytes, None]:
        """The answer's body. It ends when the client leaves; where the node fails it breaks off, and does not end."""
        gone = asyncio.ensure_future(self._until_gone())
        gone.add_done_callback(lambda done: None if done.cancelled() else connection.abort())
        try:
            while (piece := await connection.piece()) is not None:
                yield piece
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError, HoldfastError):
                await gone
            node.give_back(connection)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] == "http.request":
            pass


async def _in_time(head: asyncio.Future[Head]) -> Head:
    try:
        return await asyncio.wait_for(head, _HEAD_S)
    except TimeoutError:
        raise NodeFailed(f"no answer within {_HEAD_S:g} s", sent=True) from None


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""


def _drop(node: Node, connection: NodeConnection, _head: Head) -> None:
    connection.abort()
    node.give_back(connection)

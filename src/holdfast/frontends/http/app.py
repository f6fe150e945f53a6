"""The way of one request through the front end: find the call, check it, run it, send what it answers.

This is a plain ASGI application. A framework's routing and responses took a fifth of what a small
publish costs, and the table that replaces them is the one that the API's description is written from.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from holdfast.frontends.http.errors import error_response
from holdfast.frontends.http.exchange import ClientGone, Receive, Request, Response
from holdfast.frontends.http.origin import OriginRule
from holdfast.frontends.http.params import parse
from holdfast.frontends.http.read import STALE
from holdfast.frontends.http.routing import Route, Router
from holdfast.frontends.http.services import Services
from holdfast.model.errors import CursorNotFound, HoldfastError, Internal, TopicNotFound
from holdfast.model.limits import KIB

Send = Callable[[dict[str, Any]], Awaitable[None]]

# What is written at once: a reader's progress through a long answer is seen piece by piece.
_WRITE_BYTES: Final = 256 * KIB
# What is not more fits into the buffers of a connection.
_SMALL_BYTES: Final = 64 * KIB
_READ_ONLY: Final = frozenset({"GET", "HEAD"})


class App:
    """The ASGI application over one table of routes."""

    def __init__(self, services: Services, routes: Sequence[Route], origin: OriginRule) -> None:
        self._services = services
        self._router = Router(routes)
        self._origin = origin

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan and web sockets are switched off in the server"
        headers = dict(scope["headers"])
        request = Request(headers, (), receive, self._services.budget)
        operation = "none"
        try:
            try:
                route, request.params = self._router.find(scope["method"], scope["raw_path"])
                operation = route.operation
                changes_state = route.changes_state or scope["method"] not in _READ_ONLY
                self._origin.check(headers, changes_state=changes_state)
                request.query = parse(scope["query_string"], route.query)
                response = await self._answer(route, request)
            except HoldfastError as error:
                self._services.broker.stats.errors[error.code] += 1
                response = error_response(error)
            except ClientGone:
                return
            except Exception as error:  # noqa: BLE001 - a bug in one call must not end the connection silently
                response = self._failed(operation, error)
            self._services.answers[operation, response.status] += 1
            held = len(response.body) if len(response.body) > _SMALL_BYTES else 0
            self._services.broker.outgoing.hold(held)
            try:
                await send_response(response, send, scope["method"], expects_continue=b"expect" in headers)
            finally:
                self._services.broker.outgoing.hold(-held)
        finally:
            request.release()

    async def _answer(self, route: Route, request: Request) -> Response:
        """Run the handler. What it does not find may have been made through another node a moment ago."""
        try:
            return await route.handler(self._services, request)
        except (TopicNotFound, CursorNotFound):
            if route.bodies or STALE.of(request.query):
                raise
        await self._services.broker.backend.catch_up_cursors()
        return await route.handler(self._services, request)

    def _failed(self, operation: str, error: Exception) -> Response:
        self._services.log(
            "http_request_failed",
            operation=operation,
            error=repr(error),
            traceback="".join(traceback.format_exception(error)),
        )
        return error_response(Internal("the broker failed to do this; its log says why"))


async def send_response(response: Response, send: Send, method: str, *, expects_continue: bool) -> None:
    headers = response.headers
    if response.status >= 400 and expects_continue:
        # The body that was asked about may never come: the connection cannot be used for another request.
        headers.append((b"connection", b"close"))
    if response.stream is not None:
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if method != "HEAD":
            async with aclosing(response.stream) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    body = response.body
    if response.status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    rest = memoryview(body) if len(body) > _WRITE_BYTES else body
    while len(rest) > _WRITE_BYTES:
        await send({"type": "http.response.body", "body": rest[:_WRITE_BYTES], "more_body": True})
        rest = rest[_WRITE_BYTES:]
    await send({"type": "http.response.body", "body": rest, "more_body": False})

"""The HTTP front end of one broker, put together: its calls, its short way, its description, and where it listens."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple

import msgspec

from holdfast.broker.broker import Broker
from holdfast.frontends.http import push, queue_calls
from holdfast.frontends.http.app import App
from holdfast.frontends.http.connection import Bounds
from holdfast.frontends.http.exchange import BodyBudget
from holdfast.frontends.http.listening import Application, Listening
from holdfast.frontends.http.openapi import document
from holdfast.frontends.http.origin import OriginRule
from holdfast.frontends.http.routes import ROUTES
from holdfast.frontends.http.schema import Info
from holdfast.frontends.http.services import Log, Services
from holdfast.frontends.http.short_way import ShortCall, ShortWay
from holdfast.model.limits import CONNECTIONS_MAX, HTTP_BODY_BYTES_MAX
from holdfast.model.metrics import MetricsSource
from holdfast.model.spill import FileBuffer
from holdfast.transactions.service import Transactions

# So many of the largest bodies may be in memory at once; many more of the usual ones.
LARGEST_BODIES_HELD: Final = 8


def short_calls(services: Services) -> dict[bytes, ShortCall]:
    """The calls that may go the short way, by the first line of their requests."""
    return {
        b"POST /api/v1/push HTTP/1.1\r\n": ShortCall("push", partial(push.begin_push, services)),
        b"POST /append HTTP/1.1\r\n": ShortCall("appendToQueue", partial(queue_calls.begin_append, services)),
        b"POST /read HTTP/1.1\r\n": ShortCall("readFromQueue", partial(queue_calls.begin_read, services)),
    }


class Load(NamedTuple):
    """What the clients of one HTTP front end use right now."""

    connections: int
    waits: int
    tails: int
    body_bytes: int
    untaken_bytes: int


class HttpFrontend:
    """Serves one broker over HTTP, on one address or several, in the caller's event loop."""

    def __init__(
        self,
        broker: Broker,
        *,
        info: Callable[[], Info],
        log: Log,
        metrics_source: MetricsSource = tuple,
        body_bytes_max: int = HTTP_BODY_BYTES_MAX,
        connections_max: int = CONNECTIONS_MAX,
        host_names_allowed: Collection[str] = (),
        bounds: Bounds | None = None,
        file_buffer: Callable[[], FileBuffer] | None = None,
        transactions: Transactions | None = None,
        on_publish: Callable[[str, int], None] | None = None,
    ) -> None:
        budget = BodyBudget(request_bytes_max=body_bytes_max, bytes_max=LARGEST_BODIES_HELD * body_bytes_max)
        self._services = Services(
            broker, info=info, metrics_source=metrics_source, log=log, budget=budget, transactions=transactions
        )
        self._services.file_buffer = file_buffer
        self._services.on_publish = on_publish
        self._listening = Listening(
            self._served,
            log=log,
            bounds=bounds or Bounds(connections_max=connections_max),
            host_names_allowed=host_names_allowed,
            outgoing=broker.outgoing,
        )
        self._services.connections = lambda: self._listening.connections
        self._services.refused_connections = lambda: self._listening.refused_connections

    def _served(self, origin: OriginRule) -> tuple[Application, ShortWay]:
        app = App(self._services, ROUTES, origin)
        return app, ShortWay(self._services, short_calls(self._services), origin)

    @property
    def load(self) -> Load:
        return Load(
            connections=self._listening.connections,
            waits=self._services.waits,
            tails=self._services.tails,
            body_bytes=self._services.budget.bytes_used,
            untaken_bytes=self._listening.untaken_bytes,
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, on one more address; the answer has the port that was really taken. Raises `OSError`."""
        self._services.description = msgspec.json.encode(document(ROUTES))
        return await self._listening.start(host, port)

    async def stop(self, drain_s: float) -> None:
        """Take nothing new, end polls and streams, let publishes finish for `drain_s`, then cut what is left."""
        self._services.stop_waits()
        await self._listening.stop(drain_s)

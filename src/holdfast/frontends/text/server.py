"""Listens for text clients, bounds their number, and sees them off."""

from __future__ import annotations

import asyncio

from holdfast.broker.broker import Broker
from holdfast.broker.intake import ReplicaIntake
from holdfast.frontends.text.connection import TextConnection
from holdfast.frontends.text.half_lines import HalfLines
from holdfast.frontends.text.line_cache import LineCache
from holdfast.model.limits import CONNECTIONS_MAX, TEXT_HALF_LINE_TIMEOUT_S, TEXT_HALF_LINES_BYTES_MAX
from holdfast.wire.text import Dialect

_BACKLOG = 4096
_SWEEP_INTERVAL_S = 1.0
_SETTLE_POLL_S = 0.01


class TextFrontend:
    """The text front end of one broker."""

    def __init__(
        self,
        broker: Broker,
        dialect: Dialect,
        *,
        connections_max: int = CONNECTIONS_MAX,
        half_line_timeout_s: float = TEXT_HALF_LINE_TIMEOUT_S,
        half_lines_bytes_max: int = TEXT_HALF_LINES_BYTES_MAX,
        intake: ReplicaIntake | None = None,
    ) -> None:
        self._broker = broker
        self._dialect = dialect
        self._connections_max = connections_max
        self._half_line_timeout_s = half_line_timeout_s
        self._intake = intake
        self._connections: set[TextConnection] = set()
        self._half_lines = HalfLines(half_lines_bytes_max)
        # Each of a plain pair makes its own outputs: what they have in common is the id of the message.
        self._cache = LineCache(
            dialect, is_epoch_told=broker.backend.delivers_where_led, is_source_told=intake is not None
        )
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def waiting_replies(self) -> int:
        """Answers that wait for the store, over all connections."""
        return sum(connection.waiting_replies for connection in self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address that was really taken. Raises `OSError` if it is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port, backlog=_BACKLOG)
        self._sweeper = loop.create_task(self._sweep())
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def stop(self, drain_s: float) -> None:
        """Take no new client, answer what was received, then close every connection."""
        if self._server is None:
            return
        self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_s
        while loop.time() < deadline and not all(connection.is_settled for connection in self._connections):
            await asyncio.sleep(_SETTLE_POLL_S)
        for connection in list(self._connections):
            connection.close()
        while loop.time() < deadline and self._connections:
            await asyncio.sleep(_SETTLE_POLL_S)
        for connection in list(self._connections):
            connection.abort()
        await self._server.wait_closed()

    def _connection(self) -> asyncio.Protocol:
        return TextConnection(
            self._broker,
            self._dialect,
            self._cache,
            self._connections,
            self._connections_max,
            self._half_lines,
            self._intake,
        )

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            self._sweep_at(loop.time())

    def _sweep_at(self, now_s: float) -> None:
        is_short = self._broker.outgoing.is_short
        for connection in list(self._connections):
            connection.close_if_half_line_since(now_s - self._half_line_timeout_s)
            if is_short:
                connection.abort_if_stalled(now_s)

"""Where HTTP is listened for: sockets, connections, and how they end.

uvicorn's protocol classes run here without uvicorn's `Server`: that one installs signal handlers, wakes
ten times a second to look whether it should stop, and takes three tenths of a second to do so. The
broker has one event loop and one place that handles signals, and this is neither.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from holdfast.broker.outgoing import Outgoing
from holdfast.frontends.http.connection import Bounds, Connection
from holdfast.frontends.http.origin import OriginRule
from holdfast.frontends.http.short_way import ShortWay

# A reconnecting herd is as large as the clients are many; the kernel's own bound applies as well.
BACKLOG: Final = 4096
# Longer than most clients keep an idle connection: the side that sends next should be the one to close.
KEEP_ALIVE_S: Final = 75

Log = Callable[..., None]
Application = Callable[..., Any]


class Listening:
    """Serves one application, on one address or several, in the caller's event loop."""

    def __init__(
        self,
        serve: Callable[[OriginRule], tuple[Application, ShortWay]],
        *,
        log: Log,
        bounds: Bounds,
        host_names_allowed: Collection[str] = (),
        outgoing: Outgoing | None = None,
    ) -> None:
        self._serve = serve
        self._outgoing = outgoing
        self._bounds = bounds
        self._host_names_allowed = host_names_allowed
        self._logger = _logger_to(log)
        self._state = ServerState()
        # In every answer, those included that uvicorn writes: nobody may guess that JSON is a page.
        self._state.default_headers = [(b"x-content-type-options", b"nosniff")]
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._no_connections = asyncio.Event()
        self._is_stopping = False
        self.refused_connections = 0

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    @property
    def untaken_bytes(self) -> int:
        """What was written to connections and is still in this process."""
        return sum(connection.transport.get_write_buffer_size() for connection in self._connections())

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, on one more address; the answer has the port that was really taken. Raises `OSError`."""
        listener = await _bound(host, port)
        address: tuple[str, int] = listener.getsockname()[:2]
        app, short_way = self._serve(OriginRule(address[0], self._host_names_allowed))
        config = Config(
            cast(Any, app),
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()

        def connection() -> Connection:
            return Connection(
                config,
                self._state,
                bounds=self._bounds,
                short_way=short_way,
                logger=self._logger,
                on_refused=self._refused,
                on_lost=self._lost,
                outgoing=self._outgoing,
            )

        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(connection, sock=listener, backlog=BACKLOG))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._bounds.sweep_interval_s, self._sweep)
        return address

    async def stop(self, drain_s: float) -> None:
        """Take nothing new, let what is under way finish for `drain_s`, then cut what is left."""
        if not self._servers:
            return
        self._is_stopping = True
        deadline_s = asyncio.get_running_loop().time() + drain_s
        for server in self._servers:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._connections():
            connection.shutdown()
        # An answer that is done closes its connection; so when none is left, nothing is.
        self._lost()
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._no_connections.wait()
        except TimeoutError:
            pass
        for connection in self._connections():
            connection.transport.abort()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connections(self) -> list[Connection]:
        return cast(list[Connection], list(self._state.connections))

    def _refused(self) -> None:
        self.refused_connections += 1

    def _lost(self) -> None:
        if self._is_stopping and not self._state.connections:
            self._no_connections.set()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in self._connections():
            connection.sweep(now_s)
        self._sweeper = loop.call_later(self._bounds.sweep_interval_s, self._sweep)


async def _bound(host: str, port: int) -> socket.socket:
    """A socket on that address, or an `OSError` that says which address it was."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A restarted broker must get its port back while old connections are still in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    listener.setblocking(False)
    return listener


class _Forward(logging.Handler):
    """What uvicorn has to say goes where this front end says things."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, asyncio.CancelledError):
            self._log("http_connection_failed", message=record.getMessage().strip(), error=repr(error))


def _logger_to(log: Log) -> logging.Logger:
    """A logger of its own, outside the tree of loggers, so that nothing is printed behind our back."""
    logger = logging.Logger("holdfast.http", logging.ERROR)
    logger.addHandler(_Forward(log))
    return logger

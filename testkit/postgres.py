"""Real PostgreSQL servers for tests: two for each test process, one of them to break, with a database for each test."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import itertools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.server import EmbeddedServer
from holdfast.model.ids import TimestampMs

T = TypeVar("T")
TIMEOUT_S = 5.0


def on_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


class Server:
    """A server that a test may kill, pause and start again; it does not come back by itself."""

    def __init__(self, path: Path, *settings: str) -> None:
        self.path = path
        self._server = EmbeddedServer(path, "max_connections=60", *settings, comes_back=False)
        self._runs = self._has_template = False
        # The database whose address is told; the server's own one without a name.
        self.database: str | None = None
        self.was_killed = False
        self.url = ""

    async def start(self) -> str:
        if not self.path.exists():
            subprocess.run(["cp", "-a", _made(), self.path], check=True)  # noqa: ASYNC221 - a tenth of a second
        self.url = await self._server.start()
        self._runs = True
        if self.database is not None:
            self.url = on_database(self.url, self.database)
        return self.url

    async def stop(self) -> None:
        await self._server.stop()
        self._runs = False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self._server.kill(number)
        self.was_killed = True
        self._runs = self._runs and number != signal.SIGKILL

    async def begin(self, database: str) -> None:
        """Run, with a new database of that name, which has the schema."""
        self.database, self.was_killed = None, False
        if not self._runs:
            await self.start()
            if not self._has_template:
                await _make_template(self.url)
                self._has_template = True
        self.database = database
        await _execute(self.url, f"CREATE DATABASE {database} TEMPLATE template_of_tests STRATEGY FILE_COPY")
        self.url = on_database(self.url, database)

    def end(self) -> None:
        """Leave nothing to the next test: no process that was meddled with, and no settings."""
        changes = self.path / "postgresql.auto.conf"
        if self.was_killed or any(line[:1] not in ("#", "") for line in changes.read_text().splitlines()):
            self.kill()
            changes.write_text("")


@cache
def _made() -> Path:
    """An empty database directory: a copy is made faster than a new one."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-tests-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    EmbeddedServer(path / "postgres")._make_ready()
    return path / "postgres"


@asynccontextmanager
async def breakable_server() -> AsyncIterator[Server]:
    """The server of this process that tests may kill and pause, with a database of the test's own.

    A test that changes its files needs a `Server` of its own.
    """
    server = _breakable()
    await server.begin(f"t{next(_numbers)}")
    try:
        yield server
    finally:
        server.end()


_numbers = itertools.count()


@cache
def _breakable() -> Server:
    """Its disk is believed: what tests take away is processes, not power."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-tests-"))
    server = Server(path / "postgres", "fsync=off", "autovacuum=off")

    def end() -> None:
        server.kill()
        shutil.rmtree(path, ignore_errors=True)

    atexit.register(end)
    return server


@cache
def _shared() -> str:
    """Started by the first test of a process that wants it. It may forget: nobody takes its power away."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-tests-"))
    server = Server(path / "postgres", "fsync=off", "full_page_writes=off", "autovacuum=off")
    url = _run(server.start())

    def end() -> None:
        server.kill()
        shutil.rmtree(path, ignore_errors=True)

    atexit.register(end)
    _run(_make_template(url))
    return url


async def _make_template(url: str) -> None:
    """A database that has the schema already: a copy is made faster than the schema."""
    await _execute(url, "CREATE DATABASE template_of_tests")
    backend = PostgresBackend(
        on_database(url, "template_of_tests"), node="n1", now_ms=lambda: TimestampMs(0), timeout_s=TIMEOUT_S
    )
    await backend.start()
    await backend.stop()


def database_for(path: Path, *, is_empty: bool = False) -> str:
    """The address of a database that belongs to a path: the same one each time."""
    name = "t" + hashlib.sha256(str(path).encode()).hexdigest()[:20]
    url = _shared()
    template = "template1" if is_empty else "template_of_tests"
    _run(_create(url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY"))
    return on_database(url, name)


async def _create(url: str, statement: str) -> None:
    with contextlib.suppress(asyncpg.DuplicateDatabaseError):  # it is opened again
        await _execute(url, statement)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """To its end, also while a test's own loop is running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()

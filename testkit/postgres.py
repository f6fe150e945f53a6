"""Real PostgreSQL servers for tests: one for each test process, with a database for each test; others to break."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
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
        self.url = ""

    async def start(self) -> str:
        if not self.path.exists():
            subprocess.run(["cp", "-a", _made(), self.path], check=True)  # noqa: ASYNC221 - a tenth of a second
        self.url = await self._server.start()
        return self.url

    async def stop(self) -> None:
        await self._server.stop()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self._server.kill(number)


@cache
def _made() -> Path:
    """An empty database directory: a copy is made faster than a new one."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-tests-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    EmbeddedServer(path / "postgres")._make_ready()
    return path / "postgres"


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

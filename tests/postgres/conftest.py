from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio
from testkit.postgres import Server, breakable_server, database_for

from tests.postgres.stores import Opened, open_store

Open = Callable[..., Awaitable[Opened]]


@pytest_asyncio.fixture
async def url(tmp_path: Path) -> str:
    """A database of its own, with the schema in it."""
    return database_for(tmp_path)


@pytest_asyncio.fixture
async def opened(url: str) -> AsyncIterator[Open]:
    """Brokers over the test's database, or another one; all are stopped in the end."""
    running: list[Opened] = []

    async def open_one(node: str = "n1", address: str = url, **settings: Any) -> Opened:
        made = await open_store(address, node, **settings)
        running.append(made)
        return made

    yield open_one
    for made in running:
        await made.backend.stop()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    """One that may be killed, paused and started again."""
    async with breakable_server() as made:
        yield made


@pytest_asyncio.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[Server]:
    """One whose files a test may change as well."""
    made = Server(tmp_path / "postgres", "fsync=off", "autovacuum=off")
    await made.start()
    yield made
    made.kill()

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest_asyncio
from testkit.postgres import Server, database_for

from tests.spill.stores import Spilling, open_spilling

Open = Callable[..., Awaitable[Spilling]]


@pytest_asyncio.fixture
async def url(tmp_path: Path) -> str:
    """A database of its own, with the schema in it."""
    return database_for(tmp_path)


@pytest_asyncio.fixture
async def opened(url: str, tmp_path: Path) -> AsyncIterator[Open]:
    """Brokers with a spill over the test's database, or another one; all are stopped in the end."""
    running: list[Spilling] = []

    async def open_one(address: str = url, directory: Path = tmp_path / "spill", **settings: object) -> Spilling:
        made = await open_spilling(address, directory, **settings)
        running.append(made)
        return made

    yield open_one
    for made in running:
        await made.stop()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """One that may be broken. Its disk is believed: what these tests take away is processes, not power."""
    made = Server(tmp_path / "postgres", "fsync=off", "autovacuum=off")
    await made.start()
    yield made
    made.kill()

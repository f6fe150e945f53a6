from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.postgres.conftest import server, url
from tests.spill.stores import Spilling, open_spilling

__all__ = ["server", "url"]

Open = Callable[..., Awaitable[Spilling]]


@pytest_asyncio.fixture
async def opened(url: str, tmp_path: Path) -> AsyncIterator[Open]:
    """Brokers with a spill over the test's database, or another one; all are stopped in the end."""
    running: list[Spilling] = []

    async def open_one(address: str = url, directory: Path = tmp_path / "spill", **settings: Any) -> Spilling:
        made = await open_spilling(address, directory, **settings)
        running.append(made)
        return made

    yield open_one
    for made in running:
        await made.stop()

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.transactions.desk import Desk, desk_over


@pytest_asyncio.fixture(params=["alone", "alone-spill", "postgres", "postgres-spill"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    """A broker over an empty store of each kind; clusters have tests of their own."""
    async with desk_over(request.param, tmp_path) as made:
        yield made


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_over("alone", tmp_path) as made:
        yield made


@pytest_asyncio.fixture(params=["alone", "postgres"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_over(request.param, tmp_path) as made:
        yield made

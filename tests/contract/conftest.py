from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.stores import BACKENDS, Store


@pytest_asyncio.fixture(params=list(BACKENDS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An open, empty backend of each kind."""
    made = Store(BACKENDS[request.param], tmp_path / "data")
    await made.open()
    yield made
    await made.stop()

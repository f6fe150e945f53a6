"""One contract, every store: what `broker/backend.py` promises, checked the same way wherever messages live."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from testkit.inprocess import Store

from tests.contract.stores import ROWS


@pytest_asyncio.fixture(params=list(ROWS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An open, empty store of each kind."""
    made = ROWS[request.param](tmp_path / "data")
    await made.open()
    yield made
    await made.stop()

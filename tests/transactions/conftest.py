from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.stores import BACKENDS, Store
from tests.transactions.desk import Desk


@pytest_asyncio.fixture(params=["alone-group", "alone-none", "alone-spill", "postgres", "postgres-spill"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    """A broker over an empty store of each kind; clusters have tests of their own."""
    made = Desk(Store(BACKENDS[request.param], tmp_path / "data"))
    await made.store.open()
    made.open()
    yield made
    await made.close()
    await made.store.stop()

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from testkit.loops import SUPPORTED, LoopFactories
from testkit.serving import Serving, serving


def pytest_asyncio_loop_factories() -> LoopFactories:
    return SUPPORTED


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Serving]:
    """A broker of the test's own, with the default settings."""
    async with serving(tmp_path) as running:
        yield running

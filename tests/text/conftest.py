from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest_asyncio
import uvloop
from testkit.serving import Serving, serving


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that production takes; the other one, which is supported too, with HOLDFAST_TEST_LOOP=asyncio."""
    is_plain = os.environ.get("HOLDFAST_TEST_LOOP") == "asyncio"
    return {"asyncio": asyncio.new_event_loop} if is_plain else {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Serving]:
    """A broker of the test's own, with the default settings."""
    async with serving(tmp_path) as running:
        yield running

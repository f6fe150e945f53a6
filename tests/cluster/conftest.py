from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For links, the loop that production takes; with HOLDFAST_TEST_LOOP=asyncio the other one, which is supported too.

    The two differ in when they write and in what they copy.
    """
    is_plain = not item.path.name.startswith("test_links") or os.environ.get("HOLDFAST_TEST_LOOP") == "asyncio"
    return {"asyncio": asyncio.new_event_loop} if is_plain else {"uvloop": uvloop.new_event_loop}

from __future__ import annotations

import pytest
from testkit.loops import ASYNCIO, SUPPORTED, LoopFactories


def pytest_asyncio_loop_factories(item: pytest.Item) -> LoopFactories:
    return SUPPORTED if item.path.name.startswith("test_links") else ASYNCIO

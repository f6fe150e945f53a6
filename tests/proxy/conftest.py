from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from testkit.processes import cluster

from tests.proxy.proxies import Brokers


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[[str, int], Brokers]]:
    """Makes groups of brokers, each a process of its own."""
    with ExitStack() as stack:

        def make(name: str, count: int) -> Brokers:
            names = [f"{name}{number}" for number in range(1, count + 1)]
            return Brokers(stack.enter_context(cluster(tmp_path, names)))

        yield make

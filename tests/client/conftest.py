from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from client_servers import BrokerProcess

_numbers = count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker for tests that leave it as it is; each has a topic of its own."""
    yield from _running(tmp_path_factory.mktemp("broker"))


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker that a test may kill and start again."""
    yield from _running(tmp_path)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{next(_numbers)}"


def _running(directory: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(directory)
    try:
        process.start()
        yield process
    finally:
        process.kill()

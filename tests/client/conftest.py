from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from testkit.processes import BrokerProcess

from holdfast.client import Client, connect
from holdfast.testing.ports import free_port

_numbers = count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker for tests that leave it as it is; each has a topic of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture
async def broker(shared_broker: BrokerProcess) -> AsyncIterator[Client]:
    """A client of the broker that others use, too."""
    async with connect(shared_broker.url) as client:
        yield client


@pytest.fixture(scope="session")
def mortal_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mortal") / "data", http_port=free_port()) as running:
        yield running


@pytest.fixture
def broker_process(mortal_broker: BrokerProcess) -> BrokerProcess:
    """A running broker that a test may kill and start again; each has a topic of its own."""
    return mortal_broker if mortal_broker.is_running else mortal_broker.start()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{next(_numbers)}"

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from testkit.processes import BrokerProcess

from holdfast.client import Client, connect
from tests.backup.brokers import address


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shared") / "served") as running:
        yield running


@pytest_asyncio.fixture
async def broker(process: BrokerProcess) -> AsyncIterator[Client]:
    """A broker that tests share, without the topics of the test before."""
    async with connect(address(process)) as client:
        for topic in await client.topics():
            await client.delete_topic(topic.topic)
        yield client

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess

_numbers = count()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Where a broker of the test's own keeps its data."""
    return tmp_path / "data"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that leave it as it is; each has a topic of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", "--message-bytes-max", "10000") as shared:
        yield shared
        assert shared.is_running and "Traceback" not in shared.log(), shared.log()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{next(_numbers)}"

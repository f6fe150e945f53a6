from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests that need nothing of it but to be there; each uses topics of its own."""
    with Broker(tmp_path_factory.mktemp("broker")) as shared:
        yield shared


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test may stop, kill and start again."""
    with Broker(tmp_path) as own:
        yield own

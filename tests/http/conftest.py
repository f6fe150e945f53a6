from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.http_server import Server, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A broker of its own, which must not have had to log a failure."""
    with serving(tmp_path / "data") as running:
        yield running
    assert running.logged == []


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One broker for the tests of a module that leave it as it is, or use topics of their own."""
    with serving(tmp_path_factory.mktemp("shared")) as running:
        yield running
    assert running.logged == []

"""One broker for all tests of a process that need no broker of their own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

import holdfast
from holdfast.testing import LocalCluster

_numbers = count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """A broker that all tests share; each has topics of its own."""
    with LocalCluster(nodes=1) as started:
        yield started


@pytest.fixture(scope="session")
def servers(cluster: LocalCluster) -> str:
    return cluster.url.removeprefix("holdfast://")


@pytest.fixture(scope="session")
def broker(cluster: LocalCluster) -> Iterator[holdfast.BlockingClient]:
    with holdfast.connect_blocking(cluster.url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"

"""How a run with several processes shares the tests out, and what it spares the processes it starts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import hypothesis
import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

# Hundreds of brokers are started here. Where the environment forbids compiled files each of them would compile the
# whole package again, which takes longer than all the rest of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where SIGINT is ignored, as for what a script starts in the background, what is started here would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine stalls when it likes, in a test as well as between two draws.
hypothesis.settings.register_profile("shared", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("shared")

# The tests of each of these share something that takes longer to make than most of them to run: a Spark session, a
# Spark cluster, a cluster, a browser, or what demos wrote down.
ONE_PROCESS: Final = (
    "tests/spark/session/",
    "tests/spark/test_cluster.py",
    "tests/spark/test_demo_audit.py",
    "tests/cli/test_cluster.py",
    "tests/cli/test_demo_membership.py",
    "tests/http/test_http_cluster.py",
    "tests/http/test_http_docs_page.py",
    "tests/http/test_http_minority.py",
)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Each test goes to whichever process is free, but for those that share something dear: one gets all of those."""

    def _split_scope(self, nodeid: str) -> str:
        return next((shared for shared in ONE_PROCESS if nodeid.startswith(shared)), nodeid)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs in the test's own process sends log lines to its standard error, which is closed soon."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    if before is not None:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, or all others wait for it in the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(ONE_PROCESS))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "load" else None

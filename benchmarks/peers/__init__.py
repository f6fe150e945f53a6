"""The servers that are measured: how each is found, configured, started and ended."""

import time
from collections.abc import Callable
from typing import TypeVar

from benchmarks.load.wire import LoadFailed
from benchmarks.process import ServerFailed

Found = TypeVar("Found")

POLL_S = 0.02


def wait_for(look: Callable[[], Found | None], what: str, timeout_s: float) -> Found:
    """Look until there is something, also past refusals of nodes that are not ready yet."""
    deadline = time.monotonic() + timeout_s
    problem = ""
    while time.monotonic() < deadline:
        try:
            found = look()
        except (LoadFailed, OSError) as error:
            found, problem = None, f": {error}"
        if found is not None:
            return found
        time.sleep(POLL_S)
    raise ServerFailed(f"waited {timeout_s:.0f} s for {what}{problem}")

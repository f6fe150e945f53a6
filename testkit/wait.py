"""Waiting for a condition, never for time: `until` for asyncio, `wait_until` for threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

# A condition that holds after this long on no machine, however busy, never will.
PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.01


async def until(condition: Callable[[], object], what: str = "a condition", timeout_s: float = PATIENCE_S) -> None:
    """Poll until the condition, or what it awaits, is true. `what` is said when it never is."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(_POLL_S)


def wait_until(condition: Callable[[], T], what: str = "a condition", timeout_s: float = PATIENCE_S) -> T:
    """As `until`, for a thread that may block; returns what the condition returned."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)
    return found


async def until_quiet(measure: Callable[[], object], quiet_s: float = 0.3) -> None:
    """Poll until a number has not changed for a while."""
    last, since_s = measure(), time.monotonic()
    deadline_s = since_s + PATIENCE_S
    while time.monotonic() - since_s < quiet_s:
        assert time.monotonic() < deadline_s, f"still changing: {last}"
        await asyncio.sleep(_POLL_S)
        if (now := measure()) != last:
            last, since_s = now, time.monotonic()

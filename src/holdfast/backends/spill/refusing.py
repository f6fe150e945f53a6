"""Topics that the store refuses, found out once for all of their messages and not once for each.

What a store says no to is no trouble of the moment: a topic that may not be made, or a name that is none. It is asked a
few times, soon one after the other, since a topic may be deleted and made anew in that very moment; then the answer
holds for a while, and what was spilled for the topic is set aside without keeping anybody else waiting.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from holdfast.model.errors import CallerError, TooManyTopics, Unavailable
from holdfast.model.ids import TopicName

log = structlog.get_logger("holdfast.spill")

TRIES_MAX: Final = 3
PAUSE_S: Final = 0.05
_REMEMBERED_MAX: Final = 1_000
_CODE: Final = re.compile(r"\[([a-z_]+)\]\Z")


class NoRoom(Unavailable):
    """The store is well and has no room for a topic. That is no verdict on the messages, which all wait for it."""


class Refusals:
    """`holds_s` is how long a refusal is believed before the store is asked again.

    `waits_for_room`: whether a store that has no room for a topic is waited for.
    """

    def __init__(
        self, ensure_topic: Callable[[TopicName], Awaitable[object]], holds_s: float, *, waits_for_room: bool
    ) -> None:
        self._ensure_topic = ensure_topic
        self._holds_s = holds_s
        self._waits_for_room = waits_for_room
        self._refused: dict[str, tuple[float, CallerError]] = {}

    async def made(self, queue: str) -> CallerError | None:
        """Have a topic made; why that cannot be. Raises `Unavailable`, `NoRoom` among it."""
        until_s, error = self._refused.get(queue, (float("-inf"), None))
        if time.monotonic() < until_s:
            return error
        for tries in range(1, TRIES_MAX + 1):
            try:
                await self._ensure_topic(TopicName(queue))
            except CallerError as refusal:
                if self._waits_for_room and isinstance(refusal, TooManyTopics):
                    # They may not be overtaken either.
                    raise NoRoom(f"topic {queue} cannot be made: {refusal.message}") from refusal
                error = refusal
            else:
                self._refused.pop(queue, None)
                return None
            if tries < TRIES_MAX:
                await asyncio.sleep(PAUSE_S)
        assert error is not None
        if len(self._refused) >= _REMEMBERED_MAX:
            self._refused.clear()
        self._refused[queue] = time.monotonic() + self._holds_s, error
        log.warning("spill_topic_refused", topic=queue, problem=error.message, hint="its messages go to failed/")
        return error


def in_words(error: CallerError) -> str:
    """Why a line is in `failed`."""
    return f"{error.message} [{error.code}]"


def code_in(reason: str) -> str | None:
    """The code in such words; none where it was not the store that refused the line."""
    found = _CODE.search(reason)
    return None if found is None else found[1]

"""What a log says of a spill that is emptied: that it begins, how far it is once a second, and that it is over.

Files come and go many times a second; a line for each of them would bury everything else.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

log = structlog.get_logger("holdfast.spill")

_PROGRESS_S: Final = 1.0
# Another broker may keep older messages for a moment in every outage; for longer it is worth a word, and again later.
_PATIENCE_S: Final = 10.0
_REMINDER_S: Final = 60.0


class Teller:
    """One catching up at a time."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._told_s = 0.0
        self._files = 0
        self._events = 0
        self._held_up_s: float | None = None
        self._remind_s = 0.0

    def began(self, *, files: int, pending: int) -> None:
        """A file is begun: said of the first one."""
        if self._began_s is None:
            self._began_s = self._told_s = time.monotonic()
            self._files = self._events = 0
            log.info("spill_replaying", files=files, pending=pending)

    def stored(self, events: int, *, files: int, pending: int) -> None:
        self._events += events
        self._held_up_s = None
        if time.monotonic() - self._told_s >= _PROGRESS_S:
            self._told_s = time.monotonic()
            log.info("spill_progress", stored=self._events, files=files, pending=pending)

    def file_done(self) -> None:
        self._files += 1

    def complete(self) -> None:
        """Nothing waits any more."""
        if self._began_s is not None:
            seconds = round(time.monotonic() - self._began_s, 3)
            log.info("spill_replay_complete", files=self._files, events=self._events, seconds=seconds)
            self._began_s = None

    def is_worth_a_word(self) -> bool:
        """Of not being allowed to go on: whether that has lasted so long that somebody should hear of it."""
        now_s = time.monotonic()
        if self._held_up_s is None:
            self._held_up_s = now_s
            self._remind_s = now_s + _PATIENCE_S
        if now_s < self._remind_s:
            return False
        self._remind_s = now_s + _REMINDER_S
        return True

    def held_up(self, by: str) -> None:
        assert self._held_up_s is not None
        log.warning(
            "spill_held_up",
            by=by,
            seconds=round(time.monotonic() - self._held_up_s),
            hint="it keeps older messages and does not store them: look at its log and restart it, or stop it: five "
            "seconds after it is gone this one goes on, and `holdfast spill replay DIRECTORY` stores what it kept",
        )

"""What is kept and cannot be read again: that may pass, and is tried on. Others wait for it, but not for ever."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import structlog

from holdfast.backends.spill.replay import Replayer

log = structlog.get_logger("holdfast.spill")

# So long other brokers wait for what a disk does not give.
_PATIENCE_S: Final = 10.0


class Stuck:
    """Of one spill: since when its disk gives nothing."""

    def __init__(self, directory: Path, replayer: Replayer) -> None:
        self.since_s: float | None = None
        self._directory = directory
        self._replayer = replayer

    def is_over(self) -> None:
        """Everything that was to be read could be."""
        self.since_s = None
        if self._replayer.is_stuck:
            self._replayer.is_stuck = False
            self._replayer.announce()

    def goes_on(self, error: OSError) -> None:
        if self.since_s is None:
            self.since_s = time.monotonic()
            log.error("spill_replay_failed", problem=str(error), hint="it is tried again all the time")
        elif not self._replayer.is_stuck and time.monotonic() - self.since_s > _PATIENCE_S:
            log.critical(
                "spill_stuck",
                directory=str(self._directory),
                problem=str(error),
                hint="other brokers go on without what is kept here; mend the disk, or stop this broker, copy the "
                "files to another disk and store them with `holdfast spill replay DIRECTORY`",
            )
            self.let_others_go_on()

    def let_others_go_on(self) -> None:
        self._replayer.is_stuck = True
        self._replayer.announce()

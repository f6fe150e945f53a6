"""Whether the store is away, on trial or well.

A store that does not take a push, or not in time, is away: nothing is tried until it answers a probe. Then it is on
trial: topics may be made and what waits is stored again, but pushes are still kept. It is well, and gets pushes, once
something was stored, or there is nothing to try it with. A store that answers probes and refuses messages is thus tried
now and then, less and less often, without a word and at no cost to those who push.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from holdfast.backends.spill.deadline import AdaptiveDeadline
from holdfast.backends.spill.ports import Target
from holdfast.backends.spill.stats import SpillStats

log = structlog.get_logger("holdfast.spill")

# So often it is said how much waits, while the store is away.
_GROWTH_S: Final = 10.0
# So long pushes are kept where what waits may not be stored yet, because another broker keeps older messages.
_TRIAL_S: Final = 10.0


class Health:
    """`pending` says how many messages wait, `on_away` is called when a store that was well no longer is.

    After trials that failed it is looked for again after `pause_s`, then after twice that and so on to `pause_s_max`.
    """

    def __init__(
        self,
        target: Target,
        deadline: AdaptiveDeadline,
        stats: SpillStats,
        *,
        pending: Callable[[], int],
        on_away: Callable[[], None],
        pause_s: float,
        pause_s_max: float,
    ) -> None:
        self.is_well = True
        self.is_reached = True
        # Whether it answered when it was looked for last, and did not take what waits.
        self.is_refusing = False
        self.reason = ""
        self._target = target
        self._deadline = deadline
        self._stats = stats
        self._pending = pending
        self._on_away = on_away
        self._pause_s_first = self._pause_s = pause_s
        self._pause_s_max = pause_s_max
        self._not_before_s = self._reached_s = float("-inf")
        self._told_growth_s = float("-inf")

    def fell_back(self, reason: str) -> None:
        """The store is in trouble."""
        if self.is_well:
            self.is_well = self.is_reached = self.is_refusing = False
            self._stats.outages += 1
            log.warning("spill_began", problem=reason, hint="pushes are kept on this broker's disk until it is back")
            self._told_growth_s = time.monotonic()
            self._on_away()
        elif reason != self.reason:
            log.info("spill_goes_on", problem=reason, pending=self._pending())
        if self.is_reached:
            self.is_reached, self.is_refusing = False, True
            self._not_before_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, max(self._pause_s_first, self._pause_s_max))
        self.reason = reason

    async def look(self) -> None:
        """Whether the store takes writes again, as fast as pushes need it. Raises `Unavailable`."""
        if self.is_reached or time.monotonic() < self._not_before_s:
            return
        await self._target.reach()
        try:
            async with asyncio.timeout(self._deadline.seconds):
                await self._target.probe()
        except TimeoutError:
            self._deadline.missed()
            self.is_refusing = False
            return
        self.is_reached = True
        self._reached_s = time.monotonic()

    def recovered(self, *, is_proven: bool = True) -> None:
        """Something was stored, or nothing is left to store. Where it was not reached, that is an old story.

        Where nothing may be stored yet, nothing is proven; then it is believed after a while.
        """
        if self.is_reached and not self.is_well and (is_proven or time.monotonic() - self._reached_s > _TRIAL_S):
            self.is_well = True
            self._pause_s = self._pause_s_first
            log.info("spill_store_recovered", pending=self._pending())

    def tell_growth(self, free_bytes: int) -> None:
        """Now and then while the store is away; files come too often for a line each."""
        if not self.is_well and time.monotonic() - self._told_growth_s > _GROWTH_S:
            self._told_growth_s = time.monotonic()
            log.info("spill_grows", pending=self._pending(), free_bytes=free_bytes, problem=self.reason)

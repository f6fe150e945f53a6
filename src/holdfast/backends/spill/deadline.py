"""How long a push may take before it is given to the spill: learnt from how long pushes take.

What was given up says nothing of how long it would have taken. So after each that was, the next ones have twice the
time, as much as they may have at the most: a store that became slower for good is used again. As pushes are answered,
and what they took is learnt, that goes back little by little.
"""

from __future__ import annotations

from typing import Final

_SMOOTHING: Final = 1 / 8
_SMOOTHING_OF_SPREAD: Final = 1 / 4
_SPREADS: Final = 4
# Publishers in a burst wait for the transactions before theirs.
_SLACK: Final = 2.0


class AdaptiveDeadline:
    """Smoothed time and smoothed spread, as TCP finds its retransmission timeout; bounded on both sides."""

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        assert 0 < floor_s <= ceiling_s
        self.ceiling_s = ceiling_s
        self._floor_s = floor_s
        self._mean_s: float | None = None
        self._spread_s = 0.0
        # How many times longer than was learnt, since somebody waited that long in vain.
        self._longer = 1.0

    @property
    def seconds(self) -> float:
        if self._mean_s is None:
            return self.ceiling_s
        learnt_s = max(self._floor_s, _SLACK * (self._mean_s + _SPREADS * self._spread_s))
        return min(self.ceiling_s, self._longer * learnt_s)

    def missed(self) -> None:
        """Somebody waited this long in vain."""
        if self.seconds < self.ceiling_s:
            self._longer *= 2

    def note(self, seconds: float) -> None:
        """A push took this long."""
        self._longer = max(1.0, (1 - _SMOOTHING) * self._longer)
        if self._mean_s is None:
            self._mean_s, self._spread_s = seconds, seconds / 2
            return
        self._spread_s += _SMOOTHING_OF_SPREAD * (abs(seconds - self._mean_s) - self._spread_s)
        self._mean_s += _SMOOTHING * (seconds - self._mean_s)

"""How fast nodes that are far behind are fed while others publish.

A node that was away could be sent its gigabytes as fast as its disk takes them. On a busy machine that time is taken
from the publishers: measured with three nodes on two cores, they kept 56 to 64 % of their rate, and all of it at this
pace. So while there is live traffic, what is read from files for such nodes is limited to a multiple of it: more than
it, so that the gap closes whatever the publishers do, and not so much that they feel it. Where nobody publishes, only
the window of what is under way counts.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.limits import MIB

# For every byte of live traffic, so many from files.
_TIMES_LIVE: Final = 3
# Never less than this in a tick of 50 ms (63 MB/s): a node that is let in again is worth a little delay.
_TICK_BYTES_MIN: Final = 3 * MIB
# Less than this in a tick is nobody who could be disturbed.
_QUIET_TICK_BYTES: Final = 64 * 1024
# How much the last tick counts: a publisher that pauses for a few of them is still there.
_NEWS: Final = 0.2


class CatchUpPace:
    """What may be read from files for others until the next tick; one for all groups of a node."""

    __slots__ = ("_live_bytes", "_live_tick_bytes", "_room")

    def __init__(self) -> None:
        self._live_bytes = 0
        self._live_tick_bytes = 0.0
        self._room: float = float("inf")

    def sent_live(self, count: int) -> None:
        """So many bytes went to a node that keeps up."""
        self._live_bytes += count

    def sent_from_files(self, count: int) -> None:
        self._room -= count

    @property
    def has_room(self) -> bool:
        return self._room > 0

    def tick(self) -> None:
        self._live_tick_bytes += _NEWS * (self._live_bytes - self._live_tick_bytes)
        self._live_bytes = 0
        if self._live_tick_bytes < _QUIET_TICK_BYTES:
            self._room = float("inf")
        else:
            self._room = max(_TIMES_LIVE * self._live_tick_bytes, _TICK_BYTES_MIN)

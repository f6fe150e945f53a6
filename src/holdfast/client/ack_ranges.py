"""Which messages of one partition are done, when they may be done in any order.

A cursor is one number: everything below it is done. So what is done behind a message that is not must
be remembered here, as ranges that grow together. A crash forgets those ranges and the messages come
again: at least once, and none is skipped.
"""

from __future__ import annotations

from holdfast.client.limits import ACK_RANGES_MAX
from holdfast.model.errors import CallerError


class TooManyOpenRanges(CallerError):
    """Too much was acknowledged around messages that were not."""

    code = "too_many_open_acks"


class AckRanges:
    """`done_below` only grows; nothing at or above it that is not done is ever jumped over."""

    def __init__(self, position: int) -> None:
        self.done_below = position
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    @property
    def open_ranges(self) -> int:
        """How many ranges are done that begin after a message that is not done."""
        return len(self._end_of)

    def done(self, start: int, end: int) -> None:
        """Messages from `start` up to, not including, `end` are done. No message is marked twice."""
        if end <= self.done_below:
            return
        start = max(start, self.done_below)
        if start in self._start_of:
            start = self._start_of.pop(start)
            del self._end_of[start]
        if end in self._end_of:
            end = self._end_of.pop(end)
            del self._start_of[end]
        if start == self.done_below:
            self.done_below = end
            return
        if len(self._end_of) >= ACK_RANGES_MAX:
            raise TooManyOpenRanges(
                f"{ACK_RANGES_MAX} ranges are acknowledged behind the message at offset {self.done_below}, "
                "which is not: acknowledge it, or subscribe again to get it once more"
            )
        self._end_of[start] = end
        self._start_of[end] = start

    def all_done_below(self, end: int) -> None:
        """Everything that was delivered up to `end` is done, whatever was open."""
        if end <= self.done_below:
            return
        self.done_below = end
        reached = {start: stop for start, stop in self._end_of.items() if start < end}
        for start, stop in reached.items():
            del self._end_of[start], self._start_of[stop]
            self.done_below = max(self.done_below, stop)
        if self.done_below in self._end_of:
            stop = self._end_of.pop(self.done_below)
            del self._start_of[stop]
            self.done_below = stop

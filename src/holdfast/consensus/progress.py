"""What a leader knows of one follower, and how much it may have under way to it.

A follower is *probed* with one message at a time until it answers with a match, then entries are *streamed*
to it without waiting for answers, up to a bound (10.2.1). Where the leader's log begins behind what it needs,
it must *install* a new beginning first.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from holdfast.model.ids import LogIndex

# Messages and bytes under way to one follower: enough to keep any disk busy, little enough to be lost at no cost.
INFLIGHT_MESSAGES_MAX: Final = 256
INFLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024


class Mode(Enum):
    PROBE = "probe"
    STREAM = "stream"
    INSTALL = "install"


class Progress:
    """`match` is known to be durable there; `next` is what to send."""

    __slots__ = (
        "_inflight",
        "_probed",
        "acked_round",
        "inflight_bytes",
        "is_active",
        "is_waiting",
        "match",
        "mode",
        "next",
        "stalled_ticks",
        "told_commit",
    )

    def __init__(self, next_index: LogIndex) -> None:
        self.mode = Mode.PROBE
        self.match = LogIndex(-1)
        self.next = next_index
        self.told_commit = LogIndex(-1)
        self.acked_round = 0
        # Whether it was heard of since the last time the leader counted (check-quorum, 6.2).
        self.is_active = False
        # Whether the one message of a probe or an installation is under way.
        self.is_waiting = False
        self.stalled_ticks = 0
        self._inflight: deque[tuple[LogIndex, int]] = deque()
        self.inflight_bytes = 0
        # The last entry of the one message that is under way, or was.
        self._probed = LogIndex(-1)

    @property
    def has_room(self) -> bool:
        if self.mode is not Mode.STREAM:
            return not self.is_waiting
        return len(self._inflight) < INFLIGHT_MESSAGES_MAX and self.inflight_bytes < INFLIGHT_BYTES_MAX

    @property
    def has_unanswered(self) -> bool:
        if self.mode is Mode.STREAM:
            return bool(self._inflight) or self.match < self.next - 1
        return self.is_waiting

    def sent(self, last_index: LogIndex, payload_bytes: int) -> None:
        """Entries up to `last_index` are under way."""
        if not self.has_unanswered:
            self.stalled_ticks = 0
        if self.mode is Mode.STREAM:
            self._inflight.append((last_index, payload_bytes))
            self.inflight_bytes += payload_bytes
            self.next = LogIndex(last_index + 1)
        else:
            self.is_waiting = True
            self._probed = last_index

    def matched(self, index: LogIndex, *, is_answer: bool = True) -> bool:
        """It has everything up to `index`, durably; whether that is news.

        `is_answer`: it says so because of entries that were sent, so those have arrived.
        """
        is_news = index > self.match
        if is_news:
            self.match = index
            self.stalled_ticks = 0
        if self.mode is not Mode.STREAM and index >= self.next - 1:
            # The message before was taken, though perhaps not all of it is on its disk yet.
            self.mode = Mode.STREAM
            self.is_waiting = False
            self.next = LogIndex(max(index, self._probed if is_answer else index) + 1)
        self.next = max(self.next, LogIndex(index + 1))
        while self._inflight and self._inflight[0][0] <= index:
            self.inflight_bytes -= self._inflight.popleft()[1]
        return is_news

    def lost_link(self) -> None:
        """Nothing it said before counts any more: who comes back may have lost what it had."""
        self.resume()
        self.match = LogIndex(-1)

    def resume(self) -> None:
        """What was under way is lost: go on where it is known to stand, or ask again where that is not known."""
        self.probe(self.next if self.mode is Mode.PROBE else LogIndex(self.match + 1))

    def probe(self, next_index: LogIndex) -> None:
        """Begin again with one message at a time; never below what is known to match."""
        self._forget_inflight(Mode.PROBE)
        self.next = max(next_index, LogIndex(self.match + 1))

    def install(self) -> None:
        self._forget_inflight(Mode.INSTALL)

    def _forget_inflight(self, mode: Mode) -> None:
        self.mode = mode
        self.is_waiting = False
        self.stalled_ticks = 0
        self._inflight.clear()
        self.inflight_bytes = 0

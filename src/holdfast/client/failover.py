"""What a publisher of a pair does next, without a socket, a clock or dice: times are arguments.

It publishes to one of two brokers, the current one. Every message has an id. What is not acknowledged is kept, and of
what is acknowledged the last few (`retain`): an old primary may have answered for more than its backup has got. When
the current broker is lost, or does not answer within `ack_timeout_s`, the other one becomes the current one, and
everything that is kept is sent there, in order and with the ids it had. What was stored before is recognised there.

Waiting for an answer means: nothing was answered for that long. A broker that works through a thousand lines is not
silent while acknowledgements come.

Acknowledged messages are sent again only while they are young (`RETAINED_S_MAX`): a broker recognises ids for ten
minutes, and what is sent again after that would be stored twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

ACK_TIMEOUT_S_DEFAULT: Final = 0.5
RETAIN_DEFAULT: Final = 5
PATIENCE_S_DEFAULT: Final = 30.0
# Whoever publishes faster than the pair stores waits at these bounds: that is the memory this takes. And a broker that
# gets so many lines at once has to answer the first within the acknowledgement timeout, also on a busy machine.
UNACKNOWLEDGED_MAX: Final = 1_000
UNACKNOWLEDGED_BYTES_MAX: Final = 16 * 1024 * 1024
# A backup that takes over has done so long before; ids are recognised for far longer.
RETAINED_S_MAX: Final = 60.0
# Both brokers were tried in vain: pauses begin here, double, and stay short, since a promotion takes only moments.
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.25


@dataclass(slots=True, eq=False)
class Kept:
    """A message that may have to be sent again: its line, and what became of it."""

    number: int
    id: str
    line: bytes
    accepted_at: float
    sent: int = 0
    acknowledged_at: float | None = None
    is_dropped: bool = False


@dataclass(slots=True)
class Counts:
    """What a publisher has done so far. A switch is counted when the other broker acknowledges, not at every try."""

    sent: int = 0
    acknowledged: int = 0
    resent: int = 0
    switches: int = 0


class Failover:
    """The publisher's side of a failover. `current` is the number of the broker it publishes to."""

    def __init__(
        self,
        brokers: int = 2,
        *,
        retain: int = RETAIN_DEFAULT,
        ack_timeout_s: float = ACK_TIMEOUT_S_DEFAULT,
        patience_s: float = PATIENCE_S_DEFAULT,
        unacknowledged_max: int = UNACKNOWLEDGED_MAX,
        unacknowledged_bytes_max: int = UNACKNOWLEDGED_BYTES_MAX,
    ) -> None:
        self.current = 0
        self.counts = Counts()
        self._brokers = brokers
        self._ack_timeout_s = ack_timeout_s
        self._patience_s = patience_s
        self._unacknowledged_max = unacknowledged_max
        self._unacknowledged_bytes_max = unacknowledged_bytes_max
        self._next_number = 0
        # In the order in which they were accepted; a dict, since answers may come in another order.
        self._unacknowledged: dict[int, Kept] = {}
        self._unacknowledged_bytes = 0
        self._retained: deque[Kept] = deque(maxlen=retain)
        # Lines on the connection that have no answer yet; answers come in the order of the lines.
        self._unanswered: deque[Kept] = deque()
        self._is_connected = False
        self._waiting_since = 0.0
        self._failures_in_a_row = 0
        self._acknowledged_by = self.current

    # --- messages -----------------------------------------------------------------------------------

    @property
    def unacknowledged(self) -> int:
        return len(self._unacknowledged)

    def has_room(self, size_bytes: int) -> bool:
        """Whether one more message may be kept; one that is larger than the bound may be kept alone."""
        if not self._unacknowledged:
            return True
        return (
            len(self._unacknowledged) < self._unacknowledged_max
            and self._unacknowledged_bytes + size_bytes <= self._unacknowledged_bytes_max
        )

    def accept(self, message_id: str, line: bytes, now: float) -> Kept:
        """Take a message; if `is_connected`, the caller sends its line now."""
        assert self.has_room(len(line)), "nothing is accepted without room"
        kept = Kept(self._next_number, message_id, line, now)
        self._next_number += 1
        self._unacknowledged[kept.number] = kept
        self._unacknowledged_bytes += len(line)
        if self._is_connected:
            self._sent(kept, now)
        return kept

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    # --- the connection to the current broker ---------------------------------------------------------

    def connected(self, now: float) -> list[bytes]:
        """The current broker was reached: the lines to send there first."""
        self._is_connected = True
        self._unanswered.clear()
        young = [kept for kept in self._retained if now - (kept.acknowledged_at or 0.0) <= RETAINED_S_MAX]
        again = sorted((*young, *self._unacknowledged.values()), key=lambda kept: kept.number)
        for kept in again:
            self._sent(kept, now)
        return [kept.line for kept in again]

    def _sent(self, kept: Kept, now: float) -> None:
        if not self._unanswered:
            self._waiting_since = now
        self._unanswered.append(kept)
        if kept.sent:
            self.counts.resent += 1
        else:
            self.counts.sent += 1
        kept.sent += 1

    def acknowledged(self, now: float) -> Kept | None:
        """The oldest unanswered line is stored; the message, unless it was acknowledged or given up before."""
        kept = self._answered(now)
        if self._acknowledged_by != self.current:
            self.counts.switches += 1
            self._acknowledged_by = self.current
        if kept.acknowledged_at is not None or kept.is_dropped:
            return None  # what it knows already it acknowledges, though it may take nothing new
        self._failures_in_a_row = 0
        self._forget(kept)
        kept.acknowledged_at = now
        self.counts.acknowledged += 1
        self._retained.append(kept)
        return kept

    def refused(self, now: float) -> Kept | None:
        """The oldest unanswered line is refused for good: it is not sent again."""
        kept = self._answered(now)
        if kept.acknowledged_at is not None or kept.is_dropped:
            return None
        self._drop(kept)
        return kept

    @property
    def is_waiting(self) -> bool:
        """Whether a line has no answer yet. An answer while nothing waits is none that was asked for."""
        return bool(self._unanswered)

    def failed(self) -> float:
        """The current broker was lost, was not reached, or did not answer in time: go to the other one.

        Returns how many seconds to wait before that: none as long as there is a broker that was not tried.
        """
        self._is_connected = False
        self._unanswered.clear()
        self.current = (self.current + 1) % self._brokers
        self._failures_in_a_row += 1
        rounds = self._failures_in_a_row - self._brokers
        return 0.0 if rounds < 0 else min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(rounds, 16))

    # --- time ---------------------------------------------------------------------------------------

    def wakes_at(self) -> float | None:
        """When time alone changes something: `is_overdue` or `expired` has news then."""
        times = []
        if self._unanswered:
            times.append(self._waiting_since + self._ack_timeout_s)
        oldest = next(iter(self._unacknowledged.values()), None)
        if oldest is not None:
            times.append(oldest.accepted_at + self._patience_s)
        return min(times, default=None)

    def is_overdue(self, now: float) -> bool:
        """Whether the current broker has been silent for too long: time for `failed`."""
        return bool(self._unanswered) and now >= self._waiting_since + self._ack_timeout_s

    def expired(self, now: float) -> list[Kept]:
        """Messages that nobody has acknowledged within the patience; they are given up, stored or not."""
        given_up = []
        for kept in self._unacknowledged.values():
            if now < kept.accepted_at + self._patience_s:
                break
            given_up.append(kept)
        for kept in given_up:
            self._drop(kept)
        return given_up

    # --- books --------------------------------------------------------------------------------------

    def _answered(self, now: float) -> Kept:
        assert self._unanswered, "nothing waits for an answer"
        self._waiting_since = now
        return self._unanswered.popleft()

    def _drop(self, kept: Kept) -> None:
        kept.is_dropped = True
        self._forget(kept)

    def _forget(self, kept: Kept) -> None:
        del self._unacknowledged[kept.number]
        self._unacknowledged_bytes -= len(kept.line)

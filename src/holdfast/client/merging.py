"""Messages of two brokers as one stream: each once, and in order. No socket and no clock: times are arguments.

One broker of a pair delivers, the current one. When it dies the other one delivers what may not have arrived, and
goes on. After a split, one delivers everything again that the other one took and delivered meanwhile. So a message may
come twice: the second one is recognised by its id (`delivered_ids.py`). And the last messages of the old one may still
be on their way when the first of the new one is here: before the first message of another broker is taken, the current
one has to be gone, or has to answer a `PING`, behind which nothing older can come, or has to be silent for
`handover_s`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from holdfast.client.delivered_ids import DeliveredIds
from holdfast.wire.text_answers import Delivered

# What a living broker takes at most to answer a ping.
HANDOVER_S: Final = 0.05
# What an id, a topic and the objects around a message take, beside its value.
_MESSAGE_OVERHEAD_BYTES: Final = 400


class Pong(NamedTuple):
    """The answer to a ping; what stands in front of it came before."""


class _Reconnected(NamedTuple):
    """Here one connection ended and the next one began: between the two, the other broker may have delivered."""


class _Side:
    """What one broker has said and nobody has taken yet."""

    def __init__(self) -> None:
        self.inbox: deque[Delivered | Pong | _Reconnected] = deque()
        self.inbox_bytes = 0
        self.is_connected = self.was_connected = False
        self.heard_at = 0.0
        self.pings = 0
        self.pongs = 0

    def take(self) -> Delivered | _Reconnected | None:
        """The next message, or the end of a connection; `None` if there is neither. Pongs in front are counted."""
        while self.inbox:
            item = self.pop()
            if not isinstance(item, Pong):
                return item
        return None

    def pop(self) -> Delivered | Pong | _Reconnected:
        """What came next, and nothing behind it."""
        item = self.inbox.popleft()
        if isinstance(item, Delivered):
            self.inbox_bytes -= size_of(item)
        elif isinstance(item, Pong):
            self.pongs += 1
        else:
            self.pongs = 0
        return item


class Merge:
    """The messages of one or two brokers, which are numbered from 0."""

    def __init__(self, brokers: int, *, handover_s: float = HANDOVER_S) -> None:
        self.duplicates = 0
        self._sides = [_Side() for _ in range(brokers)]
        self._current = 0
        self._seen = DeliveredIds()
        self._handover_s = handover_s
        # The ping whose answer shows that the current broker has nothing older, and when it was asked for.
        self._asked: tuple[int, float] | None = None

    # --- what happens -------------------------------------------------------------------------------

    def connected(self, broker: int, now: float) -> None:
        side = self._sides[broker]
        if side.was_connected:
            side.inbox.append(_Reconnected())
        side.is_connected = side.was_connected = True
        side.heard_at = now
        side.pings = 0
        if broker == self._current:
            self._asked = None

    def lost(self, broker: int) -> None:
        """What came before is still taken."""
        self._sides[broker].is_connected = False

    def pinged(self, broker: int) -> None:
        """A ping was sent there."""
        self._sides[broker].pings += 1

    def heard(self, broker: int, now: float) -> None:
        """It said something, or could not be heard until now."""
        self._sides[broker].heard_at = now

    def came(self, broker: int, item: Delivered | Pong, now: float) -> None:
        side = self._sides[broker]
        side.heard_at = now
        side.inbox.append(item)
        if isinstance(item, Delivered):
            side.inbox_bytes += size_of(item)

    def forget_ids(self) -> None:
        """The topic was deleted: one of the same name would use its ids again."""
        self._seen.clear()

    def waiting_bytes(self, broker: int) -> int:
        return self._sides[broker].inbox_bytes

    # --- what follows -------------------------------------------------------------------------------

    def next(self, now: float) -> tuple[int, Delivered] | None:
        """The next message and the broker it came from. `None`: nothing yet; look at `asks` and `wakes_at`."""
        while True:
            item = self._sides[self._current].take()
            if isinstance(item, Delivered):
                if self._is_new(item):
                    return self._current, item
                continue
            other = self._with_news()
            if item is None and other is None:
                self._asked = None
                return None
            if item is None and not self._is_finished(now):
                return None
            if other is not None:
                self._current = other
            self._asked = None

    def asks(self) -> int | None:
        """The broker that is to be pinged now, if there is one; then tell `pinged`."""
        if self._asked is None or self._asked[0] <= self._sides[self._current].pings:
            return None
        return self._current

    def wakes_at(self) -> float | None:
        """When the silence of the current broker has lasted long enough for `next` to go on."""
        if self._asked is None:
            return None
        return max(self._asked[1], self._sides[self._current].heard_at) + self._handover_s

    def _is_new(self, message: Delivered) -> bool:
        if message.message_id in self._seen:
            self.duplicates += 1
            return False
        self._seen.add(message.message_id)
        return True

    def _with_news(self) -> int | None:
        """Another broker whose next message is new; what is not is thrown away."""
        for number, side in enumerate(self._sides):
            if number == self._current:
                continue
            while side.inbox:
                head = side.inbox[0]
                if isinstance(head, Delivered) and head.message_id not in self._seen:
                    return number
                self.duplicates += isinstance(side.pop(), Delivered)
        return None

    def _is_finished(self, now: float) -> bool:
        side = self._sides[self._current]
        if not side.is_connected:
            return True
        if self._asked is None:
            self._asked = (side.pings + 1, now)
        wakes_at = self.wakes_at()
        return side.pongs >= self._asked[0] or (wakes_at is not None and now >= wakes_at)


def size_of(message: Delivered) -> int:
    return len(message.value) + _MESSAGE_OVERHEAD_BYTES

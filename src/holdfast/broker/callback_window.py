"""What a receiver was sent and has not acknowledged, and how far it has come: pure counting."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from holdfast.model.ids import Offset
from holdfast.model.limits import (
    CALLBACK_PIECE_BYTES_MAX,
    CALLBACK_WINDOW_BYTES_MAX,
    CALLBACK_WINDOWS_BYTES,
    CALLBACK_WINDOWS_BYTES_MAX,
)
from holdfast.wire.callbacks import too_many_acks

_NOBODYS: Final = -1


class _Sent(NamedTuple):
    """Messages of one partition that were written together."""

    partition: int
    first: Offset
    next_offset: Offset
    messages: int
    size: int


class Budget:
    """What all windows of a node hold together. Each may hold its share, so that none is kept waiting by others.

    Only messages that are larger than a share can fill it; then those who are sent nothing wait for the others.
    """

    def __init__(self) -> None:
        self.receivers = 0
        self.size = 0
        # Whether somebody was told that there is no room, and nobody has told it otherwise yet.
        self._was_denied = False

    @property
    def share(self) -> int:
        return min(CALLBACK_WINDOW_BYTES_MAX, CALLBACK_WINDOWS_BYTES // max(1, self.receivers))

    @property
    def piece(self) -> int:
        """The most that is written at once, of messages that are not larger."""
        return min(CALLBACK_PIECE_BYTES_MAX, self.share)

    def admits(self) -> bool:
        """Whether there is room. Whoever hears that there is none is told when there is (`owes_news`)."""
        if self.size < CALLBACK_WINDOWS_BYTES_MAX:
            return True
        self._was_denied = True
        return False

    def owes_news(self) -> bool:
        """Whether those who were denied room have to be told that there is some; true once."""
        if not self._was_denied or self.size >= CALLBACK_WINDOWS_BYTES_MAX:
            return False
        self._was_denied = False
        return True


class Window:
    """Of one connection: acknowledgements come in the order of what was sent, and name nothing."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._sent: deque[_Sent] = deque()
        # Of the oldest of them, so many messages are acknowledged.
        self._done = 0
        self.messages = 0
        self.size = 0
        self.acknowledged_bytes = 0

    @property
    def has_room(self) -> bool:
        return self.size < self._budget.share and self._budget.admits()

    def disown(self, partition: int) -> None:
        """What was sent of a partition says nothing of where it stands any more, and is still to be acknowledged."""
        self._sent = deque(
            each._replace(partition=_NOBODYS) if each.partition == partition else each for each in self._sent
        )

    def clear(self) -> None:
        """Nothing of it is under way any more: the connection is over."""
        self._budget.size -= self.size
        self._sent.clear()
        self._done = self.messages = self.size = self.acknowledged_bytes = 0

    def sent(self, partition: int, first: Offset, next_offset: Offset, messages: int, size: int) -> None:
        """Where no message was left, as behind a damaged stretch, the place still moves with those before."""
        self._sent.append(_Sent(partition, first, next_offset, messages, size))
        self.messages += messages
        self.size += size
        self._budget.size += size

    def acknowledged(self, count: int) -> dict[int, Offset]:
        """The new places, by partition. Raises `BadCommand`, and counts nothing, beyond what was sent."""
        if count > self.messages:
            raise too_many_acks(count, self.messages)
        self.messages -= count
        places: dict[int, Offset] = {}
        left = self._done + count
        while self._sent and left >= self._sent[0].messages:
            oldest = self._sent.popleft()
            left -= oldest.messages
            self.size -= oldest.size
            self._budget.size -= oldest.size
            self.acknowledged_bytes += oldest.size
            places[oldest.partition] = oldest.next_offset
        places.pop(_NOBODYS, None)
        self._done = left
        if left:
            oldest = self._sent[0]
            # Only where each of its messages has the offset after the one before it.
            if oldest.partition != _NOBODYS and oldest.next_offset - oldest.first == oldest.messages:
                places[oldest.partition] = Offset(oldest.first + left)
        return places

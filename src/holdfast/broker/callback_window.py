"""What a receiver was sent and has not acknowledged, and how far it has come: pure counting."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast.model.errors import BadCommand
from holdfast.model.ids import Offset
from holdfast.model.limits import CALLBACK_WINDOW_BYTES_MAX


class _Sent(NamedTuple):
    """Messages of one partition that were written together."""

    partition: int
    first: Offset
    next_offset: Offset
    messages: int
    size: int


class Window:
    """Of one connection: acknowledgements come in the order of what was sent, and name nothing."""

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()
        # Of the oldest of them, so many messages are acknowledged.
        self._done = 0
        self.messages = 0
        self.size = 0

    @property
    def has_room(self) -> bool:
        return self.size < CALLBACK_WINDOW_BYTES_MAX

    def sent(self, partition: int, first: Offset, next_offset: Offset, messages: int, size: int) -> None:
        """Where no message was left, as behind a damaged stretch, the place still moves with those before."""
        self._sent.append(_Sent(partition, first, next_offset, messages, size))
        self.messages += messages
        self.size += size

    def acknowledged(self, count: int) -> dict[int, Offset]:
        """The new places, by partition. Raises `BadCommand`, and counts nothing, beyond what was sent."""
        if count > self.messages:
            raise BadCommand(f"the receiver acknowledged {count} messages, and {self.messages} were under way")
        self.messages -= count
        places: dict[int, Offset] = {}
        left = self._done + count
        while self._sent and left >= self._sent[0].messages:
            oldest = self._sent.popleft()
            left -= oldest.messages
            self.size -= oldest.size
            places[oldest.partition] = oldest.next_offset
        self._done = left
        if left:
            oldest = self._sent[0]
            # Only where each of its messages has the offset after the one before it.
            if oldest.next_offset - oldest.first == oldest.messages:
                places[oldest.partition] = Offset(oldest.first + left)
        return places

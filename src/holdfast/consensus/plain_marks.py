"""What a backup holds that its primary has not called delivered yet: rules only.

Messages are called delivered one by one and in any order. `Marks` turns that into one mark, below which everything is
delivered, and a few stretches apart from it. Whatever is forgotten here is delivered a second time, and never lost.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict, deque
from typing import Final

# Stretches that wait for something before them; each is two numbers.
STRETCHES_MAX: Final = 10_000
# Messages of a foreign primary that can be found by their name: about 300 bytes each.
NAMES_MAX: Final = 100_000


class Marks:
    """The mark, and the stretches behind it that are delivered all the same."""

    def __init__(self, mark: int, apart: list[tuple[int, int]] | None = None) -> None:
        self.mark = mark
        self._firsts = [first for first, _ in apart or ()]
        self._behinds = [behind for _, behind in apart or ()]

    @property
    def apart(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._behinds, strict=True))

    def has(self, position: int) -> bool:
        place = bisect_right(self._firsts, position)
        return position < self.mark or (place > 0 and position < self._behinds[place - 1])

    def add(self, position: int) -> None:
        """One message is delivered."""
        if self.has(position):
            return
        if position == self.mark:
            self.mark = position + 1
            if self._firsts and self._firsts[0] == self.mark:
                self.mark = self._behinds[0]
                del self._firsts[0], self._behinds[0]
            return
        place = bisect_right(self._firsts, position)
        joins_before = place > 0 and self._behinds[place - 1] == position
        joins_after = place < len(self._firsts) and self._firsts[place] == position + 1
        if joins_before and joins_after:
            self._behinds[place - 1] = self._behinds[place]
            del self._firsts[place], self._behinds[place]
        elif joins_before:
            self._behinds[place - 1] = position + 1
        elif joins_after:
            self._firsts[place] = position
        elif len(self._firsts) < STRETCHES_MAX:
            self._firsts.insert(place, position)
            self._behinds.insert(place, position + 1)


Name = tuple[str, bytes]


def name_of_id(message_id: str) -> Name:
    return (message_id, b"")


def name_of_value(topic: str, value: bytes) -> Name:
    """How a message without an id is called: by what is in it."""
    return (topic, hashlib.blake2b(value, digest_size=16).digest())


class Names:
    """Where messages of a foreign primary stand, whose numbers are its own: the newest of them, by name.

    One name may stand for several: equal payloads, or an id that was used in several topics.
    """

    def __init__(self) -> None:
        self.count = 0
        self._held: OrderedDict[Name, deque[tuple[int, int | None]]] = OrderedDict()

    def add(self, name: Name, position: int, number: int | None) -> None:
        self._held.setdefault(name, deque()).append((position, number))
        self.count += 1
        while self.count > NAMES_MAX:
            self.count -= len(self._held.popitem(last=False)[1])

    def find(self, name: Name, number: int) -> int | None:
        """The message of this id and number, if it is held: one that is sent again is the same."""
        return next((position for position, known in self._held.get(name, ()) if known == number), None)

    def unnumbered(self, name: Name) -> list[int]:
        """Messages of this id that came before a restart: what their numbers were is not known any more."""
        return [position for position, known in self._held.get(name, ()) if known is None]

    def number(self, name: Name, position: int, number: int) -> None:
        """One of those came again: that is its number."""
        held = self._held[name]
        held[held.index((position, None))] = (position, number)

    def take(self, name: Name, number: int | None) -> int | None:
        """A message is called delivered: which one that is."""
        known = self._held.get(name, deque())
        # Another number is another message of this id. After a restart of this broker nobody knows the numbers.
        found = next((each for each in known if number is None or each[1] in (number, None)), None)
        if found is None:
            return None
        known.remove(found)
        self.count -= 1
        if not known:
            del self._held[name]
        return found[0]

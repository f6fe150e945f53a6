"""Which ids were there already: any number of them where they are numbered, in memory that does not grow with that.

An id that ends in a number is remembered as that number under what stands before it, and numbers that follow one
another are one stretch. The clients of this package number their messages, and a broker numbers those without an id
by their offsets. So what one publisher sends is a few stretches, however long it sends.

Other ids, such as UUIDs, are a stretch each at first. A stretch that is still short when many others have begun is
dissolved: its ids are remembered one by one, in less memory, and only the newest of them (`recent_digests.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import Final

from holdfast.client.recent_digests import RecentDigests

# Stretches that are remembered. One takes up to 500 bytes.
STRETCHES_MAX: Final = 50_000
# At least so many other ids are remembered. Twice as many take 48 MB.
DIGESTS_MAX: Final = 1_000_000
# Of all stretches this share may be new ones, of which nobody knows yet how long they get.
_NEW_SHARE: Final = 2
# A stretch of more numbers than this is not dissolved.
_SHORT_MAX: Final = 16
# Of one stem so many of these parts are forgotten together, and not each of them at the cost of moving the others.
_FORGOTTEN_SHARE: Final = 100
_DIGITS: Final = "0123456789"
_DIGITS_MAX: Final = 18
# The number of an id that ends in none.
_NONE: Final = -1


class DeliveredIds:
    """A set of ids. Of too many long stretches, the lowest of the stem that was used least recently are forgotten."""

    def __init__(self, stretches_max: int = STRETCHES_MAX, digests_max: int = DIGESTS_MAX) -> None:
        self._stretches_max = stretches_max
        self._new_max = max(1, stretches_max // _NEW_SHARE)
        self._digests = RecentDigests(digests_max)
        self._stretches = 0
        # By stem: where a stretch begins and where it ends, in turn, rising.
        self._bounds: OrderedDict[str, list[int]] = OrderedDict()
        # Where the newest stretches began. Some may be part of others by now, or forgotten.
        self._new: deque[tuple[str, int]] = deque()

    def __contains__(self, message_id: str) -> bool:
        stem, number = _parts(message_id)
        bounds = self._bounds.get(stem)
        # Behind an odd number of bounds is within a stretch.
        if bounds is not None and bisect_right(bounds, number) % 2 == 1:
            return True
        return message_id in self._digests

    def add(self, message_id: str) -> None:
        stem, number = _parts(message_id)
        bounds = self._bounds.get(stem)
        if bounds is None:
            self._bounds[stem] = [number, number + 1]
            self._began(stem, number)
            return
        self._bounds.move_to_end(stem)
        place = bisect_right(bounds, number)
        if place % 2 == 1:
            return
        joins_before = place > 0 and bounds[place - 1] == number
        joins_after = place < len(bounds) and bounds[place] == number + 1
        if joins_before and joins_after:
            del bounds[place - 1 : place + 1]
            self._stretches -= 1
        elif joins_before:
            bounds[place - 1] = number + 1
        elif joins_after:
            bounds[place] = number
        else:
            bounds[place:place] = (number, number + 1)
            self._began(stem, number)

    def clear(self) -> None:
        self._bounds.clear()
        self._new.clear()
        self._stretches = 0
        self._digests.clear()

    def _began(self, stem: str, number: int) -> None:
        self._stretches += 1
        self._new.append((stem, number))
        if len(self._new) > self._new_max:
            self._dissolve_if_short(*self._new.popleft())
        if self._stretches > self._stretches_max:
            self._forget()

    def _dissolve_if_short(self, stem: str, number: int) -> None:
        bounds = self._bounds.get(stem, [])
        place = bisect_right(bounds, number)
        if place % 2 == 1 and bounds[place] - bounds[place - 1] <= _SHORT_MAX:
            self._remove(stem, bounds, place - 1, place + 1)

    def _forget(self) -> None:
        stem, bounds = next(iter(self._bounds.items()))
        self._remove(stem, bounds, 0, 2 * max(1, len(bounds) // 2 // _FORGOTTEN_SHARE))

    def _remove(self, stem: str, bounds: list[int], begin: int, end: int) -> None:
        """Remove these stretches; the ids of short ones are remembered one by one."""
        for place in range(begin, end, 2):
            if bounds[place + 1] - bounds[place] <= _SHORT_MAX:
                for number in range(bounds[place], bounds[place + 1]):
                    self._digests.add(stem if number == _NONE else f"{stem}{number}")
        del bounds[begin:end]
        self._stretches -= (end - begin) // 2
        if not bounds:
            del self._bounds[stem]


def _parts(message_id: str) -> tuple[str, int]:
    """The stem and the number of an id, of which no other id has the same two."""
    digits = message_id[len(message_id.rstrip(_DIGITS)) :]
    if not digits:
        return message_id, _NONE
    # Zeros in front of a number belong to the stem.
    number = digits[-_DIGITS_MAX:].lstrip("0") or "0"
    return message_id[: -len(number)], int(number)

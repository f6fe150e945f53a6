"""The newest entries of a leader's log, kept in memory until the followers have them.

Almost everything that is sent to followers was written a moment ago: reading it back from the file would cost
a parse and a checksum for each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from holdfast.model.entries import Entry
from holdfast.model.ids import LogIndex

# More than this means that a follower is far behind, and a file is the better place to read from.
_BYTES_MAX: Final = 4 * 1024 * 1024


class TailCache:
    """Entries up to the newest one, without gaps; how many there are is bounded by their bytes."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._next = LogIndex(0)

    def add(self, index: LogIndex, entry: Entry) -> None:
        self.extend(index, (entry,))

    def extend(self, first: LogIndex, entries: Sequence[Entry]) -> None:
        if first != self._next:
            self.clear()
        self._entries += entries
        self._bytes += sum(len(entry.payload) for entry in entries)
        self._next = LogIndex(first + len(entries))
        while self._bytes > _BYTES_MAX:
            self._bytes -= len(self._entries.popleft().payload)

    def take(self, first: LogIndex, bytes_max: int) -> list[Entry]:
        """Entries from `first` on, about as many as `bytes_max` allows; none if they are not here."""
        start = first - (self._next - len(self._entries))
        if start < 0 or first >= self._next:
            return []
        found: list[Entry] = []
        for place in range(start, len(self._entries)):
            entry = self._entries[place]
            bytes_max -= len(entry.payload)
            if bytes_max < 0 and found:
                break
            found.append(entry)
        return found

    def drop_up_to(self, index: LogIndex) -> None:
        """Everybody has these."""
        for _ in range(min(len(self._entries), index + 1 - (self._next - len(self._entries)))):
            self._bytes -= len(self._entries.popleft().payload)

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

"""What was made for one reader, kept for the others and for its own next piece: bounded by its bytes.

An entry is made of one delivery. Readers take it in pieces, and each piece begins at a place where a later one, or
another reader, finds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
E = TypeVar("E", bound=Hashable)
A = TypeVar("A")

# What an entry costs besides its bytes: most deliveries to a fast reader are one short line.
_ENTRY_BYTES = 768


class SharedPieces(Generic[P, E, A]):
    """Entries `E`, and for each place `P` where a piece begins where in its entry (`A`) that is."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # With their sizes and the places that lead to them; the one that was used last is the last one.
        self._entries: OrderedDict[E, tuple[int, list[P]]] = OrderedDict()
        self._starts: dict[P, tuple[E, A]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, place: P) -> tuple[E, A] | None:
        found = self._starts.get(place)
        if found is not None:
            self._entries.move_to_end(found[0])
        return found

    def keep(self, entry: E, size: int) -> None:
        """Keep it for a while, at the price of those that were not used for longest."""
        size += _ENTRY_BYTES
        self._bytes += size
        while self._entries and self._bytes > self._bytes_max:
            self._drop(next(iter(self._entries)))
        self._entries[entry] = size, []

    def begin(self, place: P, entry: E, at: A) -> None:
        """A piece of a kept entry begins at `place`."""
        if place not in self._starts:
            self._starts[place] = entry, at
            self._entries[entry][1].append(place)

    def _drop(self, entry: E) -> None:
        size, places = self._entries.pop(entry)
        self._bytes -= size
        for place in places:
            del self._starts[place]

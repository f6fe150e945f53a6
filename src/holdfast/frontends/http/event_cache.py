"""The JSON of messages that streams showed last, shared by streams.

A batch may have 16 MiB, and a stream sends a small piece at a time. So a stretch is decoded once, for the next pieces
of this stream and for others at the same place; a stream keeps nothing but its offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.broker.shared_pieces import SharedPieces
from holdfast.model.ids import Offset
from holdfast.model.limits import MIB
from holdfast.model.topics import Topic

_CACHE_BYTES_MAX: Final = 16 * MIB


class Place(NamedTuple):
    topic: Topic | None
    partition: int
    offset: Offset
    # How often the partition's end had gone back: its offsets stand for other messages since.
    cuts: int


class _Stretch:
    """Messages that follow one another."""

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: list[Offset], data: list[bytes]) -> None:
        self.offsets = offsets
        self.data = data


class Piece(NamedTuple):
    """Offsets, the JSON at each of them, and the offset behind them."""

    offsets: Sequence[Offset]
    data: Sequence[bytes]
    next_offset: Offset


class EventCache:
    def __init__(self) -> None:
        self._shared: SharedPieces[Place, _Stretch, int] = SharedPieces(_CACHE_BYTES_MAX)

    def find(self, place: Place, bytes_max: int) -> Piece | None:
        """The piece that begins at `place`, if it is here: up to `bytes_max`, and at least one message."""
        found = self._shared.find(place)
        if found is None:
            return None
        stretch, first = found
        end, size = first + 1, len(stretch.data[first])
        while end < len(stretch.data) and size + len(stretch.data[end]) <= bytes_max:
            size += len(stretch.data[end])
            end += 1
        next_offset = Offset(stretch.offsets[end - 1] + 1)
        if end < len(stretch.data):
            self._shared.begin(place._replace(offset=next_offset), stretch, end)
        return Piece(stretch.offsets[first:end], stretch.data[first:end], next_offset)

    def keep(self, place: Place, offsets: list[Offset], data: list[bytes]) -> None:
        """What stands at `place` and behind it."""
        stretch = _Stretch(offsets, data)
        self._shared.keep(stretch, sum(map(len, data)) + 64 * len(data))
        self._shared.begin(place, stretch, 0)

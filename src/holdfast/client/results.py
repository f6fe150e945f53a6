"""Where the messages of one `publish_many` stand, in twelve bytes a message instead of an object."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from holdfast.model.ids import Offset
from holdfast.model.messages import Published

# Not an offset, and not `NO_OFFSET` either.
_UNKNOWN = -2


class PublishResults(Sequence[Published]):
    """One `Published` for each message, in the order they were given; made when it is looked at."""

    def __init__(self, count: int) -> None:
        self._partitions = array("i", [0]) * count
        self._offsets = array("q", [_UNKNOWN]) * count
        self._duplicates: set[int] = set()

    @property
    def duplicates(self) -> int:
        """How many of the messages had been stored before."""
        return len(self._duplicates)

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> Published: ...

    @overload
    def __getitem__(self, index: slice) -> list[Published]: ...

    def __getitem__(self, index: int | slice) -> Published | list[Published]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return Published(
            partition=self._partitions[place],
            offset=Offset(self._offsets[place]),
            duplicate=place in self._duplicates,
        )

    def __iter__(self) -> Iterator[Published]:
        return (self[index] for index in range(len(self)))

    @property
    def complete(self) -> bool:
        return _UNKNOWN not in self._offsets

    def known(self) -> list[Published | None]:
        """The results there are, `None` for the others."""
        return [None if offset == _UNKNOWN else self[index] for index, offset in enumerate(self._offsets)]

    def set(self, places: Sequence[int], partition: int, offsets: Sequence[int], duplicates: Sequence[int]) -> None:
        """The messages at `places` stand at `offsets`; `duplicates` are indexes into both."""
        if isinstance(places, range) and isinstance(offsets, range):
            run = slice(places.start, places.stop)
            self._partitions[run] = array("i", [partition]) * len(places)
            self._offsets[run] = array("q", offsets)
        else:
            for place, offset in zip(places, offsets, strict=True):
                self._partitions[place] = partition
                self._offsets[place] = offset
        self._duplicates.update(places[index] for index in duplicates)

"""The newest batches of each partition, in memory: subscribers at the end do not each ask the database.

A batch that this broker stored is kept as it was published. What other brokers stored is kept once somebody here has
read it. Bounded over all partitions; what was written longest ago goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.model.ids import Offset, PartitionId
from holdfast.model.limits import MIB

_BYTES_MAX: Final = 32 * MIB
_PARTITION_BYTES_MAX: Final = 2 * MIB


class _Kept(NamedTuple):
    base: int
    next: int
    batch: bytearray


_base = attrgetter("base")


class _Tail:
    """One partition's batches, one behind the other without a gap."""

    def __init__(self) -> None:
        self.batches: list[_Kept] = []
        self.bytes = 0

    def drop_to(self, bytes_max: int) -> int:
        """Let go of the oldest, if it is too much by half: so it is not done for each. Returns the bytes."""
        if self.bytes <= bytes_max + bytes_max // 2:
            return 0
        place = dropped = 0
        while self.bytes - dropped > bytes_max and place < len(self.batches):
            dropped += len(self.batches[place].batch)
            place += 1
        del self.batches[:place]
        self.bytes -= dropped
        return dropped


class Tails:
    """The tails of all partitions."""

    def __init__(self) -> None:
        self.hits = 0
        self.bytes = 0
        self._tails: OrderedDict[PartitionId, _Tail] = OrderedDict()

    def add(self, partition: PartitionId, base: int, next_offset: int, batch: bytearray) -> None:
        """A committed batch. One that does not follow on the last one begins anew."""
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = _Tail()
        else:
            self._tails.move_to_end(partition)
            if tail.batches and tail.batches[-1].next != base:
                if next_offset <= tail.batches[-1].next:
                    return
                self.bytes -= tail.drop_to(0)
        tail.batches.append(_Kept(base, next_offset, batch))
        tail.bytes += len(batch)
        self.bytes += len(batch) - tail.drop_to(_PARTITION_BYTES_MAX)
        while self.bytes > _BYTES_MAX and len(self._tails) > 1:
            _, oldest = self._tails.popitem(last=False)
            self.bytes -= oldest.bytes

    def read(self, partition: PartitionId, offset: Offset, bytes_max: int) -> list[memoryview]:
        """Batches from the one that holds `offset` on; none where the beginning is not here."""
        tail = self._tails.get(partition)
        if tail is None or not tail.batches or not tail.batches[0].base <= offset < tail.batches[-1].next:
            return []
        found: list[memoryview] = []
        size = 0
        for place in range(bisect_right(tail.batches, offset, key=_base) - 1, len(tail.batches)):
            batch = tail.batches[place].batch
            size += len(batch)
            if found and size > bytes_max:
                break
            found.append(memoryview(batch))
        self.hits += 1
        return found

    def clear(self) -> None:
        self._tails.clear()
        self.bytes = 0

    def forget(self, partition: PartitionId) -> None:
        tail = self._tails.pop(partition, None)
        if tail is not None:
            self.bytes -= tail.bytes

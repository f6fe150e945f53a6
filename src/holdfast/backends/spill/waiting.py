"""Which partitions have spilled messages that are not stored yet: whatever comes next has to queue behind them."""

from __future__ import annotations

from collections import Counter

from holdfast.model.ids import PartitionId

# Stands for all partitions of a topic: a message whose partition is yet to be chosen may go to any.
ANY = -1


class Waiting:
    """Counts, by partition. Until what an earlier broker left is known, every partition waits."""

    def __init__(self) -> None:
        self.is_known = False
        self.total = 0
        self._counts: Counter[PartitionId] = Counter()

    def is_waiting(self, partition: PartitionId) -> bool:
        if not self.is_known:
            return True
        return bool(self._counts) and (partition in self._counts or PartitionId(partition.topic, ANY) in self._counts)

    def add(self, partition: PartitionId, count: int) -> None:
        self._counts[partition] += count
        self.total += count

    def remove(self, partition: PartitionId, count: int) -> None:
        """They are stored, or will never be."""
        left = self._counts[partition] - count
        self.total -= count + min(0, left)
        if left > 0:
            self._counts[partition] = left
        else:
            del self._counts[partition]

    def clear(self) -> None:
        """No file is left. Lines that were damaged after they were counted would keep their partitions waiting."""
        self._counts.clear()
        self.total = 0

"""The last lap of catching up: pushes wait in memory while the last spilled messages of their partitions are stored.

A push queues behind what waits, so while some is stored more comes, and with a steady stream of pushes there would be
another small file for ever. When little is left, those who push wait for it instead, for half as long as a push may
take; then the backend gets theirs directly, in the order in which they came, and has the rest of that time. Nothing of
it was acknowledged, so whatever goes wrong, it is kept in the spill as if it came now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.broker import results
from holdfast.model.ids import PartitionId
from holdfast.model.limits import MIB
from holdfast.model.messages import BatchPublished

# What is left before a lap is called the last: stored within tens of milliseconds.
LAP_EVENTS_MAX: Final = 1_000
# What may wait in memory meanwhile; with more the lap is not the last.
_HELD_BYTES_MAX: Final = 16 * MIB

# Partition, batch, whether it has ids, and since when somebody waits.
Give = Callable[[PartitionId, bytearray, bool, float], asyncio.Future[BatchPublished]]


class _Held(NamedTuple):
    partition: PartitionId
    batch: bytearray
    has_ids: bool
    since_s: float
    promise: asyncio.Future[BatchPublished]


class LastLap:
    """`give` puts a push on its way, to the backend or into the spill.

    `limit_s` is how long one may take now, as was learnt from others, `limit_s_max` how long at the most: a lap that
    was too short is tried again with twice the time.
    """

    def __init__(self, give: Give, limit_s: Callable[[], float], limit_s_max: float) -> None:
        self.is_on = False
        self._give = give
        self._limit_s = limit_s
        self._limit_s_max = limit_s_max
        self._longer = 1
        self._held: list[_Held] = []
        self._partitions: set[PartitionId] = set()
        self._size_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        return min(self._limit_s() * self._longer, self._limit_s_max) / 2

    def begin(self) -> None:
        if not self.is_on:
            self.is_on = True
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._cut_off)

    def succeeded(self) -> None:
        """Everything is stored."""
        self._longer = 1

    def _cut_off(self) -> None:
        self._longer = min(2 * self._longer, 64)
        self.end()

    def has(self, partition: PartitionId) -> bool:
        """Whether pushes to a partition wait: none may overtake them, though what they waited for is stored by now."""
        return partition in self._partitions

    def hold(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished] | None:
        """What becomes of a push later; none where no more may wait, and the lap is over."""
        if self._held and self._size_bytes + len(batch) > _HELD_BYTES_MAX:
            self.end()
            return None
        promise: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        self._held.append(_Held(partition, batch, has_ids, time.monotonic(), promise))
        self._partitions.add(partition)
        self._size_bytes += len(batch)
        return promise

    def end(self) -> None:
        """Everybody goes on, in order; those whose partitions still have messages that wait, into the spill."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_on = False
        held, self._held, self._size_bytes = self._held, [], 0
        self._partitions.clear()
        for partition, batch, has_ids, since_s, promise in held:
            try:
                given = self._give(partition, batch, has_ids, since_s)
            except Exception as error:  # noqa: BLE001 - told to whoever waits; the others are not to wait for ever
                results.refuse(promise, error)
            else:
                results.then(given, promise, lambda published: published)

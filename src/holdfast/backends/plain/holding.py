"""Publishes that came while it is not known which of the two serves: they wait until it is.

A publisher whose primary hangs turns to the backup before that one can know. So the backup refuses nothing before its
primary has answered a heartbeat that left after the publish came: then the primary is there to be published to. If it
does not answer, the backup takes over, and publishes what it has held in the order in which it came.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.broker.results import refuse, then
from holdfast.model.errors import HoldfastError, NotLeader, Unavailable
from holdfast.model.ids import PartitionId
from holdfast.model.limits import PLAIN_HELD_BATCHES_MAX, PLAIN_HELD_BYTES_MAX
from holdfast.model.messages import BatchPublished

# What this broker remembers of ids is read again after it took over.
_AGAIN_S: Final = 0.05

PublishHere = Callable[[PartitionId, bytearray], asyncio.Future[BatchPublished]]


class _Held(NamedTuple):
    number: int
    until_s: float
    partition: PartitionId
    batch: bytearray
    promise: asyncio.Future[BatchPublished]


class Holding:
    """The publishes that one broker holds, each for at most `patience_s`."""

    def __init__(self, patience_s: float, serves: Callable[[], bool]) -> None:
        self._patience_s = patience_s
        self._serves = serves
        # Until when one that could not be published yet waits, and all behind it.
        self._again: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._publish_here: PublishHere | None = None
        self._held: deque[_Held] = deque()
        self._bytes = 0
        # How many were ever held. The answer to a heartbeat that leaves now settles those with a smaller number.
        self.count = 0

    @property
    def is_empty(self) -> bool:
        return not self._held

    def publish_with(self, publish_here: PublishHere) -> None:
        self._publish_here = publish_here

    def hold(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        """Raises `Unavailable` where too much waits already."""
        if self._bytes + len(batch) > PLAIN_HELD_BYTES_MAX or len(self._held) >= PLAIN_HELD_BATCHES_MAX:
            raise Unavailable("too much waits here until it is known which of the two brokers serves; try again")
        promise: asyncio.Future[BatchPublished] = self._loop.create_future()
        self._held.append(_Held(self.count, self._loop.time() + self._patience_s, partition, batch, promise))
        self._bytes += len(batch)
        self.count += 1
        return promise

    def publish(self) -> None:
        """Publish everything in order, if this broker serves."""
        while self._held and self._again is None and self._serves():
            self._publish(self._take())

    def refuse_below(self, number: int, error: HoldfastError) -> None:
        """Nothing is stored of those that were held before so many others."""
        while self._held and self._held[0].number < number:
            refuse(self._take().promise, error)

    def refuse_late(self, error: HoldfastError) -> None:
        """Those that are held for too long."""
        while self._held and self._held[0].until_s < self._loop.time():
            refuse(self._take().promise, error)

    def _take(self) -> _Held:
        held = self._held.popleft()
        self._bytes -= len(held.batch)
        return held

    def _publish(self, held: _Held) -> None:
        assert self._publish_here is not None, "a broker publishes with this backend"
        try:
            published = self._publish_here(held.partition, held.batch)
        except HoldfastError as error:
            self._failed(held, error)
            return
        published.add_done_callback(lambda done: self._published(held, done))

    def _published(self, held: _Held, done: asyncio.Future[BatchPublished]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, HoldfastError):
            self._failed(held, error)
        else:
            then(done, held.promise, lambda published: published)

    def _failed(self, held: _Held, error: HoldfastError) -> None:
        """`NotLeader`: nothing is stored, and its ids are not known yet."""
        if isinstance(error, NotLeader) and held.until_s > self._loop.time():
            self._put_back(held)
        else:
            refuse(held.promise, error)

    def _put_back(self, held: _Held) -> None:
        """In front of those that came later."""
        place = bisect.bisect([each.number for each in self._held], held.number)
        self._held.insert(place, held)
        self._bytes += len(held.batch)
        if self._again is None:
            self._again = self._loop.call_later(_AGAIN_S, self._publish_again)

    def _publish_again(self) -> None:
        self._again = None
        self.publish()

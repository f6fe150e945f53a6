"""A reader at its own place: what live and durable subscribers, long polls and tails have in common.

Nothing is queued for a reader. It has a position in each partition and reads from the log when it is
ready for more, so one that is slow or dead costs a few numbers and slows nobody down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from holdfast.broker.backend import Backend
from holdfast.broker.stats import BrokerStats
from holdfast.model.errors import DamagedData, OffsetOutOfRange, TopicNotFound, Unavailable
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.member_errors import NodeRemoved
from holdfast.wire import record_batch

# So often a reader looks whether a store that is away is there again.
_AWAY_PAUSE_S = 0.1


class Delivery(NamedTuple):
    """Batches of one partition; the first `skip` records of the first batch are before the position."""

    partition: int
    offset: Offset
    batches: list[memoryview]
    skip: int
    next_offset: Offset
    # How often the partition's end had gone back: its offsets stand for other messages since.
    cuts: int = 0


class Follower:
    """Follows all partitions of a topic from given positions on."""

    def __init__(
        self,
        backend: Backend,
        topic: TopicName,
        positions: Mapping[int, Offset],
        stats: BrokerStats,
        on_skip: Callable[[str], None],
        place: CursorName | None = None,
        is_young: Callable[[PartitionId], bool] = lambda partition: False,
    ) -> None:
        self.topic = topic
        self.positions = dict(positions)
        self._backend = backend
        self._stats = stats
        self._on_skip = on_skip
        self._partitions = {number: PartitionId(topic, number) for number in positions}
        self.cuts = {number: len(backend.cuts(each)) for number, each in self._partitions.items()}
        self.followed = backend.topic(topic)
        self._moved = asyncio.Event()
        self._unwatch = [backend.watch(partition, self._moved.set) for partition in self._partitions.values()]
        # With a place it reads only what this node leads, and begins each reign there.
        self._place = place
        self._led = {number for number, each in self._partitions.items() if self._is_led(number) and not is_young(each)}
        # Where the last turn ended, so that a busy partition does not starve the others.
        self._turn = 0

    def close(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()

    async def next(self, bytes_max: int) -> Delivery:
        """The next batches of whichever partition has some; waits for them. Raises `TopicNotFound`, `NodeRemoved`.

        A store that is away is waited for: whoever is connected does not lose its place meanwhile.
        """
        while True:
            try:
                delivery = await self.poll(bytes_max)
            except NodeRemoved:
                raise  # it does not come back
            except Unavailable:
                await asyncio.sleep(_AWAY_PAUSE_S)
                continue
            if delivery is not None:
                return delivery
            await self.wait()

    async def ready(self) -> int:
        """A partition that has something at its position; waits for one. Raises `TopicNotFound`, `NodeRemoved`."""
        while True:
            self._check_topic()
            if self.is_behind():
                for number in self._in_turn():
                    if self._backend.end_offset(self._partitions[number]) > self.positions[number]:
                        return number
            await self.wait()

    async def read(self, number: int, bytes_max: int) -> Delivery | None:
        """What stands at the position of one partition, which stays: whoever has taken it moves it."""
        try:
            return await self._read(number, bytes_max)
        except NodeRemoved:
            raise
        except Unavailable:
            await asyncio.sleep(_AWAY_PAUSE_S)
            return None

    async def wait(self) -> None:
        """Wait until some partition may have moved beyond its position. Raises `TopicNotFound`, `NodeRemoved`."""
        while not self.is_behind():
            self._moved.clear()
            self._backend.check_belongs()
            if self._backend.topic(self.topic) != self.followed:
                raise TopicNotFound(f"topic {self.topic} was deleted")
            await self._moved.wait()

    def is_behind(self) -> bool:
        self._look_at_cuts()
        if self._place is not None:
            self._look_at_reigns(self._place)
        end_offset = self._backend.end_offset
        return any(
            end_offset(self._partitions[number]) > offset
            for number, offset in self.positions.items()
            if self._place is None or number in self._led
        )

    def _look_at_cuts(self) -> None:
        """Go back to where the store ends now, if it lacks what this reader had: the next messages stand there."""
        for number, partition in self._partitions.items():
            cuts = self._backend.cuts(partition)
            if len(cuts) <= self.cuts[number]:
                continue
            end = min(cuts[self.cuts[number] :])
            self.cuts[number] = len(cuts)
            if end < self.positions[number]:
                lost = self.positions[number] - end
                self._on_skip(f"{partition}: the store lost {lost} messages that were read, going on at offset {end}")
                self.positions[number] = end

    def _is_led(self, number: int) -> bool:
        return self._backend.reign(self._partitions[number]) is not None

    def _look_at_reigns(self, place: CursorName) -> None:
        for number in self._partitions:
            if not self._is_led(number):
                self._led.discard(number)
            elif number not in self._led:
                self._led.add(number)
                reached = self._backend.cursor(self.topic, place)
                if reached is not None and number in reached:
                    self.positions[number] = reached[number]

    async def poll(self, bytes_max: int) -> Delivery | None:
        """The next batches if there are any now, and the position behind them."""
        self._check_topic()
        self._look_at_cuts()
        if self._place is not None:
            self._look_at_reigns(self._place)
        for number in self._in_turn():
            delivery = await self._read(number, bytes_max)
            if delivery is not None:
                self.positions[number] = delivery.next_offset
                return delivery
        return None

    def _check_topic(self) -> None:
        if self._backend.topic(self.topic) not in (self.followed, None):
            raise TopicNotFound(f"topic {self.topic} was deleted and created again")

    def _in_turn(self) -> Iterator[int]:
        """The partitions to read, beginning behind the one that was taken last."""
        numbers = [number for number in self.positions if self._place is None or number in self._led]
        turn = self._turn
        for step in range(len(numbers)):
            self._turn = (turn + step + 1) % len(numbers)
            yield numbers[(turn + step) % len(numbers)]

    async def _read(self, number: int, bytes_max: int) -> Delivery | None:
        partition = self._partitions[number]
        while self._backend.end_offset(partition) > self.positions[number]:
            self._check_topic()
            offset = self.positions[number]
            try:
                batches = list(await self._backend.read(partition, offset, bytes_max))
                self._check_topic()
            except DamagedData as damage:
                self._skip(number, Offset(damage.next_offset), "damaged")
                continue
            except OffsetOutOfRange:
                self._skip(number, self._backend.start_offset(partition), "expired")
                continue
            if not batches:
                break
            next_offset = record_batch.header(batches[-1]).next_offset
            skip = max(0, offset - record_batch.header(batches[0]).base_offset)
            return Delivery(number, offset, batches, skip, next_offset, self.cuts[number])
        return None

    def _skip(self, number: int, to: Offset, why: str) -> None:
        lost = max(0, to - self.positions[number])
        if why == "damaged":
            self._stats.skipped_damaged += lost
        else:
            self._stats.skipped_expired += lost
        self._on_skip(f"{self._partitions[number]}: {lost} {why} messages skipped, going on at offset {to}")
        self.positions[number] = to

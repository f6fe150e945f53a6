"""Named readers: where they stand, and the rule that their own progress never goes backwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.broker.backend import Backend
from holdfast.model.errors import BadValue, CursorNotFound, PartitionNotFound
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.messages import StoredMessage
from holdfast.model.topics import CursorDescription, CursorPosition, Topic

Claim = tuple[TopicName, CursorName]


class CursorRead(NamedTuple):
    """What a named reader has not acknowledged yet, and what to acknowledge it with."""

    messages: list[tuple[int, StoredMessage]]
    ack: dict[int, Offset]


class Cursors:
    """Positions of named readers in one backend, and which connection holds which of them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._claims: dict[Claim, Callable[[], None]] = {}

    def positions(self, topic: Topic, name: CursorName) -> dict[int, Offset] | None:
        """Where it stands in every partition; partitions it has not seen count from their start."""
        stored = self._backend.cursor(topic.name, name)
        if stored is None:
            return None
        starts = {n: self._backend.start_offset(PartitionId(topic.name, n)) for n in range(topic.config.partitions)}
        return {number: stored.get(number, start) for number, start in starts.items()}

    def describe(self, topic: Topic, name: CursorName) -> CursorDescription:
        positions = self.positions(topic, name)
        if positions is None:
            raise CursorNotFound(
                f"there is no cursor {name} on topic {topic.name}; a first read with that name makes it"
            )
        described = []
        for number, offset in positions.items():
            partition = PartitionId(topic.name, number)
            end = self._backend.end_offset(partition)
            lag = end - max(offset, self._backend.start_offset(partition))
            described.append(CursorPosition(partition=number, offset=offset, end_offset=end, lag=max(0, lag)))
        total = sum(position.lag for position in described)
        return CursorDescription(topic=topic.name, name=name, lag=total, partitions=described)

    def advance(self, topic: Topic, name: CursorName, positions: Mapping[int, Offset]) -> asyncio.Future[None]:
        """Move forward to what was acknowledged; what is behind already stays."""
        current = self._backend.cursor(topic.name, name)
        if current is None:
            raise CursorNotFound(
                f"there is no cursor {name} on topic {topic.name}; a first read with that name makes it"
            )
        forward: dict[int, Offset] = {}
        for number, offset in positions.items():
            self._check(topic, number, offset)
            if offset > current.get(number, Offset(-1)):
                forward[number] = offset
        return self._backend.set_cursor(topic.name, name, forward, only_forward=True)

    def make(self, topic: Topic, name: CursorName, positions: Mapping[int, Offset]) -> asyncio.Future[None]:
        """A new cursor; where it is made twice at once, both end up at the same place or later."""
        self.check(topic, positions)
        return self._backend.set_cursor(topic.name, name, positions, only_forward=True)

    def seek(self, topic: Topic, name: CursorName, positions: Mapping[int, Offset]) -> asyncio.Future[None]:
        """Move anywhere: somebody asked for it. Whoever reads through it now has to begin again."""
        self.check(topic, positions)
        # First, for whoever is evicted stores how far it came.
        self.evict((topic.name, name))
        return self._backend.set_cursor(topic.name, name, positions)

    def claim(self, claim: Claim, on_lost: Callable[[], None]) -> None:
        """Make a connection the one that reads through a cursor; the one before is told that it lost it."""
        self.evict(claim)
        self._claims[claim] = on_lost

    def evict(self, claim: Claim) -> None:
        """Take a cursor from the connection that reads through it, if there is one."""
        on_lost = self._claims.pop(claim, None)
        if on_lost is not None:
            on_lost()

    def release(self, claim: Claim, on_lost: Callable[[], None]) -> None:
        if self._claims.get(claim) == on_lost:
            del self._claims[claim]

    def check(self, topic: Topic, positions: Mapping[int, Offset]) -> None:
        """Raises `PartitionNotFound`, `BadValue` for a place that is not in the topic."""
        for number, offset in positions.items():
            self._check(topic, number, offset)

    def _check(self, topic: Topic, number: int, offset: Offset) -> None:
        if not 0 <= number < topic.config.partitions:
            raise PartitionNotFound(f"topic {topic.name} has no partition {number}")
        end = self._backend.end_offset(PartitionId(topic.name, number))
        if not 0 <= offset <= end:
            raise BadValue(f"offset {offset} is not in partition {number} of {topic.name}, which ends at {end}")

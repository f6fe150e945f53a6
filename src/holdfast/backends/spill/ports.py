"""What a spill needs of a store beside the seam: to store exactly once what it kept, whatever happened before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.model.ids import PartitionId
from holdfast.model.messages import BatchPublished
from holdfast.wire.push_batch import TimedPush

# What is stored in a partition: a record batch, or the columns of which one would be made.
Batch = tuple[PartitionId, bytearray | TimedPush]


class Target(Protocol):
    """All that wait raise `Unavailable`: then nothing is promised, and `progress` says what was done."""

    @property
    def needs_ids(self) -> bool:
        """Whether a message without an id could be stored twice: then each gets one before it is first tried."""
        ...

    def mark(self, partition: PartitionId) -> str | None:
        """Noted with a push that is about to be tried, should its fate stay unknown."""
        ...

    def abandon(self) -> dict[asyncio.Future[BatchPublished], str | None]:
        """Give up on all that is under way, where that is possible: with the mark of what may have stored each."""
        ...

    async def reach(self) -> None:
        """Be connected for writes: that may take longer than a push is given."""
        ...

    async def probe(self) -> None:
        """See whether the store takes writes, once it is reached."""
        ...

    async def committed(self, marks: Iterable[str], ids: dict[str, list[str]]) -> set[str]:
        """Of messages whose fate is unknown: the marks, or the ids, of those that are stored.

        `ids` has, by mark, the ids of the messages that carry it.
        """
        ...

    async def progress(self, file: UUID) -> int:
        """How many lines of a file are stored."""
        ...

    async def store(self, file: UUID, number: int, batches: Sequence[Batch]) -> int:
        """Store batches; from then on `number` lines of the file are. Raises `CallerError` for what it never takes.

        Returns how many of the messages were there already, as their ids tell.
        """
        ...

    async def forget(self, files: Sequence[UUID]) -> None:
        """They are gone, durably."""
        ...

    def announce(self, oldest_ms: int | None) -> None:
        """Tell other brokers of the time of the oldest message kept here."""
        ...

    async def horizon_ms(self) -> float:
        """Up to which time messages may be stored now: other brokers may keep older ones."""
        ...

    async def held_up_by(self) -> str:
        """Who that is, for people."""
        ...

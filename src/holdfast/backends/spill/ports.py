"""What a spill needs of a store beside the seam: to store exactly once what it kept, whatever happened before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.model.ids import PartitionId
from holdfast.model.messages import BatchPublished
from holdfast.model.spill import Chunk, Others, Rank
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

    async def unsettled(self, file: UUID) -> int:
        """The number with which a step of a file was begun that nobody knows the end of; 0 where there is none."""
        ...

    async def store(
        self, file: UUID, number: int, batches: Sequence[Batch], others: Sequence[tuple[UUID, int, int]] = ()
    ) -> int:
        """Store batches; from then on `number` lines of the file are. Raises `CallerError` for what it never takes.

        `others`: files of other brokers, of which lines are among the batches: from which line on, and up to which.
        Raises `LinesMoved` where another broker has stored some of these lines.

        Returns how many of the messages were there already, as their ids tell.
        """
        ...

    async def forget(self, files: Sequence[UUID]) -> None:
        """They are gone, durably."""
        ...

    def announce(self, oldest_ms: int | None) -> None:
        """Tell other brokers of the time of the oldest message kept here."""
        ...

    @property
    def rank(self) -> Rank:
        """Where this broker stands among others that kept messages at the same time."""
        ...

    async def others(self, file: UUID) -> Others:
        """The other brokers that keep messages, and how far this broker's file is."""
        ...

    async def offer(self, chunk: Chunk, lines: bytes, oldest_ms: int, done: int) -> None:
        """Let other brokers store lines of this one. `oldest_ms`: of the line at `done`, the first not stored."""
        ...

    async def withdraw(self) -> None:
        """Let other brokers store nothing of this one any more, until something is offered again."""
        ...

    async def offered(self, rank: Rank, chunk: Chunk) -> bytes | None:
        """The lines that the broker of that rank offers; none where they are not there any more."""
        ...

    async def held_up_by(self) -> str:
        """Who that is, for people."""
        ...

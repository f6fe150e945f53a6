"""What is kept on a broker's disk while its store is away, and what brokers of one store tell each other of it."""

from __future__ import annotations

from typing import Annotated, NamedTuple
from uuid import UUID

from msgspec import Meta, Struct

from holdfast.model.errors import NotStored

# A broker's name, and an id in case two have the same one. Of messages kept at the same time, those of the lower rank
# are stored first.
Rank = tuple[str, str]


class FileBuffer(Struct, frozen=True, kw_only=True):
    """What is kept on the broker's disk while its store is away (the spill), in the words of Queen MQ."""

    pending: Annotated[int, Meta(description="messages that wait to be stored")]
    flushed: Annotated[int, Meta(description="messages stored after they had waited, since the start")]
    failed: Annotated[int, Meta(description="lines in failed/")]
    db_healthy: Annotated[bool, Meta(description="whether the store takes messages now")]


class LinesMoved(NotStored):
    """Another broker stored lines of the same file first. Ask for the file's progress and go on from there."""


class Chunk(NamedTuple):
    """Lines of a file, numbers `first` to `end`, that a broker lets others store. `newest_ms`: of the last message."""

    file: UUID
    first: int
    end: int
    newest_ms: int


class OtherSpill(NamedTuple):
    """What another broker keeps.

    No message is older than `oldest_ms`. `chunks` follow on each other; `done` lines of their file are stored.
    """

    rank: Rank
    oldest_ms: int
    chunks: tuple[Chunk, ...] = ()
    done: int = 0

    @property
    def end(self) -> int:
        return self.chunks[-1].end if self.chunks else 0

    @property
    def offered(self) -> tuple[Chunk, ...]:
        """The chunks that are not stored yet."""
        return tuple(chunk for chunk in self.chunks if chunk.end > self.done)


class Others(NamedTuple):
    """The other brokers of a store that keep messages, as the store knew them at one moment.

    `is_known`: false while a broker may be missing that was there before the store was lost.
    `done`: how many lines of one's own file are stored; none where no other broker can have stored any.
    """

    is_known: bool
    spills: tuple[OtherSpill, ...] = ()
    done: int | None = None

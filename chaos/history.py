"""What clients did and were told, and what the nodes serve at the end: all that the checker looks at.

A message is known by its value, which is `<producer>/<sequence>` with some padding behind it and is never used
twice. Times are seconds of one monotonic clock, that of the process in which all clients run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# What a publisher knows of a message. `refused` is a broker that said that nothing was stored, which must be true;
# `unknown` is everything that went wrong otherwise: it may be there, once.
Fate = Literal["acknowledged", "unknown", "refused"]


class Place(NamedTuple):
    """One partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(slots=True)
class Sent:
    """One message as its publisher knows it. Text publishers are told neither partition nor offset."""

    producer: str
    sequence: int
    topic: str
    value: str
    id: str | None
    sent_at: float
    sent_ms: int
    fate: Fate = "unknown"
    why: str = ""
    answered_at: float = 0.0
    place: Place | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One message as a subscriber got it. Offsets of one session follow each other without a gap."""

    reader: str
    session: int
    node: str
    place: Place
    offset: int
    value: str
    at: float
    at_ms: int


@dataclass(frozen=True, slots=True)
class TailRead:
    """A read of a partition up to its end: everything below `end` was shown, and nothing above."""

    reader: str
    node: str
    place: Place
    began: float
    ended: float
    end: int


@dataclass(frozen=True, slots=True)
class CursorEvent:
    """A cursor was moved to `offset` (`moved`, acknowledged by the broker) or found standing there (`found`)."""

    name: str
    node: str
    place: Place
    kind: Literal["moved", "found"]
    began: float
    ended: float
    offset: int


class Record(NamedTuple):
    """One stored message; `id` is empty where the publisher gave none."""

    offset: int
    id: str
    value: str


@dataclass(frozen=True, slots=True)
class Served:
    """All that one node has of one partition when everything is over; `digest` is of the stored bytes."""

    node: str
    place: Place
    digest: str
    records: tuple[Record, ...]


@dataclass(slots=True)
class History:
    """One run. `stalls` are things that should have gone on and did not; they come from whoever waited."""

    # All nodes there are: one that serves nothing is missed.
    members: tuple[str, ...] = ()
    sent: list[Sent] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    tails: list[TailRead] = field(default_factory=list)
    cursors: list[CursorEvent] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    stalls: list[str] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        return sum(each.fate == "acknowledged" for each in self.sent)

    def nodes(self) -> list[str]:
        return sorted({*self.members, *(each.node for each in self.served)})

    def by_place(self) -> dict[Place, list[Served]]:
        found: dict[Place, list[Served]] = {}
        for each in sorted(self.served, key=lambda one: (one.place, one.node)):
            found.setdefault(each.place, []).append(each)
        return found


def named(value: bytes) -> str:
    """The part of a stored value that tells one message from all others."""
    return value.split(b" ", 1)[0].decode("ascii", "backslashreplace")

"""What clients did and were told, and what nodes serve at the end, in columns: all that the checker looks at.

A message takes some forty bytes, a delivery some thirty. A message is known by its value, `<producer>/<sequence>` with
some padding behind it, which is never used twice; in here that is one number: the producer's place in
`History.producers`, times 2^40, plus the sequence. Times are seconds of one monotonic clock, that of the process in
which all clients run.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from holdfast.wire.record_batch import decode_values, header, split_batches

SEQUENCES_MAX: Final = 1 << 40
# What a publisher knows of a message. `REFUSED`: a broker said that nothing was stored, which must be true.
# `UNKNOWN`: everything that went wrong otherwise; it may be there, once.
UNKNOWN, ACKNOWLEDGED, REFUSED = 0, 1, 2
# Text publishers are not told where a message stands.
NOWHERE: Final = -1
# A message of a topic whose workload keeps a book of its own.
FOREIGN: Final = -(1 << 62)


class Place(NamedTuple):
    """One partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class TailRead(NamedTuple):
    """A read of a partition up to its end: everything below `end` was shown, and nothing above."""

    reader: str
    node: str
    place: Place
    began: float
    ended: float
    end: int


class CursorEvent(NamedTuple):
    """A cursor was moved to `offset` (`moved`, acknowledged by the broker) or found standing there (`found`)."""

    name: str
    node: str
    place: Place
    kind: Literal["moved", "found"]
    began: float
    ended: float
    offset: int


class Producer:
    """What one publisher sent to one topic; the index of every column is the sequence."""

    def __init__(self, name: str, number: int, topic: str) -> None:
        self.name = name
        self.number = number
        self.topic = topic
        self.sent_at = array("d")
        self.answered_at = array("d")
        self.fate = array("b")
        self.place = array("i")
        self.offset = array("q")
        self.acknowledged = 0
        self.errors: dict[str, int] = {}

    def send(self, count: int, at: float) -> range:
        """Take note of so many messages before they are sent; their sequences."""
        first = len(self.sent_at)
        self.sent_at.extend([at] * count)
        self.answered_at.extend([0.0] * count)
        self.fate.extend([UNKNOWN] * count)
        self.place.extend([NOWHERE] * count)
        self.offset.extend([NOWHERE] * count)
        return range(first, first + count)

    def acknowledge(self, sequence: int, at: float, place: int = NOWHERE, offset: int = NOWHERE) -> None:
        self.fate[sequence] = ACKNOWLEDGED
        self.answered_at[sequence] = at
        self.place[sequence] = place
        self.offset[sequence] = offset
        self.acknowledged += 1

    def refuse(self, sequence: int) -> None:
        """A broker said that nothing was stored, which must be true."""
        self.fate[sequence] = REFUSED

    def failed(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class Deliveries:
    """What one subscriber got, in the order in which it came.

    Offsets of one session follow each other without a gap. Where `all_of` is a topic, the subscriber is promised every
    acknowledged message of it exactly once, over all its sessions.
    """

    def __init__(self, reader: str, node: str, *, all_of: str = "") -> None:
        self.reader = reader
        self.node = node
        self.all_of = all_of
        self.session = array("i")
        self.place = array("i")
        self.offset = array("q")
        self.message = array("q")
        self.at = array("d")

    def __len__(self) -> int:
        return len(self.offset)

    def got(self, session: int, place: int, offset: int, message: int, at: float) -> None:
        self.session.append(session)
        self.place.append(place)
        self.offset.append(offset)
        self.message.append(message)
        self.at.append(at)


class Content(NamedTuple):
    """All messages of one copy of a partition."""

    offsets: array[int]
    messages: array[int]


class Copy(NamedTuple):
    """What one node serves of one partition; copies with the same digest share their content."""

    node: str
    place: int
    digest: str
    content: Content


@dataclass(slots=True)
class History:
    """One run. `stalls` are things that should have gone on and did not; they come from whoever waited."""

    # All nodes there are: one that serves nothing is missed.
    members: tuple[str, ...] = ()
    producers: list[Producer] = field(default_factory=list)
    deliveries: list[Deliveries] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    tails: list[TailRead] = field(default_factory=list)
    cursors: list[CursorEvent] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    # Nodes that were seen to lead, by group and term.
    leaders: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    stalls: list[str] = field(default_factory=list)
    # Topics of workloads that keep books of their own: for these only the copies of the nodes are compared.
    foreign_topics: set[str] = field(default_factory=set)
    # Values that no producer of ours made; a message of this kind is -1 minus its index here.
    strange: list[str] = field(default_factory=list)
    # Added to a time of this history it makes a time of day.
    epoch_s: float = field(default_factory=lambda: time.time() - time.monotonic())
    _producer_numbers: dict[bytes, int] = field(default_factory=dict)
    _place_numbers: dict[Place, int] = field(default_factory=dict)

    def producer(self, name: str, topic: str) -> Producer:
        made = Producer(name, len(self.producers), topic)
        assert name.encode() not in self._producer_numbers, "names of producers are not used twice"
        self._producer_numbers[name.encode()] = made.number
        self.producers.append(made)
        return made

    def reader(self, name: str, node: str, *, all_of: str = "") -> Deliveries:
        made = Deliveries(name, node, all_of=all_of)
        self.deliveries.append(made)
        return made

    def place(self, topic: str, partition: int) -> int:
        where = Place(topic, partition)
        number = self._place_numbers.get(where)
        if number is None:
            number = self._place_numbers[where] = len(self.places)
            self.places.append(where)
        return number

    def message(self, value: bytes) -> int:
        """The number of the message that has this value."""
        name, _, rest = value.partition(b"/")
        number = self._producer_numbers.get(name)
        digits = rest.partition(b" ")[0]
        if number is None or not digits.isdigit():
            self.strange.append(value[:80].decode("ascii", "backslashreplace"))
            return -len(self.strange)
        return number * SEQUENCES_MAX + int(digits)

    def named(self, message: int) -> str:
        if message == FOREIGN:
            return "a message of another load"
        if message < 0:
            return self.strange[-message - 1]
        number, sequence = divmod(message, SEQUENCES_MAX)
        return f"{self.producers[number].name}/{sequence}"

    @property
    def sent(self) -> int:
        return sum(len(each.sent_at) for each in self.producers)

    @property
    def acknowledged(self) -> int:
        return sum(each.acknowledged for each in self.producers)

    @property
    def delivered(self) -> int:
        return sum(len(each) for each in self.deliveries)

    # --- what nodes serve ----------------------------------------------------------------------------

    def add_stored(self, node: str, place: Place, pieces: Sequence[bytes]) -> None:
        """Stored batches of a partition as a node serves them; copies with the same bytes are decoded and kept once."""
        number = self.place(*place)
        digest = hashlib.sha256(b"".join(pieces)).hexdigest()
        same = next((one.content for one in self.copies if (one.place, one.digest) == (number, digest)), None)
        self.add_copy(
            node, number, digest, same or self._decoded(pieces, is_foreign=place.topic in self.foreign_topics)
        )

    def _decoded(self, pieces: Sequence[bytes], *, is_foreign: bool) -> Content:
        made = content((), ())
        for data in pieces:
            for batch in split_batches(data):
                values = decode_values(batch)
                first = header(batch).base_offset
                made.offsets.extend(range(first, first + len(values)))
                made.messages.extend([FOREIGN] * len(values) if is_foreign else map(self.message, values))
        return made

    def add_values(self, node: str, place: Place, values: Iterable[bytes]) -> None:
        """The values of a partition in their order, where they are kept in something else than a broker."""
        self.add_rows(node, place, list(enumerate(values)))

    def add_rows(self, node: str, place: Place, rows: Sequence[tuple[int, bytes]]) -> None:
        """The same with their offsets."""
        made = content([offset for offset, _ in rows], [self.message(value) for _, value in rows])
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        self.add_copy(node, self.place(*place), digest, made)

    def add_copy(self, node: str, place: int, digest: str, content: Content) -> None:
        self.copies.append(Copy(node, place, digest, content))

    def copies_of(self, place: int) -> list[Copy]:
        return sorted((one for one in self.copies if one.place == place), key=lambda one: one.node)

    def served_places(self) -> list[int]:
        return sorted({one.place for one in self.copies})


def content(offsets: Iterable[int], messages: Sequence[int]) -> Content:
    return Content(array("q", offsets), array("q", messages))

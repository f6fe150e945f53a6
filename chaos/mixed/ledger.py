"""What clients did and were told, in columns: a message takes some forty bytes, a delivery some thirty.

The same as `chaos.history`, for runs of millions. A message is known by its value, `<producer>/<sequence>` with some
padding behind it; in here that is one number: the producer's place in `Ledger.producers`, times 2^40, plus the
sequence. What is rare (reads to the end, cursors, stalls) is kept as there. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chaos.asking import BATCHES, request
from chaos.history import History, Place
from holdfast.wire.record_batch import decode_values, header, split_batches

SEQUENCES_MAX: Final = 1 << 40
UNKNOWN, ACKNOWLEDGED, REFUSED = 0, 1, 2
# Text publishers are not told where a message stands.
NOWHERE: Final = -1
# A message of a topic whose load keeps a book of its own.
FOREIGN: Final = -(1 << 62)
_READ_BYTES: Final = 4_000_000


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
    """What one subscriber got, in the order in which it came."""

    def __init__(self, reader: str, node: str) -> None:
        self.reader = reader
        self.node = node
        self.session = array("i")
        self.place = array("i")
        self.offset = array("q")
        self.message = array("q")
        self.at = array("d")
        self.errors: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.offset)

    def got(self, session: int, place: int, offset: int, message: int, at: float) -> None:
        self.session.append(session)
        self.place.append(place)
        self.offset.append(offset)
        self.message.append(message)
        self.at.append(at)

    def failed(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


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
class Ledger:
    """One run."""

    members: tuple[str, ...] = ()
    producers: list[Producer] = field(default_factory=list)
    deliveries: list[Deliveries] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    # Reads to the end, cursors and stalls.
    rare: History = field(default_factory=History)
    copies: list[Copy] = field(default_factory=list)
    # Who was seen to lead, by group and term.
    leaders: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    # Topics of loads that keep books of their own: only that all nodes serve the same is looked at here.
    foreign_topics: set[str] = field(default_factory=set)
    # Values that no producer of ours made; a message of this kind is -1 minus its place here.
    strange: list[str] = field(default_factory=list)
    _producer_numbers: dict[bytes, int] = field(default_factory=dict)
    _place_numbers: dict[tuple[str, int], int] = field(default_factory=dict)

    def producer(self, name: str, topic: str) -> Producer:
        made = Producer(name, len(self.producers), topic)
        assert name.encode() not in self._producer_numbers, "names of producers are not used twice"
        self._producer_numbers[name.encode()] = made.number
        self.producers.append(made)
        return made

    def reader(self, name: str, node: str) -> Deliveries:
        made = Deliveries(name, node)
        self.deliveries.append(made)
        return made

    def place(self, topic: str, partition: int) -> int:
        number = self._place_numbers.get((topic, partition))
        if number is None:
            number = self._place_numbers[topic, partition] = len(self.places)
            self.places.append(Place(topic, partition))
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

    def collect(self, node: str, address: str, place: Place, timeout_s: float = 15.0) -> None:
        """Read all that a node has of a partition, up to an end that it made sure of. Raises `Refused`.

        Equal copies, as their digest says, are decoded and kept once.
        """
        number = self.place(*place)
        digest = hashlib.sha256()
        pieces: list[bytes] = []
        offset = 0
        path = f"/v1/topics/{place.topic}/partitions/{place.partition}/messages"
        while True:
            query = f"?offset={offset}&max_bytes={_READ_BYTES}"
            data = request(address, "GET", path + query, accept=BATCHES, timeout_s=timeout_s).body
            if not data:
                break
            digest.update(data)
            pieces.append(data)
            offset = header(split_batches(data)[-1]).next_offset
        same = next((one for one in self.copies if one.place == number and one.digest == digest.hexdigest()), None)
        is_foreign = place.topic in self.foreign_topics
        self.add_copy(
            node, number, digest.hexdigest(), self._decoded(pieces, is_foreign) if same is None else same.content
        )

    def _decoded(self, pieces: list[bytes], is_foreign: bool) -> Content:
        made = content((), ())
        for data in pieces:
            for batch in split_batches(data):
                values = decode_values(batch)
                first = header(batch).base_offset
                made.offsets.extend(range(first, first + len(values)))
                made.messages.extend([FOREIGN] * len(values) if is_foreign else map(self.message, values))
        return made

    def add_copy(self, node: str, place: int, digest: str, content: Content) -> None:
        self.copies.append(Copy(node, place, digest, content))

    def copies_of(self, place: int) -> list[Copy]:
        return sorted((one for one in self.copies if one.place == place), key=lambda one: one.node)

    def served_places(self) -> list[int]:
        return sorted({one.place for one in self.copies})


def content(offsets: Iterable[int], messages: Sequence[int]) -> Content:
    return Content(array("q", offsets), array("q", messages))

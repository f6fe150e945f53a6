"""Lines of the newest deliveries, shared by subscribers: made once, and written in pieces.

A batch is read and made lines of as a whole, and may have 16 MiB of them. A subscriber is given a piece at a time and
keeps nothing but its offset; the lines stay here, for the next piece and for others at the same place. Where they are
gone when a subscriber comes for its next piece, what is stored is read again.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from holdfast.broker.follower import Delivery
from holdfast.broker.processing import source_id
from holdfast.broker.shared_pieces import SharedPieces
from holdfast.model.ids import Offset
from holdfast.model.limits import MIB
from holdfast.model.topics import Topic
from holdfast.wire import record_batch
from holdfast.wire.text import Dialect, lines_with_ids

# Two batches of the largest size: a subscriber that is slow and one at the end do not take them from each other.
_CACHE_BYTES_MAX: Final = 32 * MIB


class Place(NamedTuple):
    """Where a subscriber stands, and how it wants its lines."""

    topic: str
    # Whose messages it gets: another topic of that name is another place.
    source: Topic | None
    partition: int
    offset: Offset
    # How often the partition's end had gone back: its offsets stand for other messages since.
    cuts: int = 0
    with_ids: bool = False


class Piece(NamedTuple):
    """Whole lines, how many they are, and the offset behind them."""

    lines: bytes
    messages: int
    next_offset: Offset


class _Entry:
    """The lines of one delivery."""

    __slots__ = ("count", "first_lines", "lines", "next_offset", "offsets")

    def __init__(self, lines: bytes, count: int, next_offset: Offset) -> None:
        self.lines = lines
        self.count = count
        self.next_offset = next_offset
        # For each batch its first line here, and the offset of that.
        self.first_lines: list[int] = []
        self.offsets: list[Offset] = []

    def offset_of(self, line: int) -> Offset:
        if line == self.count:
            return self.next_offset
        batch = bisect_right(self.first_lines, line) - 1
        return Offset(self.offsets[batch] + line - self.first_lines[batch])


class LineCache:
    """The lines that were made last."""

    def __init__(self, dialect: Dialect, *, is_epoch_told: bool = False, is_source_told: bool = False) -> None:
        self._dialect = dialect
        # Whether what a processor made goes by the id of the message it was made of.
        self._is_source_told = is_source_told
        # Whether ids that are made here hold the epoch: see `record_batch.default_id`.
        self._is_epoch_told = is_epoch_told
        # Where pieces begin: the byte and the line.
        self._shared: SharedPieces[Place, _Entry, tuple[int, int]] = SharedPieces(_CACHE_BYTES_MAX)

    def __len__(self) -> int:
        return len(self._shared)

    def find(self, place: Place, bytes_max: int) -> Piece | None:
        """The piece that begins at `place`, if its lines are here: up to `bytes_max`, and at least one line."""
        found = self._shared.find(place)
        if found is None:
            return None
        entry, (at, line) = found
        lines = entry.lines
        if len(lines) - at <= bytes_max:
            if not at:
                return Piece(lines, entry.count, entry.next_offset)
            return Piece(lines[at:], entry.count - line, entry.next_offset)
        end = lines.rfind(b"\n", at, at + bytes_max) + 1 or lines.index(b"\n", at + bytes_max) + 1
        count = lines.count(b"\n", at, end)
        next_offset = entry.offset_of(line + count)
        if end < len(lines):
            self._shared.begin(place._replace(offset=next_offset), entry, (end, line + count))
        return Piece(lines[at:end], count, next_offset)

    def make(self, place: Place, delivery: Delivery, bytes_max: int) -> Piece:
        """The first piece of a delivery that begins at `place`; the others are kept for a while."""
        entry = self._made(place, delivery)
        self._shared.keep(entry, len(entry.lines))
        self._shared.begin(place, entry, (0, 0))
        piece = self.find(place, bytes_max)
        assert piece is not None, "the newest lines are kept"
        return piece

    def _made(self, place: Place, delivery: Delivery) -> _Entry:
        skip, count = delivery.skip, 0
        first_lines, offsets = [], []
        values: list[bytes] = []
        messages: list[tuple[str, bytes]] = []
        for batch in delivery.batches:
            first_lines.append(count)
            offsets.append(Offset(record_batch.header(batch).base_offset + skip))
            if place.with_ids:
                messages += self._ids_and_values(batch, delivery.partition)[skip:]
            else:
                decoded = record_batch.decode_values(batch)
                values += decoded[skip:] if skip else decoded
            count = len(values) + len(messages)
            skip = 0
        topic = place.topic.encode()
        lines = lines_with_ids(topic, messages) if place.with_ids else self._dialect.lines(topic, values)
        entry = _Entry(lines, count, delivery.next_offset)
        entry.first_lines, entry.offsets = first_lines, offsets
        return entry

    def _ids_and_values(self, batch: memoryview, partition: int) -> list[tuple[str, bytes]]:
        """What a subscriber with ids gets of a batch; without a publisher's id in it, no record is looked into."""
        if record_batch.has_ids(batch):
            messages = record_batch.decode(batch, partition, is_epoch_told=self._is_epoch_told)
            if self._is_source_told:
                return [(source_id(message) or message.id, message.value) for message in messages]
            return [(message.id, message.value) for message in messages]
        head = record_batch.header(batch)
        epoch = head.leader_epoch if self._is_epoch_told else None
        values = enumerate(record_batch.decode_values(batch), head.base_offset)
        return [(record_batch.default_id(partition, Offset(offset), epoch), value) for offset, value in values]

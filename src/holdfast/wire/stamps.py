"""The mark of a transaction on a batch: which commit it belongs to, and its place among that commit's batches.

It stands in fields of the batch's header that Kafka uses for the same purpose (see `record_batch`)::

    producer id     i64   bit 62 set; bits 48-61: coordinator; bits 0-47: decision
    producer epoch  i16   1 where everything before it is known to be stored, else 0
    base sequence   i32   counts the batches of one commit in one partition, from 0

`coordinator` is the partition of the topic of commits, `decision` the offset there of the record that decided. So of
two stamps of one coordinator the later one has the higher decision, and is stored only when the earlier is complete.
While a batch is under way, its base offset says from where on in the log it can be stored: no batch of its commit
stands below that. Its leader epoch is a sum of the topic's token: a topic of the same name that was made since is
another. The log overwrites both. Somebody may publish what was read from another topic: `cleared` takes the mark off.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from holdfast.model.ids import Offset
from holdfast.wire.record_batch import CRC_FROM, Buffer

_STAMP_BIT: Final = 1 << 62
_COORDINATOR_SHIFT: Final = 48
_DECISION_MASK: Final = (1 << _COORDINATOR_SHIFT) - 1
_COORDINATOR_MASK: Final = (1 << (62 - _COORDINATOR_SHIFT)) - 1
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_FLOOR: Final = struct.Struct(">q")
_TOPIC: Final = struct.Struct(">I")
_TOPIC_AT: Final = 12
_CRC: Final = struct.Struct(">I")


class Stamp(NamedTuple):
    """One batch of one commit in one partition."""

    coordinator: int
    decision: int
    sequence: int
    # Whoever sends it knows that all before it of its commit is stored, or was lost: it waits for nothing.
    is_next: bool = False


def stamp(batch: bytearray, mark: Stamp, floor: Offset, token: str) -> None:
    """Write the mark, the floor and whose topic is meant into a batch, and sum it up anew."""
    producer_id = _STAMP_BIT | mark.coordinator << _COORDINATOR_SHIFT | mark.decision
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, int(mark.is_next), mark.sequence)
    _FLOOR.pack_into(batch, 0, floor)
    _TOPIC.pack_into(batch, _TOPIC_AT, crc32c(token.encode()))
    _CRC.pack_into(batch, CRC_FROM - _CRC.size, crc32c(memoryview(batch)[CRC_FROM:]))


def cleared(batch: Buffer) -> bytearray:
    """The same batch without a mark."""
    plain = bytearray(batch)
    _PRODUCER.pack_into(plain, _PRODUCER_AT, -1, -1, -1)
    _CRC.pack_into(plain, CRC_FROM - _CRC.size, crc32c(memoryview(plain)[CRC_FROM:]))
    return plain


def is_stamped(batch: Buffer) -> bool:
    producer_id: int = _PRODUCER.unpack_from(batch, _PRODUCER_AT)[0]
    return producer_id > 0 and bool(producer_id & _STAMP_BIT)


def stamp_of(batch: Buffer) -> Stamp | None:
    """The mark of a batch; none where it is not of a transaction."""
    producer_id, epoch, sequence = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
    if producer_id <= 0 or not producer_id & _STAMP_BIT:
        return None
    coordinator = producer_id >> _COORDINATOR_SHIFT & _COORDINATOR_MASK
    return Stamp(coordinator, producer_id & _DECISION_MASK, sequence, epoch == 1)


def floor_of(batch: Buffer) -> Offset:
    """From where on a batch that is under way can be stored."""
    return Offset(_FLOOR.unpack_from(batch, 0)[0])


def is_for_topic(batch: Buffer, token: str) -> bool:
    """Whether a batch that is under way is meant for the topic with this token."""
    return bool(_TOPIC.unpack_from(batch, _TOPIC_AT)[0] == crc32c(token.encode()))

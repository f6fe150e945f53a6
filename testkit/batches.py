"""Record batches for tests, built and read by aiokafka, which shares no code with Holdfast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c

from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder, record_batch

CRC_AT = 17
ROOM_BYTES = 1 << 26


class ForeignRecord(NamedTuple):
    """A record as aiokafka reads it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def foreign_batch(records: Sequence[ForeignRecord]) -> bytes:
    """A batch as aiokafka writes it."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, ROOM_BYTES)
    for record in records:
        added = builder.append(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        assert added is not None, "the batch has no room for this record"
    return bytes(builder.build())


def foreign_records(data: bytes) -> list[ForeignRecord]:
    """What aiokafka reads from one or more batches; checks that their CRCs hold."""
    found = []
    batches = MemoryRecords(bytes(data))
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc(), "aiokafka finds another CRC"
        found += [ForeignRecord(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    return found


def foreign_values(data: bytes) -> list[bytes | None]:
    return [record.value for record in foreign_records(data)]


def resealed(batch: bytes | bytearray) -> bytes:
    """The batch with a CRC that matches what is in it now: a liar's work, not a broken cable's."""
    sealed = bytearray(batch)
    crc = crc32c(bytes(sealed[record_batch.CRC_FROM :]))
    sealed[CRC_AT : CRC_AT + 4] = crc.to_bytes(4, "big")
    return bytes(sealed)


def values_batch(*values: bytes, timestamp_ms: int = 1_000) -> bytearray:
    return batch_builder.build_values(list(values), timestamp_ms)


def placed_batch(base_offset: int, term: int, *values: bytes, timestamp_ms: int = 1_000) -> bytes:
    """A batch as a leader has stored it."""
    batch = values_batch(*values, timestamp_ms=timestamp_ms)
    record_batch.place(batch, Offset(base_offset), term)
    return bytes(batch)


def messages_batch(*messages: NewMessage, timestamp_ms: int = 1_000) -> bytearray:
    return batch_builder.build_batch(list(messages), timestamp_ms)


def values_of(batches: Sequence[bytes | bytearray | memoryview]) -> list[bytes]:
    """The values in batches as our decoder sees them, one record at a time."""
    return [record.value for batch in batches for record in record_batch.decode_records(batch)]

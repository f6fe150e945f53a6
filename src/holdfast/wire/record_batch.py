"""Kafka's public RecordBatch, version 2: the unit that is sent, replicated, stored and read.

All numbers are big-endian; lengths and deltas inside a record are zigzag varints::

    base offset      i64   0   given by the log, not covered by the CRC
    batch length     i32   8   bytes behind this field
    leader epoch     i32  12   given by the log, not covered by the CRC
    magic            i8   16   2
    crc              u32  17   CRC32C of everything from `attributes` on
    attributes       i16  21   bits 0-2: compression (ours: 0)
    last offset delta i32 23   count - 1
    base timestamp   i64  27   milliseconds
    max timestamp    i64  35   of the newest record; where records have ids, not before the batch arrived at its leader
    producer id, epoch, base sequence   i64 43, i16 51, i32 53   (-1: not idempotent)
    record count     i32  57
    records               61

    record: length, attributes i8, timestamp delta, offset delta, key length (-1: none), key,
            value length, value, header count, headers (key length, key, value length, value)

The broker treats a batch as opaque bytes; what is decoded here is decoded for front ends that speak
another format and, once, for batches that come from outside.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from holdfast.model.errors import BadBatch
from holdfast.model.ids import Offset, TimestampMs
from holdfast.model.limits import BATCH_BYTES_MAX, MESSAGES_AT_ONCE_MAX, MESSAGES_PER_BATCH_MAX
from holdfast.model.messages import Header, StoredId, StoredMessage
from holdfast.model.pauses import Paused, in_parts, without_pauses
from holdfast.wire import varint
from holdfast.wire.record_runs import plain_record, plain_stretch, run_of_equal_records, values_of_run

HEADER_BYTES = 61
# Bytes in front of what `batch length` counts.
LENGTH_PREFIX_BYTES = 12
# What the batch's own CRC does not cover: base offset, length, leader epoch, magic.
UNCOVERED_BYTES = 17
CRC_FROM = 21
# The record header that carries a message's id; searched for as bytes to see whether a batch has any.
ID_HEADER = "holdfast-id"
# Without its length: a number can be written in more than one way.
ID_MARKER = ID_HEADER.encode()

_HEADER = struct.Struct(">qiibIhiqqqhii")
# Up to max timestamp: what is needed of a batch that was checked when it came in.
HEAD = struct.Struct(">qiibIhiqq")
_PLACE = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
# last offset delta, base timestamp, max timestamp
_EXTENT = struct.Struct(">iqq")
_EXTENT_AT = 23
_COMPRESSION_MASK = 0x07
_CONTROL_MASK = 0x20
# How many records to decode one by one after a run of equal records turned out not to be one.
_RUN_BACKOFF = 64

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The fields in front of the records."""

    base_offset: Offset
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: TimestampMs
    max_timestamp_ms: TimestampMs
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return LENGTH_PREFIX_BYTES + self.batch_length

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)


class Extremes(NamedTuple):
    """A batch that was checked: how long its largest value is, and the times between which all those in it are."""

    head: BatchHeader
    largest_value_bytes: int
    earliest_ms: TimestampMs
    latest_ms: TimestampMs


class Record(msgspec.Struct, frozen=True):
    """One record as it stands in a batch, before it is a message for a reader."""

    timestamp_delta: int
    key: bytes | None
    value: bytes
    headers: list[Header]


def header(batch: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; `BadBatch` if it is not there whole."""
    if len(batch) - position < HEADER_BYTES:
        raise BadBatch(f"a batch has at least {HEADER_BYTES} bytes, here are {len(batch) - position}")
    return BatchHeader._make(_HEADER.unpack_from(batch, position))


def crc_matches(batch: Buffer, head: BatchHeader) -> bool:
    """Whether the bytes are the ones the sender summed up."""
    return crc32c(memoryview(batch)[CRC_FROM : head.size]) == head.crc


def extent(batch: Buffer) -> tuple[int, TimestampMs]:
    """How many offsets a batch takes and the time of its newest message: all that appending needs to know."""
    last_offset_delta, _, newest_ms = _EXTENT.unpack_from(batch, _EXTENT_AT)
    return last_offset_delta + 1, newest_ms


def place(batch: bytearray, base_offset: Offset, leader_epoch: int) -> None:
    """Write the batch's place in the log into it; its CRC does not cover either field."""
    _PLACE.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, LENGTH_PREFIX_BYTES, leader_epoch)


def summed(batch: Buffer) -> bytearray:
    """The same batch with its CRC written into it, for one that came without."""
    whole = bytearray(batch)
    if len(whole) < HEADER_BYTES:
        raise BadBatch(f"a batch has at least {HEADER_BYTES} bytes, here are {len(whole)}")
    _CRC.pack_into(whole, CRC_FROM - _CRC.size, crc32c(memoryview(whole)[CRC_FROM:]))
    return whole


def split_batches(data: Buffer) -> list[memoryview]:
    """Whole batches that stand one behind the other; `BadBatch` if the last one is cut off."""
    view = memoryview(data)
    batches = []
    position = 0
    size = len(view)
    while position < size:
        if size - position < HEADER_BYTES:
            raise BadBatch(f"a batch has at least {HEADER_BYTES} bytes, here are {size - position}")
        (batch_length,) = _LENGTH.unpack_from(view, position + _LENGTH_AT)
        end = position + LENGTH_PREFIX_BYTES + batch_length
        if batch_length < HEADER_BYTES - LENGTH_PREFIX_BYTES or end > size:
            raise BadBatch(f"batch length {batch_length} does not fit the {size - position} bytes left")
        batches.append(view[position:end])
        position = end
    return batches


def checked(batch: Buffer) -> tuple[BatchHeader, list[bytes]]:
    """Check a batch that came from outside, every record of it; returns its header and its values."""
    head = _checked_header(batch)
    return head, _values(bytes(batch), head.record_count)


def checked_largest(batch: Buffer) -> Extremes:
    """The same for who needs no values."""
    return without_pauses(checking_largest(batch))


def checking_largest(batch: Buffer) -> Paused[Extremes]:
    """The same, with a pause after as many messages as others may wait for."""
    head = _checked_header(batch)
    largest, least_delta, greatest_delta = yield from _extremes(bytes(batch), head.record_count)
    base_ms = head.base_timestamp_ms
    return Extremes(
        head,
        largest,
        earliest_ms=TimestampMs(min(head.max_timestamp_ms, base_ms + least_delta)),
        latest_ms=TimestampMs(max(head.max_timestamp_ms, base_ms + greatest_delta)),
    )


def _checked_header(batch: Buffer) -> BatchHeader:
    head = header(batch)
    if head.magic != 2:
        raise BadBatch(f"batch format {head.magic} is not supported; send format 2")
    if head.size != len(batch):
        raise BadBatch(f"the batch says it has {head.size} bytes, but has {len(batch)}")
    if head.size > BATCH_BYTES_MAX:
        raise BadBatch(f"the batch has {head.size} bytes; at most {BATCH_BYTES_MAX} are allowed")
    if head.attributes & _COMPRESSION_MASK:
        raise BadBatch("compressed batches are not supported; send them uncompressed")
    if head.attributes & _CONTROL_MASK:
        raise BadBatch("control batches are the broker's own; send records")
    if not 1 <= head.record_count <= MESSAGES_PER_BATCH_MAX:
        raise BadBatch(f"a batch holds 1 to {MESSAGES_PER_BATCH_MAX} records, not {head.record_count}")
    if head.last_offset_delta != head.record_count - 1:
        raise BadBatch(f"last offset delta {head.last_offset_delta} does not fit {head.record_count} records")
    if not crc_matches(batch, head):
        raise BadBatch("the batch does not match its CRC32C")
    return head


def _extremes(data: bytes, count: int) -> Paused[tuple[int, int, int]]:
    """Check all records, and cut nothing out; returns the bytes of the largest value, and the extreme timestamp deltas.

    Zero is always among those: it is that of every plain record.
    """
    position, index, largest = HEADER_BYTES, 0, 0
    least_delta = greatest_delta = 0
    next_run_at = 0
    pause_at = MESSAGES_AT_ONCE_MAX
    while index < count:
        if index >= pause_at:
            yield
            pause_at = index + MESSAGES_AT_ONCE_MAX
        if index >= next_run_at:
            run = run_of_equal_records(data, position, index, count)
            if run is not None:
                index += len(run.value_positions)
                largest = max(largest, run.value_bytes)
                position = run.end
                continue
            next_run_at = index + _RUN_BACKOFF
        index, position, longest = plain_stretch(data, position, index, min(count, next_run_at))
        largest = max(largest, longest)
        if index < count and index < next_run_at:
            record, position = _record(data, position, index)
            largest = max(largest, len(record.value))
            least_delta = min(least_delta, record.timestamp_delta)
            greatest_delta = max(greatest_delta, record.timestamp_delta)
            index += 1
    if position != len(data):
        raise BadBatch(f"{len(data) - position} bytes follow the last record")
    return largest, least_delta, greatest_delta


def decode_values(batch: Buffer) -> list[bytes]:
    """All values, in order: the fast road, for readers that need neither keys nor headers.

    Records of equal shape and length, which most batches consist of, are taken in one go.
    """
    data = bytes(batch)
    return _values(data, header(data).record_count)


def plain_values(batch: Buffer) -> list[bytes] | None:
    """All values of a batch whose records are nothing but a value; none where one may have more, or its own time."""
    data = bytes(batch)
    return _plain_values(data, header(data).record_count, lambda position, index: None)


def _values(data: bytes, count: int) -> list[bytes]:
    values = _plain_values(data, count, lambda position, index: _record(data, position, index))
    assert values is not None, "every record that is not plain was read one by one"
    return values


def _plain_values(
    data: bytes, count: int, other: Callable[[int, int], tuple[Record, int] | None]
) -> list[bytes] | None:
    """The values of records, `other` reading those that are not plain; none where it does not."""
    values: list[bytes] = []
    position = HEADER_BYTES
    next_run_at = 0
    while len(values) < count:
        index = len(values)
        if index >= next_run_at:
            run = run_of_equal_records(data, position, index, count)
            if run is not None:
                values += values_of_run(data, run)
                position = run.end
                continue
            next_run_at = index + _RUN_BACKOFF
        plain = plain_record(data, position, index)
        if plain is not None:
            value_position, position = plain
            values.append(data[value_position : position - 1])
        else:
            read = other(position, index)
            if read is None:
                return None
            values.append(read[0].value)
            position = read[1]
    if position != len(data):
        raise BadBatch(f"{len(data) - position} bytes follow the last record")
    return values


def decode_records(batch: Buffer) -> list[Record]:
    """All records with their keys and headers."""
    return list(chain.from_iterable(records_in_parts(batch)))


def records_in_parts(batch: Buffer) -> Iterator[list[Record]]:
    """The same, as many at once as others may wait for."""
    data = bytes(batch)
    count = header(data).record_count
    position = HEADER_BYTES
    for part in in_parts(range(count)):
        records = []
        for index in part:
            record, position = _record(data, position, index)
            records.append(record)
        yield records


def decode(
    batch: Buffer,
    partition_number: int,
    *,
    start: Offset | None = None,
    messages_max: int | None = None,
    bytes_max: int | None = None,
    is_epoch_told: bool = False,
) -> list[StoredMessage]:
    """Messages as a reader sees them: those at or after `start`, at most `messages_max` of them.

    `bytes_max`: no more than about so many bytes of records, but one message at least.

    `is_epoch_told`: an id that is made for a message without one holds the epoch, too (`default_id`).
    """
    data = bytes(batch)
    head = header(data)
    first = 0 if start is None else min(max(0, start - head.base_offset), head.record_count)
    end = head.record_count if messages_max is None else min(head.record_count, first + messages_max)
    messages = []
    position = _position_of(data, first)
    data_end = len(data) if bytes_max is None else position + bytes_max
    for index in range(first, end):
        record, position = _record(data, position, index)
        offset = Offset(head.base_offset + index)
        made_id = default_id(partition_number, offset, head.leader_epoch if is_epoch_told else None)
        messages.append(_message(record, offset, head.base_timestamp_ms, made_id))
        if position >= data_end:
            break
    return messages


def default_id(partition_number: int, offset: Offset, epoch: int | None) -> str:
    """The id of a message that came without one.

    Where two nodes may have led at the same time, the epoch tells apart what they stored at the same offset.
    """
    return f"{partition_number}-{offset}" if epoch is None else f"{partition_number}-{epoch}-{offset}"


def _position_of(data: bytes, index: int) -> int:
    """Where record `index` begins; the ones before it are stepped over, not decoded."""
    position = HEADER_BYTES
    for _ in range(index):
        length, position = varint.decode(data, position)
        position += length
    return position


def has_ids(batch: Buffer) -> bool:
    """Whether a message in it may carry an id (a value that holds the marker is a harmless yes)."""
    return ID_MARKER in (batch if isinstance(batch, bytes | bytearray) else bytes(batch))


def stored_ids(batch: Buffer) -> list[StoredId]:
    """The ids that messages in it have, with the newest time of the batch.

    As a batch with ids was built by a leader, that is not before it arrived there; a message may have an older time.
    """
    if not has_ids(batch):
        return []
    head = header(batch)
    ids = map(record_id, decode_records(batch))
    return [
        StoredId(Offset(head.base_offset + index), head.max_timestamp_ms, message_id)
        for index, message_id in enumerate(ids)
        if message_id is not None
    ]


def record_id(record: Record) -> str | None:
    """The id its publisher gave it; bytes that are no text stay apart, to be refused and not mixed up."""
    for name, value in record.headers:
        if name == ID_HEADER:
            return value.decode("utf-8", "surrogateescape")
    return None


def _message(record: Record, offset: Offset, base_timestamp_ms: int, made_id: str) -> StoredMessage:
    given_id = record_id(record) if record.headers else None
    return StoredMessage(
        offset=offset,
        timestamp_ms=TimestampMs(base_timestamp_ms + record.timestamp_delta),
        id=given_id if given_id is not None else made_id,
        key=record.key,
        value=record.value,
        headers=[pair for pair in record.headers if pair[0] != ID_HEADER] if given_id is not None else record.headers,
    )


def _record(data: bytes, position: int, index: int) -> tuple[Record, int]:
    length, position = varint.decode(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise BadBatch(f"record {index} is longer than its batch")
    position += 1  # attributes: unused in the format
    timestamp_delta, position = varint.decode(data, position)
    offset_delta, position = varint.decode(data, position)
    if offset_delta != index:
        raise BadBatch(f"record {index} says that it is record {offset_delta}")
    key, position = _bytes(data, position, end)
    value, position = _bytes(data, position, end)
    header_count, position = varint.decode(data, position)
    headers: list[Header] = []
    if header_count:
        if not 0 <= header_count <= length:
            raise BadBatch(f"record {index} says that it has {header_count} headers")
        for _ in range(header_count):
            name, position = _bytes(data, position, end)
            content, position = _bytes(data, position, end)
            headers.append(((name or b"").decode("utf-8", "replace"), content or b""))
    if position != end:
        raise BadBatch(f"record {index} does not end where its length says")
    return Record(timestamp_delta, key, value or b"", headers), position


def _bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = varint.decode(data, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise BadBatch("a field is longer than its record")
    return data[position : position + length], position + length

"""Values become a record batch without a Python step per record that is worth the name.

Everything in front of a record's value depends only on the value's length and the record's place in the
batch, so it comes from tables, and one `join` builds the batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from crc32c import crc32c

from holdfast.model.messages import NewMessage
from holdfast.model.pauses import Paused, in_parts, without_pauses
from holdfast.wire import varint
from holdfast.wire.record_batch import CRC_FROM, HEADER_BYTES, ID_HEADER, LENGTH_PREFIX_BYTES
from holdfast.wire.record_runs import DELTA_WIDTH_ENDS

_MAGIC = 2
# "No headers", the last byte of a plain record.
RECORD_END = b"\0"
_ID_HEADER = ID_HEADER.encode()
_NO_KEY = varint.encode(-1)
_ATTRIBUTES = b"\0"
_NO_DELTA = b"\0"
_ATTRIBUTES_AND_TIME = _ATTRIBUTES + _NO_DELTA
_CRC = struct.Struct(">I")
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BLANK_HEADER = bytes(HEADER_BYTES)
# Distinct value lengths to keep prefixes for; a flood of random lengths must not fill memory.
_TABLE_ENTRIES_MAX = 8192


class _Heads(dict[int, bytes]):
    """By value length: the end of the record before, then the length and the first fields of this one."""

    def __init__(self, delta_width: int) -> None:
        self.delta_width = delta_width

    def __missing__(self, value_bytes: int) -> bytes:
        if len(self) >= _TABLE_ENTRIES_MAX:
            self.clear()
        value_length = varint.encode(value_bytes)
        body = len(_ATTRIBUTES_AND_TIME) + self.delta_width + len(_NO_KEY) + len(value_length) + value_bytes + 1
        self[value_bytes] = head = RECORD_END + varint.encode(body) + _ATTRIBUTES_AND_TIME
        return head


class _Tails(dict[int, bytes]):
    """By value length: what stands between the offset delta and the value."""

    def __missing__(self, value_bytes: int) -> bytes:
        if len(self) >= _TABLE_ENTRIES_MAX:
            self.clear()
        self[value_bytes] = tail = _NO_KEY + varint.encode(value_bytes)
        return tail


_heads = (_Heads(1), _Heads(2), _Heads(3))
_tails = _Tails()
_deltas: list[bytes] = [varint.encode(index) for index in range(DELTA_WIDTH_ENDS[0])]


def build_values(values: Sequence[bytes], timestamp_ms: int) -> bytearray:
    """A batch of messages that are nothing but a value."""
    count = len(values)
    if count == 1:
        return _single(values[0], timestamp_ms)
    if count > len(_deltas):
        _deltas.extend(varint.encode(index) for index in range(len(_deltas), count))
    lengths = list(map(len, values))
    parts: list[bytes] = [b""] * (4 * count)
    start = 0
    for heads, width_end in zip(_heads, DELTA_WIDTH_ENDS, strict=True):
        end = min(count, width_end)
        parts[4 * start : 4 * end : 4] = map(heads.__getitem__, lengths[start:end])
        start = end
        if end == count:
            break
    parts[1::4] = _deltas[:count]
    parts[2::4] = map(_tails.__getitem__, lengths)
    parts[3::4] = values
    # The first record has no record before it to end, the last one is not ended by the next.
    parts[0] = parts[0][len(RECORD_END) :]
    parts.append(RECORD_END)
    return sealed(parts, count, timestamp_ms)


def _single(value: bytes, timestamp_ms: int) -> bytearray:
    """One value at a time, as fast as it goes: its publisher waits for the answer."""
    value_bytes = len(value)
    head, tail = plain_frame(value_bytes, 1)
    return sealed((head, _deltas[0], tail, value, RECORD_END), 1, timestamp_ms)


def plain_frame(value_bytes: int, delta_width: int) -> tuple[bytes, bytes]:
    """What stands in front of the offset delta and behind it, for values of that length."""
    return _heads[delta_width - 1][value_bytes][len(RECORD_END) :], _tails[value_bytes]


def build_batch(messages: Sequence[NewMessage], timestamp_ms: int) -> bytearray:
    """A batch of messages that may have keys, ids and headers."""
    return without_pauses(building_batch(messages, timestamp_ms))


def building_batch(messages: Sequence[NewMessage], timestamp_ms: int) -> Paused[bytearray]:
    """The same, with a pause after as many messages as others may wait for."""
    if not any(message.key is not None or message.id is not None or message.headers for message in messages):
        return build_values([message.value for message in messages], timestamp_ms)
    records: list[bytes] = []
    for part in in_parts(messages):
        records += [_record(message, index) for index, message in enumerate(part, len(records))]
        if len(part) < len(messages):
            yield
    return sealed(records, len(messages), timestamp_ms)


def build_timed(messages: Sequence[NewMessage], times_ms: Sequence[int], arrived_ms: int | None = None) -> bytearray:
    """A batch of messages that each have a time of their own.

    Where they have ids, the batch counts as no older than its arrival: so long their ids have to be remembered.
    """
    return without_pauses(building_timed(messages, times_ms, arrived_ms))


def building_timed(
    messages: Sequence[NewMessage], times_ms: Sequence[int], arrived_ms: int | None = None
) -> Paused[bytearray]:
    """The same, with a pause after as many messages as others may wait for."""
    base_ms = times_ms[0]
    records: list[bytes] = []
    for part, times in zip(in_parts(messages), in_parts(times_ms), strict=True):
        records += [
            _record(message, index, varint.encode(time_ms - base_ms))
            for index, (message, time_ms) in enumerate(zip(part, times, strict=True), len(records))
        ]
        if len(part) < len(messages):
            yield
    newest_ms = max(times_ms) if arrived_ms is None else max(arrived_ms, *times_ms)
    return sealed(records, len(messages), base_ms, newest_ms)


def _record(message: NewMessage, index: int, time_delta: bytes = _NO_DELTA) -> bytes:
    key, value, encode = message.key, message.value, varint.encode
    parts = (
        _ATTRIBUTES,
        time_delta,
        encode(index),
        _NO_KEY if key is None else encode(len(key)) + key,
        encode(len(value)),
        value,
        _headers(message) if message.headers or message.id is not None else RECORD_END,
    )
    body = b"".join(parts)
    return encode(len(body)) + body


def _headers(message: NewMessage) -> bytes:
    headers = [(name.encode(), value) for name, value in message.headers]
    if message.id is not None:
        headers.append((_ID_HEADER, message.id.encode()))
    encode = varint.encode
    fields = [encode(len(name)) + name + encode(len(value)) + value for name, value in headers]
    return encode(len(fields)) + b"".join(fields)


def sealed(
    records: Iterable[bytes | bytearray], count: int, timestamp_ms: int, max_timestamp_ms: int | None = None
) -> bytearray:
    """A whole batch of records that stand one behind the other."""
    batch = bytearray().join((_BLANK_HEADER, *records))
    _HEADER.pack_into(
        batch,
        0,
        0,  # base offset, given by the log
        len(batch) - LENGTH_PREFIX_BYTES,
        -1,  # leader epoch, given by the log
        _MAGIC,
        0,  # CRC, below
        0,  # attributes
        count - 1,
        timestamp_ms,
        timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
        -1,
        -1,
        -1,
        count,
    )
    _CRC.pack_into(batch, CRC_FROM - _CRC.size, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch

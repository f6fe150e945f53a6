"""Plain records, which are nothing but a value, decoded without looking at each field of each record.

A record's bytes in front of its value depend only on the value's length and the record's place in the
batch. Where neighbouring records have values of one length, no key and no headers, they stand at a fixed
stride; comparing each prefix byte over the whole run costs the same few calls for three records or
three thousand. That is what makes decoding a batch a matter of C loops, without a C extension.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

from holdfast.wire import varint

# Offset deltas below these have varints of one, two and three bytes.
DELTA_WIDTH_ENDS = (1 << 6, 1 << 13, 1 << 20)
_RUN_RECORDS_MIN = 4
# So many values leave a run with one call.
_CUT_AT_ONCE = 64


# Places in a batch for which the bytes between a record's length and its value's length are kept ready.
_PLAIN_PREFIXES_MAX = 1 << 16


class Run(NamedTuple):
    value_positions: range
    value_bytes: int
    end: int


def delta_width(index: int) -> int:
    """How many bytes the varint of an offset delta has."""
    return 1 if index < DELTA_WIDTH_ENDS[0] else 2 if index < DELTA_WIDTH_ENDS[1] else 3


def run_of_equal_records(data: bytes, position: int, index: int, count: int) -> Run | None:
    """The run of plain records that starts with record `index` at `position`, if there is one.

    A run ends with the batch or where offset deltas get one byte longer. It is only reported when every
    byte that is not part of a value was checked, so the caller may trust it like records read one by one.
    """
    width = delta_width(index)
    records = min(count, DELTA_WIDTH_ENDS[width - 1]) - index
    if records < _RUN_RECORDS_MIN:
        return None
    length, at = varint.decode(data, position)
    stride = at - position + length
    end = position + records * stride
    if length <= 0 or end > len(data):
        return None
    delta_at = at + 2  # behind attributes and a timestamp delta of zero
    key_at = delta_at + width
    # A plain record: no attributes, no timestamp delta, key length -1, and nothing but "no headers" last.
    if data[at:delta_at] != b"\0\0" or data[key_at] != 1:
        return None
    # Only now is this the value's length: in a record with a key it would be bytes of the key.
    value_bytes, value_at = varint.decode(data, key_at + 1)
    if value_bytes < 0 or value_at + value_bytes + 1 != position + stride or data[position + stride - 1] != 0:
        return None
    constant = [*range(position, delta_at), *range(key_at, value_at), position + stride - 1]
    if any(data[byte_at:end:stride] != data[byte_at : byte_at + 1] * records for byte_at in constant):
        return None
    deltas = delta_columns(width)
    first = index - (DELTA_WIDTH_ENDS[width - 2] if width > 1 else 0)
    for column in range(width):
        if data[delta_at + column : end : stride] != deltas[column][first : first + records]:
            return None
    return Run(range(value_at, value_at + records * stride, stride), value_bytes, end)


def values_of_run(data: bytes, run: Run) -> list[bytes]:
    """All values of a run, cut out many at a time."""
    positions, value_bytes = run.value_positions, run.value_bytes
    cut = _cutter(value_bytes, positions.step)
    values: list[bytes] = []
    place = 0
    while place + _CUT_AT_ONCE < len(positions):
        values += cut.unpack_from(data, positions[place])
        place += _CUT_AT_ONCE
    values += [data[at : at + value_bytes] for at in positions[place:]]
    return values


@functools.lru_cache(maxsize=64)
def _cutter(value_bytes: int, stride: int) -> struct.Struct:
    return struct.Struct(f"{value_bytes}s{stride - value_bytes}x" * _CUT_AT_ONCE)


_plain_prefixes: list[bytes] = []


def plain_record(data: bytes, position: int, index: int) -> tuple[int, int] | None:
    """The places where its value begins and where it ends, if record `index` is plain; fully checked."""
    if index >= _PLAIN_PREFIXES_MAX:
        return None
    prefix = _prefixes(index)[index]
    length, at = varint.decode(data, position)
    end = at + length
    if length <= 0 or end > len(data) or not data.startswith(prefix, at) or data[end - 1]:
        return None
    value_bytes, value_at = varint.decode(data, at + len(prefix))
    return (value_at, end) if value_bytes >= 0 and value_at + value_bytes + 1 == end else None


def _prefixes(index: int) -> list[bytes]:
    """What stands between a plain record's length and its value's, at least up to that place in the batch."""
    if index >= len(_plain_prefixes):
        # attributes, timestamp delta, offset delta, key length -1
        added = range(len(_plain_prefixes), min(2 * index + 64, _PLAIN_PREFIXES_MAX))
        _plain_prefixes.extend(b"\0\0" + varint.encode(place) + b"\1" for place in added)
    return _plain_prefixes


def plain_stretch(data: bytes, position: int, index: int, count: int) -> tuple[int, int, int]:
    """Check plain records of any lengths from record `index` on, as far as there are some.

    Returns the place and the position of the first that is not plain, or is too long for this, and the largest value.
    The same checks as in `plain_record`, in one loop: nothing is cut out, and no function is called for a record.
    """
    end_index = min(count, _PLAIN_PREFIXES_MAX)
    prefixes = _prefixes(end_index - 1)
    size = len(data)
    largest = 0
    starts_with = data.startswith
    while index < end_index and position + 2 < size:
        low = data[position]
        at = position + 1
        if low >= 0x80:
            high = data[at]
            at += 1
            if high >= 0x80:
                break  # longer than 8 KiB: rare, and read by whoever asked
            low = low & 0x7F | high << 7
        prefix = prefixes[index]
        end = at + (low >> 1)
        if low & 1 or end > size or not starts_with(prefix, at) or data[end - 1]:
            break
        value_at = at + len(prefix)
        # A body that ends within the prefix would have the byte read here behind it; the sum below then fails.
        if value_at + 1 >= size:
            break
        low = data[value_at]
        value_at += 1
        if low >= 0x80:
            high = data[value_at]
            value_at += 1
            if high >= 0x80:
                break
            low = low & 0x7F | high << 7
        value_bytes = low >> 1
        if low & 1 or value_at + value_bytes + 1 != end:
            break
        if value_bytes > largest:
            largest = value_bytes
        position = end
        index += 1
    return index, position, largest


_columns: dict[int, list[bytes]] = {}


def delta_columns(width: int) -> list[bytes]:
    """Byte by byte, the varints of all offset deltas of one width (at most 3 × 1 MB, made when needed)."""
    if width not in _columns:
        start = DELTA_WIDTH_ENDS[width - 2] if width > 1 else 0
        zigzag = range(2 * start, 2 * DELTA_WIDTH_ENDS[width - 1], 2)
        columns = [bytes(value >> 7 * i & 0x7F | 0x80 for value in zigzag) for i in range(width - 1)]
        _columns[width] = [*columns, bytes(value >> 7 * (width - 1) for value in zigzag)]
    return _columns[width]

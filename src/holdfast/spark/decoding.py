"""Record batches become Arrow columns: numpy finds the fields of all records, Arrow cuts them out, both in bulk.

The fields of a record lie scattered in the bytes that came. An Arrow array of binary values is a buffer and places in
it, each value reaching to where the next one begins; so the bytes that came, with the places of all values and of the
gaps between them, are an array already, without a copy. Taking every other element of it is one call into Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import BadBatch
from holdfast.spark.json_values import parse_json
from holdfast.spark.record_starts import (
    HEADER_BYTES,
    Bytes,
    Places,
    batch_headers,
    batch_places,
    find_records,
    varints,
)

ID_HEADER: Final = b"holdfast-id"
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

_LENGTH_PREFIX_BYTES: Final = 12
_MAGIC: Final = 2
_COMPRESSION_MASK: Final = 0x07
_CONTROL_MASK: Final = 0x20
_US_PER_MS: Final = 1000
_TIME_MS_MAX: Final = (2**63 - 1) // _US_PER_MS
# Four digits at a time come from a table.
_GROUP_DIGITS: Final = 4
_GROUP_END: Final = 10**_GROUP_DIGITS
_GROUPS: Final = np.frombuffer(b"".join(b"%04d" % number for number in range(_GROUP_END)), np.uint8).reshape(-1, 4)
_DIGITS_MAX: Final = 19


class DecodedBatches:
    """The messages of some batches from offset `start` up to, not including, `end`; columns are made when asked for.

    Messages of control batches are notes of the broker and left out.
    """

    def __init__(self, data: bytes | bytearray | memoryview, topic: str, partition: int, start: int, end: int) -> None:
        self._topic = topic
        self._partition = partition
        self._data = np.frombuffer(data, np.uint8)
        places = batch_places(data)
        heads = batch_headers(self._data, places)
        if (heads["magic"] != _MAGIC).any() or (heads["attributes"] & _COMPRESSION_MASK).any():
            raise BadBatch("only uncompressed batches of format 2 are read")
        counts = np.where(heads["attributes"] & _CONTROL_MASK, 0, heads["record_count"]).astype(np.int64)
        is_wanted = (
            (counts > 0)
            & (heads["base_offset"] < end)
            & (heads["base_offset"] + heads["last_offset_delta"].astype(np.int64) >= start)
        )
        places, heads, counts = places[is_wanted], heads[is_wanted], counts[is_wanted]
        batch_ends = places + heads["batch_length"].astype(np.int64) + _LENGTH_PREFIX_BYTES
        records = find_records(self._data, places + HEADER_BYTES, batch_ends, counts)
        # Behind the length come the attributes, one byte without a meaning.
        time_delta, delta_at = varints(self._data, records.body + 1)
        offset_delta, key_length_at = varints(self._data, delta_at)
        offsets = heads["base_offset"].astype(np.int64)[records.batch] + offset_delta
        times_ms = heads["base_timestamp_ms"].astype(np.int64)[records.batch] + time_delta
        rows: slice | npt.NDArray[np.bool_] = slice(None)
        if len(offsets) and (offsets[0] < start or offsets[-1] >= end):
            rows = (offsets >= start) & (offsets < end)
        self.offsets: Places = offsets[rows]
        self.times_ms: Places = times_ms[rows]
        self._key_length_at: Places = key_length_at[rows]
        self._ends: Places = records.end[rows]

    def __len__(self) -> int:
        return len(self.offsets)

    def columns(self, fields: Sequence[pa.Field]) -> list[pa.Array]:
        return [self._column(field) for field in fields]

    # --- columns ------------------------------------------------------------------------------------

    def _column(self, field: pa.Field) -> pa.Array:
        column: pa.Array = getattr(self, f"_column_{field.name}")()
        return parse_json(column, field.type) if field.name == "value" and pa.types.is_struct(field.type) else column

    def _column_key(self) -> pa.Array:
        return self._cut(*self._keys)

    def _column_value(self) -> pa.Array:
        return self._cut(*self._values)

    def _column_topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._topic, pa.string()), len(self))

    def _column_partition(self) -> pa.Array:
        return pa.array(np.full(len(self), self._partition, np.int32))

    def _column_offset(self) -> pa.Array:
        return pa.array(self.offsets)

    def _column_timestamp(self) -> pa.Array:
        # A publisher's clock may say anything; microseconds reach less far than milliseconds.
        return pa.array(np.clip(self.times_ms, -_TIME_MS_MAX, _TIME_MS_MAX) * _US_PER_MS).cast(TIMESTAMP)

    def _column_id(self) -> pa.Array:
        """The publisher's id, or `<partition>-<offset>` where it gave none."""
        rows, headers = self._given_ids
        made = made_ids(self._partition, self.offsets)
        if not len(rows):
            return made
        given = _text(headers)
        if len(rows) == len(self):
            return given
        is_given = np.zeros(len(self), bool)
        is_given[rows] = True
        return pc.replace_with_mask(made, pa.array(is_given), given)

    def _column_headers(self) -> pa.Array:
        """All headers but the one that carries the id."""
        headers = self._headers
        kept = np.flatnonzero(~headers.is_id)
        order = kept[np.argsort(headers.row[kept], kind="stable")]
        counts = np.bincount(headers.row[order], minlength=len(self))
        places = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        names = _text(self._cut(headers.name_at[order], headers.name_bytes[order]))
        contents = self._cut(headers.content_at[order], np.maximum(headers.content_bytes[order], 0))
        pairs = pa.StructArray.from_arrays([names, contents], fields=list(HEADERS.value_type))
        return pa.ListArray.from_arrays(pa.array(places), pairs, type=HEADERS)

    # --- where the fields are -----------------------------------------------------------------------

    @cached_property
    def _keys(self) -> tuple[Places, Places]:
        """Where keys begin, and their lengths; -1: there is none."""
        length, at = varints(self._data, self._key_length_at)
        self._check_ends(at + np.maximum(length, 0))
        return at, length

    @cached_property
    def _values(self) -> tuple[Places, Places]:
        key_at, key_length = self._keys
        length, at = varints(self._data, key_at + np.maximum(key_length, 0))
        self._check_ends(at + np.maximum(length, 0))
        return at, length

    @cached_property
    def _headers(self) -> _Headers:
        value_at, value_length = self._values
        count, at = varints(self._data, value_at + np.maximum(value_length, 0))
        headers = _Headers(self._data, count, at)
        if (headers.end != self._ends).any():
            raise BadBatch("a record does not end where its length says")
        return headers

    @cached_property
    def _given_ids(self) -> tuple[Places, pa.Array]:
        """The rows that have an id of their own, and these ids; where a record has several, the first counts."""
        headers = self._headers
        found = np.flatnonzero(headers.is_id)
        # Headers are in the order of their place within the record: the first of each row is its first.
        rows, firsts = np.unique(headers.row[found], return_index=True)
        chosen = found[firsts]
        return rows, self._cut(headers.content_at[chosen], np.maximum(headers.content_bytes[chosen], 0))

    def _check_ends(self, ends: Places) -> None:
        if (ends > self._ends).any():
            raise BadBatch("a field is longer than its record")

    def _cut(self, at: Places, length: Places) -> pa.Array:
        """The bytes at these places, which are in rising order; null where a length is negative."""
        count = len(at)
        if count == 0:
            return pa.array([], pa.binary())
        is_null = length < 0
        if is_null.all():
            return pa.nulls(count, pa.binary())
        places = np.empty(2 * count + 1, np.int32)
        places[0] = 0
        places[1::2] = at
        places[2::2] = at + np.maximum(length, 0)
        everything = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(places), pa.py_buffer(self._data)]
        )
        chosen = np.arange(1, 2 * count, 2, dtype=np.int32)
        return everything.take(pa.array(chosen, mask=is_null if is_null.any() else None))


class _Headers:
    """All headers of all records: the first of each record, then the second of each that has one, and so on."""

    def __init__(self, data: Bytes, count: Places, at: Places) -> None:
        if (count < 0).any():
            raise BadBatch("a record has a negative number of headers")
        parts: list[tuple[Places, ...]] = []
        self.end = at.copy()
        rows = np.flatnonzero(count > 0)
        number = 0
        while rows.size:
            name_bytes, name_at = varints(data, self.end[rows])
            content_bytes, content_at = varints(data, name_at + np.maximum(name_bytes, 0))
            self.end[rows] = content_at + np.maximum(content_bytes, 0)
            if (self.end[rows] > len(data)).any():
                raise BadBatch("a field is longer than its record")
            parts.append((rows, name_at, np.maximum(name_bytes, 0), content_at, content_bytes))
            number += 1
            rows = rows[count[rows] > number]
        fields: list[Any] = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        self.row, self.name_at, self.name_bytes, self.content_at, self.content_bytes = (
            fields or [np.empty(0, np.int64)] * 5
        )
        self.is_id = self.name_bytes == len(ID_HEADER)
        candidates = np.flatnonzero(self.is_id)
        names = data[self.name_at[candidates][:, None] + np.arange(len(ID_HEADER))]
        self.is_id[candidates] = (names == np.frombuffer(ID_HEADER, np.uint8)).all(axis=1)


def made_ids(partition: int, offsets: Places) -> pa.Array:
    """`<partition>-<offset>` for offsets in rising order; all ids of one length are a matrix of bytes."""
    prefix = np.frombuffer(b"%d-" % partition, np.uint8)
    parts: list[Bytes] = []
    widths = np.empty(len(offsets), np.int32)
    first = 0
    while first < len(offsets):
        digits = len(str(offsets[first]))
        last = int(np.searchsorted(offsets, 10**digits)) if digits < _DIGITS_MAX else len(offsets)
        width = len(prefix) + digits
        # Room for whole groups of digits in front; what is too much is cut off.
        groups = -(-digits // _GROUP_DIGITS)
        spare = groups * _GROUP_DIGITS - digits
        matrix = np.empty((last - first, groups, _GROUP_DIGITS), np.uint8)
        rest = offsets[first:last]
        for group in range(groups - 1, -1, -1):
            higher = rest // _GROUP_END
            matrix[:, group] = _GROUPS[rest - higher * _GROUP_END]
            rest = higher
        ids = np.empty((last - first, width), np.uint8)
        ids[:, : len(prefix)] = prefix
        ids[:, len(prefix) :] = matrix.reshape(last - first, -1)[:, spare:]
        parts.append(ids.ravel())
        widths[first:last] = width
        first = last
    places = np.zeros(len(offsets) + 1, np.int32)
    np.cumsum(widths, out=places[1:])
    text = np.concatenate(parts) if parts else np.empty(0, np.uint8)
    return pa.Array.from_buffers(pa.string(), len(offsets), [None, pa.py_buffer(places), pa.py_buffer(text)])


def _text(array: pa.Array) -> pa.Array:
    """Bytes as text; what is no UTF-8 gets replacement characters, as the client does it."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("utf-8", "replace") for each in array.to_pylist()], pa.string())


def decode(
    data: bytes | bytearray | memoryview, topic: str, partition: int, start: int, end: int, schema: pa.Schema
) -> pa.RecordBatch:
    """The messages from `start` up to, not including, `end` as one Arrow batch of that schema."""
    decoded = DecodedBatches(data, topic, partition, start, end)
    return pa.RecordBatch.from_arrays(decoded.columns(list(schema)), schema=schema)

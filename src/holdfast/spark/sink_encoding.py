"""Columns become record batches without a Python step for each row: Arrow joins what numpy counts.

A record is its length, a few small numbers, key, value and headers, one behind the other (`holdfast.wire.record_batch`
has the format). All numbers of all rows are written into one matrix of bytes, of which a mask picks what is used;
what is picked are Arrow arrays of prefixes. Arrow's `binary_join_element_wise` puts prefixes, keys, values and headers
together, and its buffer is the records. The checksum is left to the broker: executors may have nothing compiled for it.
"""

from __future__ import annotations

import struct
import time
import zlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# As in `holdfast.wire.record_batch`, which executors do not have.
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_PREFIX_BYTES: Final = 12
_MAGIC: Final = 2
_ID_HEADER: Final = b"holdfast-id"
# The longest number: 32 bits in groups of seven.
_NUMBER_BYTES: Final = 5
_BINARY: Final = pa.large_binary()

Numbers = Any  # a numpy array of int64


class _Prefixes:
    """Small numbers of many rows, column by column; `array` gives each row's bytes."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._bytes: list[Any] = []
        self._used: list[Any] = []

    def number(self, numbers: Numbers) -> _Prefixes:
        """A zigzag varint in each row; only of numbers from zero, or -1."""
        zigzag = np.where(numbers >= 0, 2 * numbers, 1).astype(np.uint64)
        places = np.arange(_NUMBER_BYTES, dtype=np.uint64) * np.uint64(7)
        groups = (zigzag[:, None] >> places[None, :]).astype(np.uint64)
        used = groups > 0
        used[:, 0] = True
        has_more = np.zeros_like(used)
        has_more[:, :-1] = used[:, 1:]
        self._bytes.append(((groups & np.uint64(0x7F)) | (has_more.astype(np.uint64) << np.uint64(7))).astype(np.uint8))
        self._used.append(used)
        return self

    def constant(self, value: bytes) -> _Prefixes:
        self._bytes.append(np.broadcast_to(np.frombuffer(value, np.uint8), (self._rows, len(value))))
        self._used.append(np.ones((self._rows, len(value)), bool))
        return self

    def array(self) -> pa.Array:
        used = np.concatenate(self._used, axis=1)
        data = np.concatenate(self._bytes, axis=1)[used]
        return _binary(data, used.sum(axis=1))


def number_widths(numbers: Numbers) -> Numbers:
    """How many bytes each takes as a varint."""
    zigzag = np.where(numbers >= 0, 2 * numbers, 1)
    return 1 + sum((zigzag >= 1 << bits).astype(np.int64) for bits in (7, 14, 21, 28))


def encoded(
    values: pa.Array,
    keys: pa.Array | None = None,
    ids: pa.Array | None = None,
    headers: pa.Array | None = None,
) -> bytes:
    """One record batch of all rows, without a checksum. What is null has the length -1 and no bytes."""
    rows = len(values)
    values, value_lengths = _present(values)
    key_lengths = np.full(rows, -1, np.int64)
    if keys is not None:
        keys, key_lengths = _present(keys)
    ends = _ends(rows, ids, headers)
    deltas = np.arange(rows, dtype=np.int64)
    body_lengths = (
        2
        + number_widths(deltas)
        + number_widths(key_lengths)
        + np.maximum(key_lengths, 0)
        + number_widths(value_lengths)
        + np.maximum(value_lengths, 0)
        + (1 if ends is None else _lengths(ends))
    )
    prefixes = _Prefixes(rows).number(body_lengths).constant(b"\0\0").number(deltas).number(key_lengths)
    if keys is None:
        parts = [prefixes.number(value_lengths).array(), values]
    else:
        parts = [prefixes.array(), keys, _Prefixes(rows).number(value_lengths).array(), values]
    parts.append(pa.scalar(b"\0", _BINARY) if ends is None else ends)
    records = pc.binary_join_element_wise(*parts, pa.scalar(b"", _BINARY))
    return _with_header(records, rows)


def _present(column: pa.Array) -> tuple[pa.Array, Numbers]:
    """A column without nulls, and the length of each value: -1 where it was null."""
    column = column.cast(_BINARY)
    filled = pc.fill_null(column, b"")
    if column.null_count == 0:
        return filled, _lengths(filled)
    return filled, np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), _lengths(filled), -1)


def _with_header(records: pa.Array, rows: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    data = _data(records)
    length = _HEADER.size - _LENGTH_PREFIX_BYTES + len(data)
    head = _HEADER.pack(0, length, -1, _MAGIC, 0, 0, rows - 1, now_ms, now_ms, -1, -1, -1, rows)
    return b"".join((head, data))


def _ends(rows: int, ids: pa.Array | None, headers: pa.Array | None) -> pa.Array | None:
    """What stands behind the values: how many headers there are, and the headers."""
    if ids is None and headers is None:
        return None
    counts = np.zeros(rows, np.int64)
    parts: list[pa.Array] = []
    if headers is not None:
        joined, lengths = _joined_headers(headers)
        counts = counts + lengths
        parts.append(joined)
    if ids is not None:
        is_there = pc.is_valid(ids)
        there = is_there.to_numpy(zero_copy_only=False)
        texts = pc.fill_null(ids.cast(_BINARY), b"")
        counts = counts + there
        front = _Prefixes(rows).number(np.full(rows, len(_ID_HEADER))).constant(_ID_HEADER).number(_lengths(texts))
        whole = pc.binary_join_element_wise(front.array(), texts, pa.scalar(b"", _BINARY))
        parts.append(pc.if_else(is_there, whole, pa.scalar(b"", _BINARY)))
    return pc.binary_join_element_wise(_Prefixes(rows).number(counts).array(), *parts, pa.scalar(b"", _BINARY))


def _joined_headers(headers: pa.Array) -> tuple[pa.Array, Numbers]:
    """The headers of each row, one behind the other, and how many there are."""
    flat = headers.flatten()
    names = pc.fill_null(pc.struct_field(flat, "key").cast(_BINARY), b"")
    contents = pc.fill_null(pc.struct_field(flat, "value").cast(_BINARY), b"")
    each = pc.binary_join_element_wise(
        _Prefixes(len(flat)).number(_lengths(names)).array(),
        names,
        _Prefixes(len(flat)).number(_lengths(contents)).array(),
        contents,
        pa.scalar(b"", _BINARY),
    )
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    # Headers of neighbouring rows are neighbours: the rows' bytes end where those of their last headers do.
    header_ends = np.concatenate(([0], np.cumsum(_lengths(each))))
    ends = header_ends[np.cumsum(counts)]
    return _binary(np.frombuffer(_data(each), np.uint8), np.diff(np.concatenate(([0], ends)))), counts


def partitions_of(keys: pa.Array, partitions: int, otherwise: int) -> Numbers:
    """The partition of each key, as the broker picks it; each different key is looked at once."""
    encoded_keys = keys.cast(pa.binary()).dictionary_encode()
    chosen = np.array([zlib.crc32(key) % partitions for key in encoded_keys.dictionary.to_pylist()] + [otherwise])
    indices = pc.fill_null(encoded_keys.indices, len(chosen) - 1)
    return chosen[indices.to_numpy(zero_copy_only=False)]


def _lengths(array: pa.Array) -> Numbers:
    return pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)


def _binary(data: Any, lengths: Numbers) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return pa.Array.from_buffers(
        _BINARY, len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _data(array: pa.Array) -> memoryview:
    """The bytes of all values of an array, one behind the other."""
    _, offsets, data = array.buffers()
    if data is None:
        return memoryview(b"")
    places = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return memoryview(data)[places[0] : places[-1]]

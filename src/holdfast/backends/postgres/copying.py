"""Pushed messages and ids as the database's own binary COPY stream, with one `join` for each part of a transaction.

Where rows have many columns, the driver's encoder is what a message costs most: it looks at each value for itself. Here
a column is put between constants. The stream: a head, then for each row the number of its columns (16 bits) and, for
each, its length (32 bits, -1 for NULL) and its bytes, then -1 as a number of columns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from struct import Struct
from typing import Final

from holdfast.backends.postgres.rows import COLUMNS, timestamp
from holdfast.model.limits import KIB
from holdfast.wire.push_batch import Pushed

KEY_COLUMNS: Final = ("topic_id", "partition", "key", "offset")

_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"
_pack_length: Final = Struct(">i").pack
_pack_offset: Final = Struct(">q").pack
# Number of columns, topic, partition, and the length of what comes next.
_pack_place: Final = Struct(">hiiiii").pack
# The time, and no id as text.
_pack_time: Final = Struct(">iqi").pack
# Sent at once, where there is so much: each message to the database has its price.
_TOGETHER_BYTES: Final = 128 * KIB
_UUID_CHARACTERS: Final = 36
_UUID_BYTES: Final = 16
_UUID_LENGTH: Final = _pack_length(_UUID_BYTES)


async def stream(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """A whole stream, a few parts at a time; the database works on the first while the last are made."""
    together, size = [_HEAD], 0
    for part in parts:
        together.append(part)
        size += len(part)
        if size >= _TOGETHER_BYTES:
            yield b"".join(together)
            together, size = [], 0
    together.append(_END)
    yield b"".join(together)


def message_rows(topic_id: int, partition: int, base: int, created_at: int, pushed: Pushed) -> bytes:
    """The rows of pushed messages in `holdfast.messages`, with the columns of `rows.COLUMNS`."""
    count = len(pushed.ids)
    place = _pack_place(len(COLUMNS), 4, topic_id, 4, partition, 8)
    parts = [b""] * (8 * count)
    parts[0::8] = [place] * count
    parts[1::8] = map(_pack_offset, range(base, base + count))
    parts[2::8] = _times_and_keys(created_at, pushed)
    parts[3::8] = map(_pack_length, map(len, pushed.values))
    parts[4::8] = pushed.values
    # No headers, the transaction and the trace.
    parts[5::8] = _transactions(pushed.transaction_ids)
    parts[6::8] = _traces(pushed.trace_ids)
    parts[7::8] = _raw_uuids(pushed.ids)
    return b"".join(parts)


def key_rows(topic_id: int, partition: int, keys: Sequence[str], offsets: Sequence[int]) -> bytes:
    """The rows of ids that are to be recognised, in `holdfast.id_keys`."""
    count = len(keys)
    place = _pack_place(len(KEY_COLUMNS), 4, topic_id, 4, partition, _UUID_BYTES)
    parts = [_pack_length(8)] * (4 * count)
    parts[0::4] = [place] * count
    parts[1::4] = _raw_uuids(keys)
    parts[3::4] = map(_pack_offset, offsets)
    return b"".join(parts)


def _times_and_keys(created_at: int, pushed: Pushed) -> Iterable[bytes]:
    """Nearly always few different names, and one time or few different ones."""
    if pushed.times_ms is None:
        keys = {name: _pack_time(8, created_at, -1) + _sized(name) for name in set(pushed.names)}
        return map(keys.__getitem__, pushed.names)
    keys = {name: _sized(name) for name in set(pushed.names)}
    times = {time_ms: _pack_time(8, timestamp(time_ms), -1) for time_ms in set(pushed.times_ms)}
    return map(bytes.__add__, map(times.__getitem__, pushed.times_ms), map(keys.__getitem__, pushed.names))


def _raw_uuids(texts: Sequence[str]) -> list[bytes]:
    raw = bytes.fromhex("".join(texts).replace("-", ""))
    return [raw[start : start + _UUID_BYTES] for start in range(0, len(raw), _UUID_BYTES)]


def _transactions(texts: Sequence[str]) -> list[bytes]:
    """Behind the headers, which are NULL, each with its length. Most of them are UUIDs, and equally long."""
    joined = "".join(texts).encode()
    if len(joined) == _UUID_CHARACTERS * len(texts) and set(map(len, texts)) == {_UUID_CHARACTERS}:
        before = _NULL + _pack_length(_UUID_CHARACTERS)
        return [before + joined[start : start + _UUID_CHARACTERS] for start in range(0, len(joined), _UUID_CHARACTERS)]
    return [_NULL + _sized(text) for text in texts]


def _traces(texts: Sequence[str | None]) -> list[bytes]:
    """Each in front of the length of a UUID. Most messages have none."""
    if not any(texts):
        return [_NULL + _UUID_LENGTH] * len(texts)
    return [(_NULL if text is None else _sized(text)) + _UUID_LENGTH for text in texts]


def _sized(text: str) -> bytes:
    encoded = text.encode()
    return _pack_length(len(encoded)) + encoded

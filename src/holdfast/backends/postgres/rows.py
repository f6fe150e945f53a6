"""Messages as rows of `holdfast.messages`, and rows as record batches again.

A message that is nothing but a value, which most are, costs no Python step that is worth the name: the rows of a batch
differ in offset and value only, so one `zip` gives them to the driver, which writes them into a binary COPY stream.

`headers` holds the record's header section as it is on the wire (a count, then names and contents with their lengths),
less the id; NULL where that leaves nothing. A pushed message (`wire/push_batch.py`) has no section: its headers are its
`transaction_id` and its `trace_id`, and its id, which is a UUID, stands in `id_uuid`. So a row that has a transaction
id and no section is a pushed message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

# The driver's own, which it writes without looking twice.
from asyncpg.pgproto.pgproto import UUID

from holdfast.model.ids import Offset
from holdfast.model.push_ids import is_uuid
from holdfast.wire import batch_builder, push_batch, record_batch, varint
from holdfast.wire.push_batch import TRACE_HEADER, TRANSACTION_HEADER, Pushed
from holdfast.wire.record_batch import ID_HEADER

COLUMNS: Final = (
    "topic_id", "partition", "offset", "created_at", "id", "key", "value", "headers", "transaction_id", "trace_id",
    "id_uuid",
)  # fmt: skip

_EPOCH_MS: Final = 946_684_800_000
# What a timestamptz can hold, in milliseconds since 2000: a sender's clock can say anything.
_TIME_MS_MIN: Final = -210_866_803_200_000
_TIME_MS_MAX: Final = 9_223_371_331_199_999
_NONE: Final = repeat(None)
_ID_HEADER: Final = ID_HEADER.encode()


class Message(NamedTuple):
    """A message with more than a value, on its way into a row."""

    created_at: int
    id: str | None
    key: bytes | None
    value: bytes
    headers: bytes | None
    transaction_id: str | None
    trace_id: str | None


def timestamp(milliseconds: int) -> int:
    """A message's time as the database counts it."""
    return max(_TIME_MS_MIN, min(milliseconds - _EPOCH_MS, _TIME_MS_MAX)) * 1000


def milliseconds(timestamp: int) -> int:
    return timestamp // 1000 + _EPOCH_MS


# --- into rows ----------------------------------------------------------------------------------------


Rows = Iterator[tuple[Any, ...]]


def plain_rows(topic_id: int, partition: int, base: int, created_at: int, values: Sequence[bytes]) -> Rows:
    """The rows of messages that are nothing but a value and have one time."""
    place = (repeat(topic_id), repeat(partition), range(base, base + len(values)), repeat(created_at))
    return zip(*place, _NONE, _NONE, values, _NONE, _NONE, _NONE, _NONE, strict=False)


def id_key(message_id: str) -> str:
    """What an id is recognised by: itself if it is a UUID, else the first half of its hash. The schema knows this."""
    return message_id if is_uuid(message_id) else str(UUID(sha256(message_id.encode()).digest()[:16]))


def pushed_size(pushed: Pushed) -> int:
    """Bytes of values and keys: what retention by size counts."""
    return sum(map(len, pushed.values)) + len("".join(pushed.names).encode())


def full_rows(topic_id: int, partition: int, base: int, messages: Iterable[Message]) -> Rows:
    """The rows of messages that may have anything."""
    return ((topic_id, partition, offset, *message, None) for offset, message in enumerate(messages, base))


def size_of(messages: Iterable[Message]) -> int:
    """Bytes of values, keys and headers: what retention by size counts, here and in SQL."""
    return sum(len(each.value) + len(each.key or b"") + len(each.headers or b"") for each in messages)


def messages_of(batch: record_batch.Buffer) -> list[Message]:
    """The messages of a batch, each with what its columns need."""
    base_ms = record_batch.header(batch).base_timestamp_ms
    return [_message(record, base_ms) for record in record_batch.decode_records(batch)]


def _message(record: record_batch.Record, base_ms: int) -> Message:
    created_at = timestamp(base_ms + record.timestamp_delta)
    if not record.headers:
        return Message(created_at, None, record.key, record.value, None, None, None)
    encode = varint.encode
    message_id = transaction_id = trace_id = None
    fields: list[bytes] = []
    for name, content in record.headers:
        if name == ID_HEADER:
            message_id = content.decode() if message_id is None else message_id
            continue
        if name == TRANSACTION_HEADER and transaction_id is None:
            transaction_id = _text(content)
        elif name == TRACE_HEADER and trace_id is None:
            trace_id = _text(content)
        encoded = name.encode()
        fields += (encode(len(encoded)), encoded, encode(len(content)), content)
    section = encode(len(fields) // 4) + b"".join(fields) if fields else None
    return Message(created_at, message_id, record.key, record.value, section, transaction_id, trace_id)


def _text(content: bytes) -> str | None:
    """A header's content where a text column can hold it; what cannot stays in the headers alone."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


# --- and back -----------------------------------------------------------------------------------------

# The columns of `read`: offset, created_at, plain, value, key, headers, id, transaction_id, trace_id.
_time_and_kind = itemgetter(1, 2)
_value = itemgetter(3)


def batches_of(rows: Sequence[Any]) -> list[bytearray]:
    """Consecutive rows as record batches; each holds neighbours of one time and one kind."""
    batches = []
    for (created_at, plain), group in groupby(rows, _time_and_kind):
        neighbours = list(group)
        time_ms = milliseconds(created_at)
        if plain:
            batch = batch_builder.build_values(list(map(_value, neighbours)), time_ms)
        else:
            records = [_record(index, *row[3:]) for index, row in enumerate(neighbours)]
            batch = batch_builder.sealed(records, len(records), time_ms)
        record_batch.place(batch, Offset(neighbours[0][0]), 0)
        batches.append(batch)
    return batches


def _record(
    index: int,
    value: bytes,
    key: bytes | None,
    headers: bytes | None,
    message_id: str | None,
    transaction_id: str | None,
    trace_id: str | None,
) -> bytes:
    encode = varint.encode
    count, fields = 0, b""
    if headers is not None:
        count, position = varint.decode(headers, 0)
        fields = headers[position:]
    elif transaction_id is not None:
        count, fields = push_batch.header_section(transaction_id, trace_id, None)
    if message_id is not None:
        encoded = message_id.encode()
        count += 1
        fields += encode(len(_ID_HEADER)) + _ID_HEADER + encode(len(encoded)) + encoded
    body = b"".join(
        (
            b"\0\0",  # attributes, timestamp delta
            encode(index),
            encode(-1) if key is None else encode(len(key)) + key,
            encode(len(value)),
            value,
            encode(count),
            fields,
        )
    )
    return encode(len(body)) + body

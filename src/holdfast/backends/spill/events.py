"""A spilled message as a line of JSON, and lines as messages again.

A line is an object, written and read in bulk. Its fields::

    queue            the topic
    partition        the message's key where that is text, else "Default"
    transaction_id, trace_id, namespace, task    headers of these names where they are text, else ""
    number           the partition's number; null where the topic was not known: it is chosen when the message is stored
    time             the message's time in milliseconds
    at               when it was spilled, in milliseconds: rises within a file
    id               its id; absent where it has none
    key | key_base64 its key, as text where it is text; absent where it has none
    headers          [name, text] or [name, null, base64] for each; absent where there are none
    tried            what may have stored it already, in the words of the store; absent where nothing can have
    payload          the value, where that is JSON on one line
    payload_text     the value, where it is other text
    payload_base64   the value, where it is anything else
    crc              CRC32C, in hexadecimal, of everything before `,"crc"`

A value comes back as the bytes it was: JSON is kept as it was written, blanks, digits and all.

A batch of values with nothing else, which most are, costs no Python step that is worth the name: all its lines begin
alike, one decoder sees whether all values are JSON, and one join makes the lines. Those of pushes are made of their
columns (`pushes`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import uuid_utils
from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.backends.spill import fields, pushes, sums
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder, record_batch
from holdfast.wire.push_batch import DEFAULT_PARTITION, PushedBatch, headers_of

_EMPTY: Final = Raw(b"")


class Event(Struct, gc=False, omit_defaults=True, kw_only=True):
    """One line; `number` is none where the partition is yet to be chosen. For `push` see `pushes`."""

    queue: str
    partition: str
    transaction_id: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    task: str | UnsetType = UNSET
    number: int | None
    time: int
    at: int
    id: str | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: list[list[str | None]] | None = None
    push: bool = False
    tried: str | None = None
    payload: Raw = _EMPTY
    payload_text: str | None = None
    payload_base64: bytes | None = None

    @property
    def value(self) -> bytes:
        if self.payload_text is not None:
            return self.payload_text.encode()
        if self.payload_base64 is not None:
            return self.payload_base64
        return bytes(self.payload)

    def message(self) -> NewMessage:
        if self.push:
            headers = headers_of(self.transaction_id or "", self.trace_id or None)
            return NewMessage(value=self.value, key=self.partition.encode(), id=self.id, headers=headers)
        key = self.key_base64 if self.key is None else self.key.encode()
        return NewMessage(value=self.value, key=key, id=self.id, headers=list(map(_header, self.headers or ())))


def message_of(record: record_batch.Record, message_id: str | None) -> NewMessage:
    """A record with this id, whatever it had."""
    headers = [pair for pair in record.headers if pair[0] != record_batch.ID_HEADER]
    return NewMessage(value=record.value, key=record.key, id=message_id, headers=headers)


def _header(fields: list[str | None]) -> tuple[str, bytes]:
    name, text, *more = fields
    if text is not None:
        return str(name), text.encode()
    return str(name), base64.b64decode(more[0] or "")


class BadLine(NamedTuple):
    """A line that cannot be read, and why."""

    place: int
    line: bytes
    reason: str


_decode_event = msgspec.json.Decoder(Event).decode
_decode_events = msgspec.json.Decoder(Event).decode_lines


# --- into lines ---------------------------------------------------------------------------------------


def lines_of(
    partition: PartitionId, batch: record_batch.Buffer, at_ms: int, *, is_chosen: bool = True, tried: str | None = None
) -> tuple[bytes, int]:
    """The messages of a batch as lines, and how many they are."""
    number = partition.number if is_chosen else None
    if isinstance(batch, PushedBatch) and batch.pushed is not None:
        pushed, time_ms = batch.pushed, record_batch.header(batch).base_timestamp_ms
        numbers = dict.fromkeys(pushed.names, number)
        return pushes.lines_of(partition.topic, numbers, pushed, time_ms, at_ms, tried), len(pushed.names)
    values = record_batch.plain_values(batch)
    if values is None:
        return _full_lines(partition.topic, number, batch, at_ms, tried)
    head = _begin(partition.topic, number, record_batch.header(batch).base_timestamp_ms, at_ms, tried)
    if fields.are_json(values):
        return sums.summed(head + fields.PAYLOAD, values), len(values)
    return sums.summed(head, list(map(fields.field, values))), len(values)


def _begin(topic: TopicName, number: int | None, time_ms: int, at_ms: int, tried: str | None) -> bytes:
    """Everything in front of the value, of a message that is nothing but a value."""
    place = "null" if number is None else str(number)
    mark = "" if tried is None else f',"tried":{fields.encode(tried).decode()}'
    return (
        f'{{"queue":{fields.encode(topic).decode()},"partition":"{DEFAULT_PARTITION}","transaction_id":"","trace_id":"","namespace":"",'
        f'"task":"","number":{place},"time":{time_ms},"at":{at_ms}{mark},'
    ).encode()


def _full_lines(
    topic: TopicName, number: int | None, batch: record_batch.Buffer, at_ms: int, tried: str | None
) -> tuple[bytes, int]:
    base_ms = record_batch.header(batch).base_timestamp_ms
    begun = []
    for record in record_batch.decode_records(batch):
        text_headers, headers, message_id = _headers(record)
        key = None if record.key is None else _text(record.key)
        event = Event(
            queue=topic,
            partition=DEFAULT_PARTITION if key is None else key,
            transaction_id=text_headers.get("transaction-id", ""),
            trace_id=text_headers.get("trace-id", ""),
            namespace=text_headers.get("namespace", ""),
            task=text_headers.get("task", ""),
            number=number,
            time=base_ms + record.timestamp_delta,
            at=at_ms,
            id=message_id,
            key=key,
            key_base64=record.key if key is None else None,
            headers=headers or None,
            tried=tried,
        )
        begun.append(fields.encode(event)[:-1] + b"," + fields.field(record.value))
    return sums.summed(b"", begun), len(begun)


def _headers(record: record_batch.Record) -> tuple[dict[str, str], list[list[str | None]], str | None]:
    texts: dict[str, str] = {}
    headers: list[list[str | None]] = []
    message_id: str | None = None
    for name, content in record.headers:
        text = _text(content)
        if name == record_batch.ID_HEADER and text is not None:
            message_id = text if message_id is None else message_id
        elif text is not None:
            headers.append([name, text])
            texts.setdefault(name, text)
        else:
            headers.append([name, None, base64.b64encode(content).decode()])
    return texts, headers, message_id


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


# --- and back -----------------------------------------------------------------------------------------


def some_lines(data: bytes, size_bytes: int) -> Iterator[bytes]:
    """Whole lines of `data`, about so many bytes at a time, all of them in the end."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin + size_bytes) + 1 or len(data)
        yield data[begin:end]
        begin = end


def events_of(data: bytes) -> tuple[list[Event | None], list[BadLine]]:
    """An event for each of the whole lines of `data`, none where it is bad."""
    lines = data.split(b"\n")
    assert not lines.pop(), "data ends with a whole line"
    if not lines:
        return [], []
    if sums.match(lines):
        try:
            return list(_decode_events(data)), []
        except (ValueError, RecursionError):
            pass  # one of them is bad: each is looked at below
    events: list[Event | None] = []
    bad: list[BadLine] = []
    for place, line in enumerate(lines):
        reason = sums.fault(line)
        event: Event | None = None
        if reason is None:
            try:
                event = _decode_event(line)
            except (ValueError, RecursionError) as error:
                reason = f"it is no event: {error}"
        events.append(event)
        if reason is not None:
            bad.append(BadLine(place, line, reason))
    return events, bad


def with_ids(batch: bytearray) -> bytearray:
    """The same messages, each with an id."""
    messages = [
        message_of(record, record_batch.record_id(record) or str(uuid_utils.uuid7()))
        for record in record_batch.decode_records(batch)
    ]
    return batch_builder.build_batch(messages, record_batch.header(batch).base_timestamp_ms)

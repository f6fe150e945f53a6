"""A spilled message as a line of JSON, and lines as record batches again.

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
alike, one decoder sees whether all values are JSON, and one join makes the lines.
"""

from __future__ import annotations

import base64
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.broker import admit
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import Topic
from holdfast.wire import batch_builder, record_batch

_SUM: Final = b',"crc":"'
_END: Final = b'"}\n'
# Bytes of a line's end: the sum with its name, and the brace.
_TAIL_BYTES: Final = len(_SUM) + 8 + len(_END) - 1
_DEFAULT_PARTITION: Final = "Default"
_CONTROL: Final = bytes(range(32))
_JSON_BEGINS: Final = frozenset(bytes([byte]) for byte in b'{["-0123456789tfn')
_HEX: Final = re.compile(rb"[0-9a-f]+\Z")
_EMPTY: Final = Raw(b"")

_encode = msgspec.json.Encoder().encode
_decode_values = msgspec.json.Decoder(list[Raw]).decode


class Event(Struct, gc=False, omit_defaults=True, kw_only=True):
    """One line; `number` is none where the partition is yet to be chosen."""

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
        key = self.key_base64 if self.key is None else self.key.encode()
        return NewMessage(value=self.value, key=key, id=self.id, headers=list(map(_header, self.headers or ())))


def message_of(record: record_batch.Record, message_id: str) -> NewMessage:
    """A record with another id."""
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
    values = record_batch.plain_values(batch)
    number = partition.number if is_chosen else None
    if values is None:
        return _full_lines(partition.topic, number, batch, at_ms, tried)
    head = _begin(partition.topic, number, record_batch.header(batch).base_timestamp_ms, at_ms, tried)
    if _are_json(values):
        return _summed(head + b'"payload":', values), len(values)
    return _summed(head, list(map(_field, values))), len(values)


def _begin(topic: TopicName, number: int | None, time_ms: int, at_ms: int, tried: str | None) -> bytes:
    """Everything in front of the value, of a message that is nothing but a value."""
    place = "null" if number is None else str(number)
    mark = "" if tried is None else f',"tried":{_encode(tried).decode()}'
    return (
        f'{{"queue":"{topic}","partition":"{_DEFAULT_PARTITION}","transaction_id":"","trace_id":"","namespace":"",'
        f'"task":"","number":{place},"time":{time_ms},"at":{at_ms}{mark},'
    ).encode()


def _are_json(values: list[bytes]) -> bool:
    """Whether all values are JSON on one line, written so that it comes back as it was."""
    joined = b",".join(values)
    if joined[:1] not in _JSON_BEGINS:
        return False
    try:
        # A comma in the wrong place could make other values of the same bytes: they are compared.
        if list(map(bytes, _decode_values(b"[" + joined + b"]"))) != values:
            return False
        joined.decode()
    except (ValueError, RecursionError):
        return False
    return len(joined.translate(None, _CONTROL)) == len(joined)


def _field(value: bytes) -> bytes:
    """The name and the content of a value's field."""
    if _are_json([value]):
        return b'"payload":' + value
    try:
        return b'"payload_text":' + _encode(value.decode())
    except UnicodeDecodeError:
        return b'"payload_base64":' + _encode(value)


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
            partition=_DEFAULT_PARTITION if key is None else key,
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
        begun.append(_encode(event)[:-1] + b"," + _field(record.value))
    return _summed(b"", begun), len(begun)


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


def _summed(head: bytes, rests: Sequence[bytes]) -> bytes:
    """Lines that begin alike, each with the sum of what is in it."""
    sums = array("I", map(crc32c, rests, repeat(crc32c(head))))
    if sys.byteorder == "little":
        sums.byteswap()
    parts: list[bytes] = [_SUM] * (4 * len(rests))
    parts[0::4] = rests
    parts[2::4] = sums.tobytes().hex(",", 4).encode().split(b",")
    parts[3::4] = [_END + head] * len(rests)
    parts[-1] = _END
    return head + b"".join(parts)


# --- and back -----------------------------------------------------------------------------------------


def events_of(data: bytes) -> tuple[list[Event | None], list[BadLine]]:
    """An event for each of the whole lines of `data`, none where it is bad."""
    lines = data.split(b"\n")
    assert not lines.pop(), "data ends with a whole line"
    if _sums_match(lines):
        try:
            return list(_decode_events(data)), []
        except (ValueError, RecursionError):
            pass  # one of them is bad: each is looked at below
    events: list[Event | None] = []
    bad: list[BadLine] = []
    for place, line in enumerate(lines):
        reason = _fault(line)
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


def _sums_match(lines: list[bytes]) -> bool:
    told = b"".join([line[-10:-2] for line in lines])
    if len(told) != 8 * len(lines) or not _HEX.match(told):
        return False
    sums = array("I", bytes.fromhex(told.decode()))
    if sys.byteorder == "little":
        sums.byteswap()
    return array("I", map(crc32c, [line[:-_TAIL_BYTES] for line in lines])) == sums


def _fault(line: bytes) -> str | None:
    """What is wrong with the frame of a line."""
    told = line[-10:-2]
    if line[-_TAIL_BYTES:-10] != _SUM or line[-2:] != _END[:-1] or not _HEX.match(told):
        return "it does not end with its sum"
    return None if crc32c(line[:-_TAIL_BYTES]) == int(told, 16) else "its sum does not match"


def whole_bytes(data: bytes) -> int:
    """How much of what a crash left is whole lines: up to the end of the last good one."""
    end = data.rfind(b"\n") + 1
    while end:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        if _fault(data[begin : end - 1]) is None:
            return end
        end = begin
    return 0


Choose = Callable[[Event], PartitionId]


def batches_of(events: Iterable[Event], choose: Choose, messages_max: int) -> list[tuple[PartitionId, bytearray]]:
    """Events as record batches, by partition, each partition's in the order of the events.

    `choose` gives the partition of one that has none yet.
    """
    by_partition: dict[PartitionId, list[Event]] = {}
    for (queue, number), run in groupby(events, _place):
        if number is not None:
            by_partition.setdefault(PartitionId(TopicName(queue), number), []).extend(run)
        else:
            for event in run:
                by_partition.setdefault(choose(event), []).append(event)
    return [(partition, batch) for partition, run in by_partition.items() for batch in _batches(run, messages_max)]


_place = attrgetter("queue", "number")


def _time_and_kind(event: Event) -> tuple[int, bool]:
    is_plain = event.id is None and event.key is None and event.headers is None and event.key_base64 is None
    return event.time, is_plain


def _batches(events: list[Event], messages_max: int) -> Iterator[bytearray]:
    for (time_ms, is_plain), run in groupby(events, _time_and_kind):
        alike = list(run)
        for first in range(0, len(alike), messages_max):
            some = alike[first : first + messages_max]
            if is_plain:
                yield batch_builder.build_values([event.value for event in some], time_ms)
            else:
                yield batch_builder.build_batch([event.message() for event in some], time_ms)


def chosen_partition(event: Event, topic: Topic) -> PartitionId:
    """Where a message goes that was spilled before anybody knew how its topic is divided."""
    message = NewMessage(value=b"", key=event.message().key, id=event.id)
    return PartitionId(topic.name, admit.partition_of(topic, message) or 0)

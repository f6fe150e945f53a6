"""What goes over a callback's connection: messages to the receiver, acknowledgements back.

The broker sends messages, a line each, as `text.py` writes them. In the format `plain`::

    MESSAGE|<topic>|<payload>
    MESSAGE_BASE64|<topic>|<base64>                    a payload that holds a line break

and in the format `numbered`::

    MESSAGE_AT|<stream>|<partition>|<offset>|<id>|<topic>|<payload>
    MESSAGE_AT_BASE64|<stream>|<partition>|<offset>|<id>|<topic>|<base64>

Within one `<stream>` and partition, an offset stands for one message for ever: the stream is the topic's token, drawn
when it was made, and the epoch in which the message was stored. `<id>` is the publisher's, written as in MESSAGE_ID, or
empty.

With the setting `callback_acks` a receiver is also told, over a connection of its own, that its subscription was
made or removed. It answers nothing to that::

    SUBACK|<topic>
    UNSUBACK|<topic>

The receiver answers, in the order of the lines::

    ACK                                                one message is done
    ACK|<n>                                            the next n messages are done
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.model.errors import BadCommand
from holdfast.model.ids import Offset
from holdfast.wire import record_batch
from holdfast.wire.text import STANDARD, encode_id

# `ACK|` and the largest count; a line that is longer is not one.
ACK_LINE_BYTES_MAX: Final = 24
_ACK: Final = b"ACK\n"
_COUNTED = re.compile(rb"ACK(?:\|([1-9][0-9]{0,9}))?\r?\Z")
_TOLD: Final = (b"SUBACK|", b"UNSUBACK|")
_SHOWN_BYTES: Final = 60
# Room for an epoch, a partition and an offset.
_NUMBERS_BYTES: Final = 35
_ESCAPED = re.compile(rb"%(25|7C|0A|0D)")

Buffer = bytes | bytearray | memoryview


class Lines(NamedTuple):
    """Messages as lines, how many they are, and where the next ones begin."""

    data: bytes
    messages: int
    next_offset: Offset


class _Part(NamedTuple):
    """Messages of one batch, from one of its values up to another."""

    head: record_batch.BatchHeader
    values: list[bytes]
    ids: list[bytes]
    begin: int
    end: int


def plain_lines(topic: bytes, batches: Sequence[Buffer], start: Offset, bytes_max: int) -> Iterator[Lines]:
    """The messages of some batches from an offset on, in pieces; a message that is larger is a piece of its own."""
    around = len(b"MESSAGE_BASE64||\n") + len(topic)
    for parts, next_offset in _pieces(batches, start, around, bytes_max, with_ids=False):
        values = [value for part in parts for value in part.values[part.begin : part.end]]
        yield Lines(STANDARD.lines(topic, values) if values else b"", len(values), next_offset)


def numbered_lines(
    topic: bytes, token: str, partition: int, batches: Sequence[Buffer], start: Offset, bytes_max: int
) -> Iterator[Lines]:
    """The same with where each stands."""
    around = len(b"MESSAGE_AT_BASE64||||||\n") + len(topic) + len(token) + _NUMBERS_BYTES
    for parts, next_offset in _pieces(batches, start, around, bytes_max, with_ids=True):
        lines: list[bytes] = []
        for head, values, ids, begin, end in parts:
            before = b"|%b.%d|%d|" % (token.encode(), head.leader_epoch, partition)
            lines += [
                b"MESSAGE_AT%b%d|%b|%b|%b\n" % (before, offset, message_id, topic, value)
                if b"\n" not in value
                else b"MESSAGE_AT_BASE64%b%d|%b|%b|%b\n" % (before, offset, message_id, topic, base64.b64encode(value))
                for offset, message_id, value in zip(
                    range(head.base_offset + begin, head.base_offset + end),
                    ids[begin:end],
                    values[begin:end],
                    strict=True,
                )
            ]
        yield Lines(b"".join(lines), len(lines), next_offset)


def _pieces(
    batches: Sequence[Buffer], start: Offset, around: int, bytes_max: int, *, with_ids: bool
) -> Iterator[tuple[list[_Part], Offset]]:
    """What goes together, `around` being what surrounds each value, and where the next ones begin."""
    parts: list[_Part] = []
    size, next_offset = 0, start
    for batch in batches:
        head, values = record_batch.header(batch), record_batch.decode_values(batch)
        ids = _ids(batch, head.record_count) if with_ids else []
        begin = max(0, start - head.base_offset)
        whole = sum(map(len, values)) + sum(map(len, ids)) + around * len(values)
        if size + whole <= bytes_max:
            size += whole
        else:
            for nth in range(begin, len(values)):
                each = around + len(values[nth]) + (len(ids[nth]) if with_ids else 0)
                if size and size + each > bytes_max:
                    parts.append(_Part(head, values, ids, begin, nth))
                    yield parts, Offset(head.base_offset + nth)
                    parts, size, begin = [], 0, nth
                size += each
        parts.append(_Part(head, values, ids, begin, max(begin, len(values))))
        next_offset = head.next_offset
    if parts:
        yield parts, next_offset


def _ids(batch: Buffer, count: int) -> list[bytes]:
    if not record_batch.has_ids(batch):
        return [b""] * count
    return [encode_id(record_batch.record_id(record) or "") for record in record_batch.decode_records(batch)]


def subscribed_line(topic: bytes) -> bytes:
    return b"SUBACK|%b\n" % topic


def removed_line(topic: bytes) -> bytes:
    return b"UNSUBACK|%b\n" % topic


def count_acks(lines: bytes, lines_max: int) -> int:
    """How many messages whole lines acknowledge. Raises `BadCommand` for anything else, and for too many lines."""
    if lines.count(b"\n") > lines_max:
        raise too_many_acks(lines.count(b"\n"), lines_max)
    count = len(lines) // len(_ACK)
    if lines == _ACK * count:
        return count
    count = 0
    for line in lines[:-1].split(b"\n"):
        found = _COUNTED.match(line)
        if found is None:
            raise not_an_ack(line)
        count += int(found[1] or 1)
    return count


def too_many_acks(count: int, under_way: int) -> BadCommand:
    return BadCommand(f"the receiver acknowledged {count} messages, and {under_way} were under way")


def not_an_ack(line: bytes) -> BadCommand:
    """Of what somebody answered no more is told than helps to see what it is, and nothing that is not printable."""
    return BadCommand(f"the receiver answered {ascii(line[:_SHOWN_BYTES])[1:]}, and not ACK or ACK|<n>")


class Received(NamedTuple):
    """A message as a receiver gets it. Without a number there is neither stream nor partition nor offset."""

    topic: str
    value: bytes
    stream: bytes = b""
    partition: int = -1
    offset: int = -1
    id: str | None = None


def parse_messages(lines: bytes) -> list[Received]:
    """The messages among whole lines; what else a broker may say is left out. Raises `BadCommand` for anything else."""
    return [_parsed(line) for line in lines[:-1].split(b"\n") if not line.startswith(_TOLD)]


def _parsed(line: bytes) -> Received:
    try:
        if line.startswith(b"MESSAGE_AT|"):
            _, stream, partition, offset, message_id, topic, value = line.split(b"|", 6)
            return Received(topic.decode(), value, stream, int(partition), int(offset), _decoded_id(message_id))
        if line.startswith(b"MESSAGE|"):
            _, topic, value = line.split(b"|", 2)
            return Received(topic.decode(), value)
        if line.startswith(b"MESSAGE_BASE64|"):
            _, topic, value = line.split(b"|", 2)
            return Received(topic.decode(), base64.b64decode(value, validate=True))
        if line.startswith(b"MESSAGE_AT_BASE64|"):
            _, stream, partition, offset, message_id, topic, value = line.split(b"|", 6)
            decoded = base64.b64decode(value, validate=True)
            return Received(topic.decode(), decoded, stream, int(partition), int(offset), _decoded_id(message_id))
    except ValueError:
        pass
    raise BadCommand(f"{ascii(line[:_SHOWN_BYTES])[1:]} is no message of a broker")


def _decoded_id(field: bytes) -> str | None:
    if not field:
        return None
    if b"%" in field:
        field = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), field)
    return field.decode("utf-8", "surrogateescape")

"""What goes over a callback's connection: messages to the receiver, acknowledgements back.

The broker sends nothing but messages, a line each, as `text.py` writes them. In the format `plain`::

    MESSAGE|<topic>|<payload>
    MESSAGE_BASE64|<topic>|<base64>                    a payload that holds a line break

and in the format `numbered`::

    MESSAGE_AT|<stream>|<partition>|<offset>|<id>|<topic>|<payload>
    MESSAGE_AT_BASE64|<stream>|<partition>|<offset>|<id>|<topic>|<base64>

Within one `<stream>` and partition, an offset stands for one message for ever; who keeps the highest one of each has
seen everything up to there. A topic that is deleted and created again is another stream. `<id>` is the publisher's,
written as in MESSAGE_ID, or empty.

The receiver answers, in the order of the lines::

    ACK                                                one message is done
    ACK|<n>                                            the next n messages are done
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.model.errors import BadCommand
from holdfast.wire import record_batch
from holdfast.wire.text import STANDARD, encode_id

# `ACK|` and the largest count; a line that is longer is not one.
ACK_LINE_BYTES_MAX: Final = 24
_ACK: Final = b"ACK\n"
_COUNTED = re.compile(rb"ACK(?:\|([1-9][0-9]{0,9}))?\r?\Z")
_SHOWN_BYTES: Final = 60
_ESCAPED = re.compile(rb"%(25|7C|0A|0D)")

Buffer = bytes | bytearray | memoryview


class Lines(NamedTuple):
    """Messages as lines, and how many they are."""

    data: bytes
    messages: int


def plain_lines(topic: bytes, batches: Sequence[Buffer], skip: int) -> Lines:
    """All messages of some batches but for the first `skip`."""
    values = [value for batch in batches for value in record_batch.decode_values(batch)]
    del values[:skip]
    return Lines(STANDARD.lines(topic, values) if values else b"", len(values))


def numbered_lines(
    topic: bytes, stream_number: int, partition: int, batches: Sequence[Buffer], skip: int, *, is_epoch_told: bool
) -> Lines:
    """The same with where each stands. `is_epoch_told`: two nodes may have stored different messages at one offset."""
    lines: list[bytes] = []
    for batch in batches:
        head = record_batch.header(batch)
        stream = b"%d.%d" % (stream_number, head.leader_epoch) if is_epoch_told else b"%d" % stream_number
        before = b"|%b|%d|" % (stream, partition)
        ids = _ids(batch, head.record_count)
        values = record_batch.decode_values(batch)
        lines += [
            b"MESSAGE_AT%b%d|%b|%b|%b\n" % (before, offset, message_id, topic, value)
            if b"\n" not in value
            else b"MESSAGE_AT_BASE64%b%d|%b|%b|%b\n" % (before, offset, message_id, topic, base64.b64encode(value))
            for offset, message_id, value in zip(
                range(head.base_offset, head.base_offset + len(values)), ids, values, strict=True
            )
        ]
    del lines[:skip]
    return Lines(b"".join(lines), len(lines))


def _ids(batch: Buffer, count: int) -> list[bytes]:
    if not record_batch.has_ids(batch):
        return [b""] * count
    return [encode_id(record_batch.record_id(record) or "") for record in record_batch.decode_records(batch)]


def count_acks(lines: bytes) -> int:
    """How many messages whole lines acknowledge. Raises `BadCommand` for anything else."""
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
    """What whole lines bring. Raises `BadCommand` for a line that is no message."""
    return [_parsed(line) for line in lines[:-1].split(b"\n")]


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

"""The text protocol: pipe-separated fields, one packet a line.

From clients (commands in any case, `\\r` before the line's end is dropped, surplus empty fields are
tolerated)::

    PUBLISH|<topic>|<payload>                    PUBACK|Published successfully
    PUBLISH_ID|<messageID>|<topic>|<payload>     PUBACK|Published successfully
    SUBSCRIBE|<topic>[|<name>]                   SUBACK|Subscribed successfully
    SUBSCRIBE_ID|<topic>[|<name>]                SUBACK|Subscribed successfully
    UNSUBSCRIBE|<topic>                          UNSUBACK|Unsubscribed successfully
    SUBSCRIBE_CALLBACK|<topic>|<host:port>[|<name>]  SUBACK|Subscribed successfully
    UNSUBSCRIBE_CALLBACK|<topic>|<host:port>     UNSUBACK|Unsubscribed successfully
    PING                                         PONG
    HEARTBEAT                                    HEARTBEAT_ACK

To clients besides: `CONNACK|Connected to Message Broker` on connect, `MESSAGE|<topic>|<payload>`, and
`ERROR|<code>|<text>`. A payload is the raw bytes up to the end of the line and may hold `|`. A message whose
payload holds a line break (published over HTTP) cannot be a line; it comes as
`MESSAGE_BASE64|<topic>|<base64>`.

Who subscribed with SUBSCRIBE_ID gets `MESSAGE_ID|<messageID>|<topic>|<payload>` instead, and
`MESSAGE_ID_BASE64|<messageID>|<topic>|<base64>`. An id is any text, so in these two packets `%`, `|` and line breaks
of an id are written as `%25`, `%7C`, `%0A` and `%0D`, and nothing else is.

The `ack` dialect has no CONNACK, SUBACK and UNSUBACK, answers `ACK` to a publish, and delivers the bare
payload on a line; with ids, deliveries are the same in both.

Packets of replication between a primary and its backup are told apart here and described in `replication.py`.

A chunk of lines that all publish to one topic, the flood, is parsed by one `split`, or, where the lines are
equally long, by one `replace` (`equal_lines.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.model.errors import BadCommand, HoldfastError
from holdfast.wire.equal_lines import equal_lines

PUBLISH_PREFIX = b"PUBLISH|"


class Publishes(NamedTuple):
    """Publishes that follow one another, by topic; `order` has the topic of each line."""

    values_by_topic: Mapping[bytes, Sequence[bytes]]
    order: list[bytes]


class PublishId(NamedTuple):
    message_id: bytes
    topic: bytes
    payload: bytes


class PublishIds(NamedTuple):
    """Publishes with ids that follow one another."""

    lines: list[PublishId]


class Command(NamedTuple):
    """A command other than a publish, upper case, with its fields."""

    name: bytes
    fields: list[bytes]


class Replication(NamedTuple):
    """Packets of replication that follow one another, as they came."""

    lines: list[bytes]


class Invalid(NamedTuple):
    error: HoldfastError


Item = Publishes | PublishIds | Command | Replication | Invalid


class Dialect(NamedTuple):
    """What the broker says. An empty reply is not sent."""

    connected: bytes
    published: bytes
    subscribed: bytes
    unsubscribed: bytes
    names_topic: bool

    def lines(self, topic: bytes, values: Sequence[bytes]) -> bytes:
        """Deliveries of messages of one topic, a line each."""
        prefix = b"MESSAGE|" + topic + b"|" if self.names_topic else b""
        lines = b"%b%b\n" % (prefix, (b"\n" + prefix).join(values))
        if lines.count(b"\n") == len(values):
            return lines
        return b"".join(
            b"MESSAGE_BASE64|%b|%b\n" % (topic, base64.b64encode(value)) if b"\n" in value else prefix + value + b"\n"
            for value in values
        )


STANDARD = Dialect(
    connected=b"CONNACK|Connected to Message Broker\n",
    published=b"PUBACK|Published successfully\n",
    subscribed=b"SUBACK|Subscribed successfully\n",
    unsubscribed=b"UNSUBACK|Unsubscribed successfully\n",
    names_topic=True,
)
ACK = Dialect(connected=b"", published=b"ACK\n", subscribed=b"", unsubscribed=b"", names_topic=False)
DIALECTS = {"standard": STANDARD, "ack": ACK}


def lines_with_ids(topic: bytes, messages: Iterable[tuple[str, bytes]]) -> bytes:
    """Deliveries of messages with their ids, a line each; the same in both dialects."""
    return b"".join(
        b"MESSAGE_ID_BASE64|%b|%b|%b\n" % (encode_id(message_id), topic, base64.b64encode(value))
        if b"\n" in value
        else b"MESSAGE_ID|%b|%b|%b\n" % (encode_id(message_id), topic, value)
        for message_id, value in messages
    )


def encode_id(message_id: str) -> bytes:
    """An id as a field of a packet."""
    field = message_id.encode("utf-8", "surrogateescape")
    if _NOT_IN_A_FIELD.isdisjoint(field):
        return field
    return b"".join(b"%%%02X" % byte if byte in _NOT_IN_A_FIELD else bytes((byte,)) for byte in field)


_NOT_IN_A_FIELD = frozenset(b"%|\r\n")


def error_line(error: HoldfastError) -> bytes:
    text = " ".join(error.message.split())
    return f"ERROR|{error.code}|{text}\n".encode("utf-8", "replace")


def parse(chunk: bytes) -> list[Item]:
    """What whole lines (the last one ended as well) ask for, in their order."""
    flood = _parse_flood(chunk)
    if flood is not None:
        return [flood]
    items: list[Item] = []
    gathering: dict[bytes, list[bytes]] | None = None
    order: list[bytes] = []
    for raw in chunk[:-1].split(b"\n"):
        line = raw[:-1] if raw.endswith(b"\r") else raw
        command, _, rest = line.partition(b"|")
        if command == b"PUBLISH" or command.upper() == b"PUBLISH":
            topic, bar, payload = rest.partition(b"|")
            if bar:
                if gathering is None:
                    gathering, order = {}, []
                    items.append(Publishes(gathering, order))
                gathering.setdefault(topic, []).append(payload)
                order.append(topic)
                continue
        gathering = None
        word = command.upper()
        if word in _REPLICATION:
            if items and isinstance(items[-1], Replication):
                items[-1].lines.append(line)
            else:
                items.append(Replication([line]))
        elif line:  # an empty line is a keyboard's, not a command
            other = _parse_other(word, rest)
            if not isinstance(other, PublishId):
                items.append(other)
            elif items and isinstance(items[-1], PublishIds):
                items[-1].lines.append(other)
            else:
                items.append(PublishIds([other]))
    return items


def _parse_flood(chunk: bytes) -> Publishes | None:
    """The publishes in a chunk, if that is all there is and all go to one topic."""
    if not chunk.startswith(PUBLISH_PREFIX):
        return None
    if chunk.find(b"\n") == len(chunk) - 1:
        topic, found, value = chunk[len(PUBLISH_PREFIX) : -1].partition(b"|")
        return Publishes({topic: [value.removesuffix(b"\r")]}, [topic]) if found else None
    bar = chunk.find(b"|", len(PUBLISH_PREFIX))
    prefix = chunk[: bar + 1]
    if bar < 0 or b"\n" in prefix:
        return None
    topic = prefix[len(PUBLISH_PREFIX) : -1]
    equal = equal_lines(chunk, prefix)
    if equal is not None:
        return Publishes({topic: equal}, [topic] * len(equal))
    values = chunk[len(prefix) : -1].split(b"\n" + prefix)
    if len(values) != chunk.count(b"\n"):
        return None
    if b"\r" in chunk:
        values = [value[:-1] if value.endswith(b"\r") else value for value in values]
    return Publishes({topic: values}, [topic] * len(values))


def _parse_other(command: bytes, rest: bytes) -> PublishId | Command | Invalid:
    if command == b"PUBLISH_ID":
        message_id, _, after = rest.partition(b"|")
        topic, bar, payload = after.partition(b"|")
        if not bar:
            return Invalid(BadCommand("a field is missing; write PUBLISH_ID|<messageID>|<topic>|<payload>"))
        return PublishId(message_id, topic, payload)
    if command == b"PUBLISH":
        return Invalid(BadCommand("a field is missing; write PUBLISH|<topic>|<payload>"))
    fields = rest.split(b"|")
    while fields and not fields[-1]:
        fields.pop()
    fewest, most, usage = _USAGE.get(command, (0, -1, ""))
    if most < 0:
        shown = ascii(command[:40].decode("utf-8", "replace"))
        return Invalid(BadCommand(f"{shown} is not a command; known are {_KNOWN}"))
    if not fewest <= len(fields) <= most:
        return Invalid(BadCommand(f"wrong number of fields ({len(fields)}); write {usage}"))
    return Command(command, fields)


_USAGE = {
    b"SUBSCRIBE": (1, 2, "SUBSCRIBE|<topic> or SUBSCRIBE|<topic>|<name>"),
    b"SUBSCRIBE_ID": (1, 2, "SUBSCRIBE_ID|<topic> or SUBSCRIBE_ID|<topic>|<name>"),
    b"UNSUBSCRIBE": (1, 1, "UNSUBSCRIBE|<topic>"),
    b"SUBSCRIBE_CALLBACK": (2, 3, "SUBSCRIBE_CALLBACK|<topic>|<host:port> or with |<name> behind it"),
    b"UNSUBSCRIBE_CALLBACK": (2, 2, "UNSUBSCRIBE_CALLBACK|<topic>|<host:port>"),
    b"PING": (0, 0, "PING"),
    b"HEARTBEAT": (0, 0, "HEARTBEAT"),
}
_REPLICATION = frozenset((b"REPLICATE", b"MARK_DELIVERED", b"CLEAR", b"ROLE"))
_KNOWN = (
    "PUBLISH, PUBLISH_ID, SUBSCRIBE, SUBSCRIBE_ID, UNSUBSCRIBE, SUBSCRIBE_CALLBACK, UNSUBSCRIBE_CALLBACK, PING and "
    "HEARTBEAT"
)

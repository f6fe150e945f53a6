"""The text protocol as a client reads it: what the broker says, one line at a time.

The lines themselves are described in `text.py`. Both dialects are understood: `PUBACK|…` and `ACK` are the same
answer. Bare payloads, which the `ack` dialect delivers to `SUBSCRIBE`, are not for this reader: it asks with
`SUBSCRIBE_ID`, and deliveries with ids look the same in both dialects.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from holdfast.model.errors import BadCommand

ACKNOWLEDGED: Final = frozenset((b"PUBACK|Published successfully", b"ACK"))
PONG: Final = b"PONG"


class Delivered(NamedTuple):
    """A message of a subscription with ids."""

    message_id: str
    topic: str
    value: bytes


class Refused(NamedTuple):
    """`ERROR|<code>|<text>`: the answer to the oldest line that has none, or a last word before the broker hangs up."""

    code: str
    text: str


class Said(NamedTuple):
    """Any other answer, named by its first field: CONNACK, SUBACK, PONG, PUBACK, ACK …"""

    word: str


Answer = Delivered | Refused | Said
_WORDS: Final = frozenset(
    (b"CONNACK", b"PUBACK", b"ACK", b"SUBACK", b"UNSUBACK", b"PONG", b"HEARTBEAT_ACK", b"MESSAGE", b"MESSAGE_BASE64")
)


def parse_answer(line: bytes) -> Answer:
    """One line without its end. `BadCommand` if no broker says such a thing."""
    word, _, rest = line.partition(b"|")
    if word == b"MESSAGE_ID" or word == b"MESSAGE_ID_BASE64":
        message_id, first_bar, after = rest.partition(b"|")
        topic, second_bar, payload = after.partition(b"|")
        if not (first_bar and second_bar):
            raise BadCommand(f"a field is missing in {_shown(line)}")
        value = payload if word == b"MESSAGE_ID" else _from_base64(payload)
        return Delivered(decode_id(message_id), topic.decode("utf-8", "replace"), value)
    if word == b"ERROR":
        code, _, text = rest.partition(b"|")
        return Refused(code.decode("utf-8", "replace"), text.decode("utf-8", "replace"))
    if word in _WORDS:
        return Said(word.decode("ascii"))
    raise BadCommand(f"{_shown(line)} is nothing that a broker says")


def decode_id(field: bytes) -> str:
    """An id out of the field that `text.encode_id` made of it."""
    if b"%" in field:
        field = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), field)
    return field.decode("utf-8", "surrogateescape")


_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


def _from_base64(payload: bytes) -> bytes:
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise BadCommand(f"{_shown(payload)} is not base64") from error


def _shown(line: bytes) -> str:
    return ascii(line[:60].decode("utf-8", "replace"))

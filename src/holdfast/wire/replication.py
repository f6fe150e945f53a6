"""The packets between a primary and its backup, which may be of any make: text, one packet a line.

From a primary, and what a backup answers::

    REPLICATE|<messageID>|<seqNum>|<topic>|<payload>     REPLICATED|<seqNum>: everything up to that number is stored
    MARK_DELIVERED|<messageID>|<seqNum>                  (no answer)
    REPLICATE|<topic>|<payload>                          (no answer: the bare form, which has neither ids nor numbers)
    CLEAR|<topic>|<payload>                              (no answer)
    HEARTBEAT                                            HEARTBEAT_ACK
    PING||                                               PONG

The dialect says which form a REPLICATE has: the numbered one with `standard`, the bare one with `ack`, and always the
numbered one between two of ours. It is never guessed: a number that is none is an error, and no topic. A payload is the
raw bytes up to the end of the line, and an id is any text without `|` and line breaks: what does not fit is refused
when it is published (`check_fits`), so nothing can be in the way later.

Two of ours tell each other where they stand (`consensus/plain_standing.py`), before a heartbeat, and answer likewise::

    ROLE|<role>|<token>|<epoch>|<owner>|<epoch before>|<owner before>|<base>|<start>|<end>|<mark>

A partner that does not know this packet may refuse or ignore it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.consensus.plain_standing import Reign, Role, Standing
from holdfast.model.errors import BadCommand, NotReplicable

# Far more than anybody counts to, and a number in any language.
NUMBER_MAX: Final = 2**62
_NUMBER_DIGITS_MAX: Final = 19
_NUMBERED_FIELDS: Final = 4
_STANDING_FIELDS: Final = 10
_NAME_CHARACTERS_MAX: Final = 64
_CONFIRMED: Final = b"REPLICATED|"
ROLE: Final = b"ROLE|"


class Replicate(NamedTuple):
    """A message to keep. Without an id and a number it came in the bare form."""

    message_id: str | None
    number: int | None
    topic: str
    value: bytes


class MarkDelivered(NamedTuple):
    message_id: str
    number: int


class Clear(NamedTuple):
    topic: str
    value: bytes


Packet = Replicate | MarkDelivered | Clear | Standing


def check_fits(message_id: str | None, value: bytes) -> None:
    """Raises `NotReplicable` for what cannot be told to a partner in a line."""
    if b"\n" in value or value.endswith(b"\r"):
        raise NotReplicable("a plain pair keeps messages that fit in a line: no line break, and no \\r at the end")
    if message_id is not None and any(character in message_id for character in "|\r\n"):
        raise NotReplicable("a plain pair keeps messages whose ids fit in a field: no '|' and no line break")


def parse_packet(line: bytes, *, is_bare: bool) -> Packet:
    """A line that begins with a command of replication, without its end. Raises `BadCommand`.

    `is_bare`: whether a REPLICATE has neither id nor number, as the `ack` dialect has it.
    """
    command, _, rest = line.partition(b"|")
    command = command.upper()
    if command == b"ROLE":
        return parse_standing(line)
    if command == b"MARK_DELIVERED":
        return _mark(rest)
    if command == b"CLEAR":
        topic, bar, payload = rest.partition(b"|")
        if not bar:
            raise BadCommand("a field is missing; write CLEAR|<topic>|<payload>")
        return Clear(_text(topic), payload)
    if is_bare:
        topic, bar, payload = rest.partition(b"|")
        if not bar:
            raise BadCommand("a field is missing; write REPLICATE|<topic>|<payload>")
        return Replicate(None, None, _text(topic), payload)
    fields = rest.split(b"|", _NUMBERED_FIELDS - 1)
    if len(fields) != _NUMBERED_FIELDS or not fields[0]:
        raise BadCommand("a field is missing; write REPLICATE|<messageID>|<seqNum>|<topic>|<payload>")
    message_id, number, topic, payload = fields
    return Replicate(_id(message_id), _number(number), _text(topic), payload)


def replicate_line(message_id: str, number: int, topic: str, value: bytes) -> bytes:
    return b"REPLICATE|%b|%d|%b|%b\n" % (message_id.encode(), number, topic.encode(), value)


def bare_replicate_line(topic: str, value: bytes) -> bytes:
    return b"REPLICATE|%b|%b\n" % (topic.encode(), value)


def mark_line(message_id: str, number: int) -> bytes:
    return b"MARK_DELIVERED|%b|%d\n" % (message_id.encode(), number)


def clear_line(topic: str, value: bytes) -> bytes:
    return b"CLEAR|%b|%b\n" % (topic.encode(), value)


def confirmation(number: int) -> bytes:
    return b"REPLICATED|%d\n" % number


def confirmed_number(line: bytes) -> int | None:
    """The number of a confirmation; `None` if the line is none. Raises `BadCommand` for one nobody can have got."""
    return _number(line[len(_CONFIRMED) :]) if line.startswith(_CONFIRMED) else None


def standing_line(standing: Standing) -> bytes:
    fields = (
        standing.role.value,
        standing.token,
        *standing.reign,
        *standing.previous,
        standing.base,
        standing.start,
        standing.end,
        standing.mark,
    )
    return ROLE + "|".join(map(str, fields)).encode() + b"\n"


def parse_standing(line: bytes) -> Standing:
    """Raises `BadCommand`."""
    fields = line[len(ROLE) :].decode("ascii", "replace").split("|")
    if len(fields) != _STANDING_FIELDS or any(len(field) > _NAME_CHARACTERS_MAX for field in fields):
        raise BadCommand(f"a standing has {_STANDING_FIELDS} fields, as in docs/text.md")
    role, token, epoch, owner, epoch_before, owner_before, *positions = fields
    try:
        known = Role(role)
    except ValueError:
        raise BadCommand(f"{role!a} is nothing a broker of a pair can be") from None
    base, start, end, mark = (_number(field.encode()) for field in positions)
    return Standing(
        role=known,
        token=token,
        reign=Reign(_number(epoch.encode()), owner),
        previous=Reign(_number(epoch_before.encode()), owner_before),
        base=base,
        start=start,
        end=end,
        mark=mark,
    )


def _number(field: bytes) -> int:
    if not field.isdigit() or len(field) > _NUMBER_DIGITS_MAX or int(field) > NUMBER_MAX:
        raise BadCommand(f"{field[:40]!a} is no number from 0 to {NUMBER_MAX}")
    return int(field)


def _mark(rest: bytes) -> MarkDelivered:
    fields = rest.split(b"|")
    while len(fields) > 2 and not fields[-1]:
        fields.pop()
    if len(fields) != 2 or not fields[0]:
        raise BadCommand("an id and a number are expected; write MARK_DELIVERED|<messageID>|<seqNum>")
    return MarkDelivered(_id(fields[0]), _number(fields[1]))


def _id(field: bytes) -> str:
    try:
        return field.decode()
    except UnicodeDecodeError:
        # Not `replace`: two ids that only differ in such bytes would be taken for one, and a message lost.
        raise BadCommand(f"a message id is UTF-8 text, not {field[:60]!a}") from None


def _text(field: bytes) -> str:
    return field.decode("utf-8", "replace")

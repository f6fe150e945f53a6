"""What the control log says: the changes of topics, cursors and nodes that all nodes make in the same order.

An entry (`KIND_COMMAND`) is a row of commands as msgpack. Commands may arrive twice, when whoever proposed them
did not hear that they were taken; each is made so that the second time changes nothing and is no error.
Which builds know which command is said in `levels.py`; every new one is named there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.consensus.membership import Kind
from holdfast.model.callbacks import CallbackFormat
from holdfast.model.draws import Draw, Drawn
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName
from holdfast.model.topics import TopicConfig

# In one entry. A command's number is made of its entry's and its place in there, so this never changes.
COMMANDS_MAX: Final = 1024


class CreateTopicOfBefore(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """As it stands in older logs: whoever proposed it named the first replicas, and could be mistaken."""

    name: TopicName
    config: TopicConfig
    created_ms: TimestampMs
    voters: tuple[str, ...]
    token: str


class CreateTopic(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """`token` tells this topic from another of the same name.

    Its first replicas are those that are members of the control group where this stands in its log. Whoever proposes
    it may not know who that is: two of three might be taken that are gone for good.
    """

    name: TopicName
    config: TopicConfig
    created_ms: TimestampMs
    token: str


class DeleteTopic(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Only the topic with this token: one that was created since stays."""

    name: TopicName
    token: str


class MoveCursor(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """`only_forward` is a reader's own progress, which never goes back; otherwise somebody seeks."""

    topic: TopicName
    token: str
    name: CursorName
    positions: dict[int, Offset]
    only_forward: bool


class DropCursor(msgspec.Struct, array_like=True, frozen=True, tag=4):
    topic: TopicName
    token: str
    name: CursorName


class TakeCursor(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """Move one position if it stands there, none being nowhere. `taker` tells a command from its repetition."""

    topic: TopicName
    token: str
    name: CursorName
    number: int
    stands_at: Offset | None
    to: Offset
    taker: str


class DrawCursor(msgspec.Struct, array_like=True, frozen=True, tag=30):
    """Give readers the next offsets, in this order: none below `start`, where the log begins, nor from `end` on.

    With `notes_nothing`, whoever gets none is remembered like the others: asked again, it gets none again.
    """

    topic: TopicName
    token: str
    name: CursorName
    number: int
    start: Offset
    end: Offset
    wanted: list[Draw]
    notes_nothing: bool


class NoteNode(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A node says under which addresses it is reached, which build it runs and what that understands."""

    node: str
    life: str
    addresses: dict[str, str]
    version: str = ""
    level: int = 1


class PreferLeader(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """Somebody wants this node to lead a partition whenever it can."""

    topic: TopicName
    token: str
    partition: int
    node: str


class RaiseLevel(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """From the next entry on the log may hold what belongs to this level, if all members have said before, with
    `NoteNode`, that they understand it; otherwise this changes nothing (`levels.py`).
    """

    level: int


class ChangeMember(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """A node comes, goes, or is to lead no more (`consensus.membership.Change`).

    Of one that comes: the life of its disk, and where it is reached, so that the others can find it.
    """

    kind: Kind
    node: str
    expects: int
    since_ms: int
    other: str = ""
    life: str = ""
    address: str = ""


class AddCallback(msgspec.Struct, array_like=True, frozen=True, tag=20):
    """Somebody subscribes with an address, or moves a subscription to another one.

    A new one begins at `positions` in `delivered`, the topic whose messages it gets.
    """

    topic: TopicName
    token: str
    name: CursorName
    address: str
    format: CallbackFormat
    created_ms: TimestampMs
    delivered: TopicName
    delivered_token: str
    positions: dict[int, Offset]


class RemoveCallback(msgspec.Struct, array_like=True, frozen=True, tag=21):
    """Only the subscription of this number. `delivered` is the topic whose messages it gets, and has its cursor."""

    topic: TopicName
    name: CursorName
    number: int
    delivered: TopicName


class MoveCallback(msgspec.Struct, array_like=True, frozen=True, tag=22):
    """A receiver has acknowledged. Only for the subscription of this number, and not behind a seek.

    `lost` are sums, so that the same command twice counts once.
    """

    topic: TopicName
    name: CursorName
    number: int
    delivered: TopicName
    delivered_token: str
    positions: dict[int, Offset]
    lost: dict[int, int]


Command = (
    CreateTopic
    | CreateTopicOfBefore
    | DeleteTopic
    | MoveCursor
    | TakeCursor
    | DropCursor
    | NoteNode
    | PreferLeader
    | RaiseLevel
    | ChangeMember
    | DrawCursor
    | AddCallback
    | RemoveCallback
    | MoveCallback
)

# What became of a command: nothing to say, an error (`wire/peer_errors.py`), or what was drawn.
Outcome = bytes | None | list[Drawn]


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """Where in the control log commands stand, and what became of each."""

    index: int
    outcomes: list[Outcome]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Command]).decode
_decode_decision = msgspec.msgpack.Decoder(Decision).decode


def encode(commands: Sequence[Command]) -> bytes:
    return _encode(list(commands))


def decode(body: bytes | bytearray | memoryview) -> list[Command]:
    return _decode(body)


def encode_decision(decision: Decision) -> bytes:
    return _encode(decision)


def decode_decision(body: bytes | bytearray | memoryview) -> Decision:
    return _decode_decision(body)

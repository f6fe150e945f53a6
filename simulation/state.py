"""What a group's entries mean: messages with offsets; in the control group, cursors that only go forward, and nodes."""

from __future__ import annotations

import contextlib
import json
from typing import NamedTuple
from zlib import crc32

from holdfast.consensus.members import Members
from holdfast.consensus.membership import Change, Kind, Member, Membership, Place
from holdfast.consensus.replica_names import life_of, node_of
from holdfast.model.entries import KIND_BATCH, KIND_COMMAND, KIND_MEMBERS, NOTE_HEAD_BYTES, Entry
from holdfast.model.errors import CallerError
from holdfast.model.ids import Offset, Term

CONTROL_GROUP = 0


class Batch(NamedTuple):
    """`size` messages under one name; `message_id` is empty where the producer gave none."""

    base_offset: Offset
    size: int
    name: str
    message_id: str

    def encode(self) -> bytes:
        return f"{self.base_offset}|{self.size}|{self.name}|{self.message_id}".encode()

    @classmethod
    def decode(cls, payload: bytes | bytearray | memoryview) -> Batch:
        offset, size, name, message_id = bytes(payload).decode().split("|")
        return cls(Offset(int(offset)), int(size), name, message_id)


def note(term: Term, kind: int, offset: Offset, body: bytes) -> Entry:
    """An entry that is no batch."""
    return Entry(term, kind, offset.to_bytes(8, "big") + crc32(body).to_bytes(4, "big") + body)


def offset_behind(entry: Entry) -> Offset:
    """The offset the next message gets."""
    if entry.kind == KIND_BATCH:
        batch = Batch.decode(entry.payload)
        return Offset(batch.base_offset + batch.size)
    return Offset(int.from_bytes(entry.payload[:8], "big"))


def command(cursor: str, position: int) -> bytes:
    return f"{cursor}={position}".encode()


def member_command(change: Change) -> bytes:
    return f"!{change.kind}/{change.node}/{change.expects}/{change.other}".encode()


class GroupState:
    """What the entries up to some index amount to."""

    def __init__(self, members: Members | None = None) -> None:
        # How many entries there were, and who the members are where the last of them stands.
        self.count = 0
        self.members = members or Members.of(["nobody"])
        self.membership = Membership()
        self.next_offset = Offset(0)
        self.last_name = ""
        self.cursors: dict[str, int] = {}

    def apply(self, entry: Entry) -> None:
        self.count += 1
        if entry.kind == KIND_BATCH:
            batch = Batch.decode(entry.payload)
            self.next_offset = Offset(batch.base_offset + batch.size)
            self.last_name = batch.name
        elif entry.kind == KIND_MEMBERS:
            self.members = Members.decode(entry.payload[NOTE_HEAD_BYTES:])
        elif entry.kind == KIND_COMMAND:
            text = bytes(entry.payload[NOTE_HEAD_BYTES:]).decode()
            if text.startswith("!"):
                self._change_member(text[1:])
                return
            cursor, _, position = text.partition("=")
            self.cursors[cursor] = max(self.cursors.get(cursor, 0), int(position))

    def _change_member(self, text: str) -> None:
        """What is refused is refused on every node, since all of them know the same where it stands in the log."""
        kind, node, expects, other = text.split("/")
        lives = {life_of(member) for member in self.members.everybody if node_of(member) == node}
        change = Change(Kind(kind), node, int(expects), 0, other)
        with contextlib.suppress(CallerError):
            self.membership.apply(change, self.count, self.members.everybody, lives)

    def encode(self) -> bytes:
        cursors = ",".join(f"{cursor}={position}" for cursor, position in sorted(self.cursors.items()))
        rows = json.dumps(sorted(self.membership.rows.values()))
        members = str(self.members).replace("|", ";")
        return f"{self.next_offset}|{self.last_name}|{cursors}|{self.count}|{members}|{rows}".encode()

    @classmethod
    def decode(cls, text: bytes) -> GroupState:
        state = cls()
        offset, state.last_name, cursors, count, members, rows = text.decode().split("|")
        state.next_offset = Offset(int(offset))
        state.count = int(count)
        state.members = Members.decode(members.replace(";", "|").encode())
        for node, place, number, since_ms, lives, replaces, is_drained in json.loads(rows):
            row = Member(node, Place(place), number, since_ms, tuple(lives), replaces, is_drained)
            state.membership.rows[node] = row
        for pair in filter(None, cursors.split(",")):
            cursor, _, position = pair.partition("=")
            state.cursors[cursor] = int(position)
        return state

"""What a group's entries mean: messages with offsets, and, in the control group, cursors that only go forward."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from holdfast.model.entries import KIND_BATCH, KIND_COMMAND, NOTE_HEAD_BYTES, Entry
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


class GroupState:
    """What the entries up to some index amount to."""

    def __init__(self) -> None:
        self.next_offset = Offset(0)
        self.last_name = ""
        self.cursors: dict[str, int] = {}

    def apply(self, entry: Entry) -> None:
        if entry.kind == KIND_BATCH:
            batch = Batch.decode(entry.payload)
            self.next_offset = Offset(batch.base_offset + batch.size)
            self.last_name = batch.name
        elif entry.kind == KIND_COMMAND:
            cursor, _, position = bytes(entry.payload[NOTE_HEAD_BYTES:]).decode().partition("=")
            self.cursors[cursor] = max(self.cursors.get(cursor, 0), int(position))

    def encode(self) -> bytes:
        cursors = ",".join(f"{cursor}={position}" for cursor, position in sorted(self.cursors.items()))
        return f"{self.next_offset}|{self.last_name}|{cursors}".encode()

    @classmethod
    def decode(cls, text: bytes) -> GroupState:
        state = cls()
        offset, state.last_name, cursors = text.decode().split("|")
        state.next_offset = Offset(int(offset))
        for pair in filter(None, cursors.split(",")):
            cursor, _, position = pair.partition("=")
            state.cursors[cursor] = int(position)
        return state

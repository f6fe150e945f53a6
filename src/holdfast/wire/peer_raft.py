"""The body of a RAFT frame: messages of many groups in a row, each of which says itself where it ends.

Numbers are big-endian and signed (an index may be -1), but for groups, counts and lengths. Each message begins
with `group u64 | type u8`, then follows, by type::

    1 VoteRequest     term i64, last index i64, last term i64, trial u8, transfer u8
    2 VoteReply       term i64, granted u8, trial u8
    3 Append          term i64, previous index i64, previous term i64, commit i64, count u32,
                      then columns: terms count*i64, payload lengths count*u32, kinds count*u8,
                      then the payloads, one behind the other
    4 AppendReply     term i64, match i64, rejected u8, rejected index i64, hint index i64, hint term i64
    5 Heartbeat       term i64, commit i64, round i64, may sleep u8
    6 HeartbeatReply  term i64, round i64, match i64
    7 Install         term i64, last index i64, last term i64, members u32, position length u32,
                      for each of the members: since i64, term i64, length u32, `Members.encode()`;
                      then the position
    8 TimeoutNow      term i64

What is known of entries stands in columns, since one call of `struct` then packs or unpacks all of a column.
Payloads are copied neither way: the encoder gives a list of buffers, the decoder slices of the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from typing import Any, Final, cast

from holdfast.consensus.members import Members, MembersAt
from holdfast.consensus.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Install,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from holdfast.model.entries import Entry
from holdfast.model.errors import BadPeerFrame, TooLarge
from holdfast.model.limits import MIB, PEER_FRAME_BYTES_MAX
from holdfast.wire.peer import HEAD_BYTES, PROTOCOL_VERSION, RAFT, Buffer, frame_head

_APPEND: Final = 3
_INSTALL: Final = 7
_append_head = struct.Struct(">QBqqqqI")
_install_head = struct.Struct(">QBqqqII")
_members_head = struct.Struct(">qqI")
# Messages that are nothing but their numbers: type, form, class.
_PLAIN: Final[tuple[tuple[int, struct.Struct, Any], ...]] = (
    (1, struct.Struct(">QBqqq??"), VoteRequest),
    (2, struct.Struct(">QBq??"), VoteReply),
    (4, struct.Struct(">QBqq?qqq"), AppendReply),
    (5, struct.Struct(">QBqqq?"), Heartbeat),
    (6, struct.Struct(">QBqqq"), HeartbeatReply),
    (8, struct.Struct(">QBq"), TimeoutNow),
)
_packers: Final = {kind: (form.pack, number) for number, form, kind in _PLAIN}
_unpackers: Final = {number: (form, partial(tuple.__new__, kind)) for number, form, kind in _PLAIN}
# A frame with so much is full: it is sent, and the next one begun, so that the receiver can begin with what it has.
FULL_BYTES: Final = 4 * MIB
# Whatever is in a frame that is not full, one more message fits.
MESSAGE_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX - FULL_BYTES - HEAD_BYTES
# Beside its payload, one entry takes a term, a length and a kind.
_ENTRY_BYTES: Final = 13
_TYPE_AT: Final = 8

# A named tuple's own constructor is Python code; this is not, and runs once for each entry.
_entry = cast(Callable[[tuple[int, int, memoryview]], Entry], partial(tuple.__new__, Entry))


class RaftFrame:
    """Collects messages; `take` gives the frame as buffers for `writelines`.

    The payloads in it are the caller's: nobody may change them before they are sent.
    """

    __slots__ = ("_buffers", "_tail", "body_bytes")

    def __init__(self) -> None:
        # Its first bytes are kept free for the frame's head.
        self._tail = bytearray(HEAD_BYTES)
        self._buffers: list[Buffer] = []
        self.body_bytes = 0

    @property
    def is_full(self) -> bool:
        """Take it before anything is added."""
        return self.body_bytes >= FULL_BYTES

    def add(self, group: int, message: Message) -> int:
        """Take a message; returns its size. Raises `TooLarge` for one that no frame can hold, and takes nothing."""
        plain = _packers.get(type(message))
        if plain is not None:
            pack, number = plain
            packed: bytes = pack(group, number, *message)
            self._tail += packed
            self.body_bytes += len(packed)
            return len(packed)
        if isinstance(message, Append):
            return self._add_append(group, message)
        assert isinstance(message, Install)
        return self._add_install(group, message)

    def _add_append(self, group: int, message: Append) -> int:
        term, previous_index, previous_term, commit, entries = message
        count = len(entries)
        head = _append_head.pack(group, _APPEND, term, previous_index, previous_term, commit, count)
        if not count:
            self._tail += head
            self.body_bytes += len(head)
            return len(head)
        terms, kinds, payloads = zip(*entries, strict=True)
        lengths = list(map(len, payloads))
        size = len(head) + count * _ENTRY_BYTES + sum(lengths)
        _check_size(size)
        tail = self._tail
        tail += head
        tail += struct.pack(f">{count}q{count}I{count}B", *terms, *lengths, *kinds)
        # Small payloads are not copied either: measured from 100 bytes on, that gains nothing.
        self._buffers.append(tail)
        self._buffers += payloads
        self._tail = bytearray()
        self.body_bytes += size
        return size

    def _add_install(self, group: int, message: Install) -> int:
        term, last_index, last_term, history, position = message
        parts = [_install_head.pack(group, _INSTALL, term, last_index, last_term, len(history), len(position))]
        for since, members_term, members in history:
            body = members.encode()
            parts += [_members_head.pack(since, members_term, len(body)), body]
        parts.append(position)
        packed = b"".join(parts)
        _check_size(len(packed))
        self._tail += packed
        self.body_bytes += len(packed)
        return len(packed)

    def take(self, version: int = PROTOCOL_VERSION) -> list[Buffer]:
        """The frame, head and all; afterwards this is empty and can be used again."""
        buffers, tail, size = self._buffers, self._tail, self.body_bytes
        if tail:
            buffers.append(tail)
        first = cast(bytearray, buffers[0])
        first[:HEAD_BYTES] = frame_head(RAFT, size, version)
        self._buffers, self._tail, self.body_bytes = [], bytearray(HEAD_BYTES), 0
        return buffers


def _check_size(size: int) -> None:
    if size > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message between nodes may have {MESSAGE_BYTES_MAX} bytes, this one has {size}")


def raft_frame(messages: Iterable[tuple[int, Message]]) -> list[Buffer]:
    """A whole frame with these messages, each with its group."""
    frame = RaftFrame()
    for group, message in messages:
        frame.add(group, message)
    return frame.take()


def decode_raft(body: memoryview) -> list[tuple[int, Message]]:
    """The messages of a frame's body, each with its group. Payloads are slices of `body`."""
    messages: list[tuple[int, Message]] = []
    position = 0
    end = len(body)
    try:
        while position < end:
            number = body[position + _TYPE_AT]
            plain = _unpackers.get(number)
            if plain is not None:
                form, make = plain
                fields = form.unpack_from(body, position)
                messages.append((fields[0], make(fields[2:])))
                position += form.size
            elif number == _APPEND:
                position = _read_append(body, position, messages)
            elif number == _INSTALL:
                position = _read_install(body, position, messages)
            else:
                raise BadPeerFrame(f"there is no message of type {number}")
    except (struct.error, IndexError) as error:
        raise BadPeerFrame(f"a RAFT frame ends within a message: {error}") from error
    return messages


def _read_append(body: memoryview, position: int, messages: list[tuple[int, Message]]) -> int:
    group, _, term, previous_index, previous_term, commit, count = _append_head.unpack_from(body, position)
    position += _append_head.size
    if not count:
        messages.append((group, Append(term, previous_index, previous_term, commit, [])))
        return position
    payloads_at = position + count * _ENTRY_BYTES
    # Before anything is made of that size.
    if payloads_at > len(body):
        raise BadPeerFrame(f"an Append of {count} entries does not fit into a frame of {len(body)} bytes")
    terms = struct.unpack_from(f">{count}q", body, position)
    bounds = list(accumulate(struct.unpack_from(f">{count}I", body, position + 8 * count), initial=payloads_at))
    end: int = bounds[-1]
    if end > len(body):
        raise BadPeerFrame(f"the payloads of an Append end at {end} in a frame of {len(body)} bytes")
    kinds = body[position + 12 * count : payloads_at]
    payloads = map(body.__getitem__, map(slice, bounds, bounds[1:]))
    entries = list(map(_entry, zip(terms, kinds, payloads, strict=True)))
    messages.append((group, Append(term, previous_index, previous_term, commit, entries)))
    return end


def _read_install(body: memoryview, position: int, messages: list[tuple[int, Message]]) -> int:
    group, _, term, last_index, last_term, count, position_bytes = _install_head.unpack_from(body, position)
    position += _install_head.size
    history: list[MembersAt] = []
    for _ in range(count):
        since, members_term, length = _members_head.unpack_from(body, position)
        position += _members_head.size
        history.append(MembersAt(since, members_term, _members(body[position : position + length])))
        position += length
    end: int = position + position_bytes
    if end > len(body):
        raise BadPeerFrame(f"an Install ends at {end} in a frame of {len(body)} bytes")
    where = bytes(body[position:end])
    messages.append((group, Install(term, last_index, last_term, tuple(history), where)))
    return end


def _members(body: memoryview) -> Members:
    try:
        members = Members.decode(body)
    except ValueError as error:
        raise BadPeerFrame(f"an Install names no members: {error}") from error
    # A list that was cut off, or holds a name twice or an empty one, is another one than was meant.
    if members.encode() != body:
        raise BadPeerFrame(f"an Install names its members in a way no node does: {bytes(body[:60])!a}")
    return members

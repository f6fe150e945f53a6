"""What nodes ask of each other beside the consensus, and how that is written."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Method(IntEnum):
    """One byte on the wire: may be added to, never changed."""

    PUBLISH = 1
    PROPOSE = 2
    CONFIRM = 3
    SNAPSHOT = 4
    STATUS = 5
    TRANSFER = 6
    ENTRIES = 7
    JOIN = 8
    MAY_LEAVE = 9
    MEMBERS = 10
    CALLBACKS = 20
    CLOCK = 21
    EXPIRE = 22
    IDS = 23


class PublishRequest(msgspec.Struct, array_like=True, frozen=True):
    """A batch for a partition that the receiver leads."""

    topic: str
    partition: int
    batch: bytes


class PublishReply(msgspec.Struct, array_like=True, frozen=True):
    base_offset: int
    count: int
    duplicates: int
    offsets: list[int] | None


class ConfirmRequest(msgspec.Struct, array_like=True, frozen=True):
    """What is committed in a group that the receiver leads?"""

    group: int


class ConfirmReply(msgspec.Struct, array_like=True, frozen=True):
    index: int


class SnapshotRequest(msgspec.Struct, array_like=True, frozen=True):
    """A piece of the receiver's state; position 0 begins with the newest copy, or a new one."""

    name: str
    position: int


class SnapshotReply(msgspec.Struct, array_like=True, frozen=True):
    """`known` is the configuration that holds at the last entry that is in the state (`Known`), if that is certain.

    Older builds do not say it.
    """

    name: str
    size: int
    piece: bytes
    known: str = ""


class TransferRequest(msgspec.Struct, array_like=True, frozen=True):
    """Hand the leadership of a group over to a node."""

    group: int
    node: str


class EntriesRequest(msgspec.Struct, array_like=True, frozen=True):
    """Committed entries of a group, from `first` up to and including `last`."""

    group: int
    first: int
    last: int


class StoredEntry(msgspec.Struct, array_like=True, frozen=True):
    term: int
    kind: int
    payload: bytes


class EntriesReply(msgspec.Struct, array_like=True, frozen=True):
    """As many as fit into one answer; none where the receiver does not have them either."""

    entries: list[StoredEntry]


class JoinRequest(msgspec.Struct, array_like=True, frozen=True):
    """A node wants to belong to the cluster; `address` is where the others reach it."""

    node: str
    life: str
    address: str


class JoinReply(msgspec.Struct, array_like=True, frozen=True):
    """Where the nodes of the cluster are."""

    peers: dict[str, str]


class MayLeaveRequest(msgspec.Struct, array_like=True, frozen=True):
    """Would the groups that the receiver leads go on without this node?"""

    node: str


class MayLeaveReply(msgspec.Struct, array_like=True, frozen=True):
    """How many groups it leads, and some of those that would not."""

    led: int
    lacking: list[str]


class ClockReply(msgspec.Struct, array_like=True, frozen=True):
    """What time it is at the receiver."""

    now_ms: int


class Expired(msgspec.Struct, array_like=True, frozen=True):
    """The leader of a group in this term has deleted what is below this offset, at this time."""

    group: int
    term: int
    begin: int
    now_ms: int


class ExpireRequest(msgspec.Struct, array_like=True, frozen=True):
    """Delete what the leaders of these groups have deleted; the answer is empty."""

    expired: list[Expired]


class MembersReply(msgspec.Struct, array_like=True, frozen=True):
    """The configuration of the control group as the receiver has it: from which entry on, and that entry's term."""

    since: int
    term: int
    members: str


class IdsRequest(msgspec.Struct, array_like=True, frozen=True):
    """The ids of messages of a group from this offset on that were deleted; the answer is as in `storage.ids_file`."""

    group: int
    start: int


encode = msgspec.msgpack.Encoder().encode

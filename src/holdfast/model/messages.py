"""What a message is, before it has a place in the log and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.model.ids import NO_OFFSET, Offset, TimestampMs

Header = tuple[str, bytes]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher hands over. Without an id it is not recognised when it is sent twice."""

    value: bytes
    key: bytes | None = None
    id: str | None = None
    headers: Sequence[Header] = ()


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader gets. `id` is the publisher's, or `<partition>-<offset>` where it gave none."""

    offset: Offset
    timestamp_ms: TimestampMs
    id: str
    key: bytes | None
    value: bytes
    headers: Sequence[Header] = ()


class StoredId(NamedTuple):
    """The id that a publisher gave a message, where that message is, and when it was stored at the latest."""

    offset: Offset
    timestamp_ms: TimestampMs
    id: str


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message stands now; `duplicate` means it was there before this publish."""

    partition: int
    offset: Offset
    duplicate: bool = False

    @property
    def buffered(self) -> bool:
        """It is kept, and has no place in its partition yet."""
        return self.offset == NO_OFFSET


class BatchPublished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the messages of a batch stand; `offsets` is given where duplicates make them irregular."""

    partition: int
    base_offset: Offset
    count: int
    duplicates: int
    offsets: list[Offset] | None = None

    @property
    def buffered(self) -> bool:
        """They are kept, and have no place in their partition yet."""
        return self.base_offset == NO_OFFSET

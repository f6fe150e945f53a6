"""The newest ids of any form, at least a given number of them, in memory of a fixed size.

Each takes 16 bytes in one of two hash tables. When the newer table is full, the older one is dropped, and the newer one
takes its place.
"""

from __future__ import annotations

import hashlib
from typing import Final

# Two of a billion ids have the same digest with a probability of 1 in 10^21.
_DIGEST_BYTES: Final = 16
# The slots of a table for each two ids: then one that is not there is looked for in five slots, at most, on average.
_SLOTS_PER_TWO: Final = 3
_EMPTY: Final = bytes(_DIGEST_BYTES)


class RecentDigests:
    """The last `ids_max` ids, and up to as many older ones."""

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._newer = self._older = _Table(0)

    def __contains__(self, message_id: str) -> bool:
        if not self._newer.count:
            return False
        digest = _digest(message_id)
        return digest in self._newer or digest in self._older

    def add(self, message_id: str) -> None:
        if self._newer.count >= self._newer.ids_max:
            # One after the other: there are never three tables.
            self._older = self._newer
            self._newer = _Table(self._ids_max)
        self._newer.add(_digest(message_id))

    def clear(self) -> None:
        self._newer = self._older = _Table(0)


class _Table:
    """Open addressing with linear probing. A digest of zeros, which no id has in practice, marks an empty slot."""

    def __init__(self, ids_max: int) -> None:
        self.ids_max = ids_max
        self.count = 0
        self._bytes = bytearray((ids_max * _SLOTS_PER_TWO // 2 + 1) * _DIGEST_BYTES)

    def __contains__(self, digest: bytes) -> bool:
        return self._bytes[(place := self._place(digest)) : place + _DIGEST_BYTES] == digest

    def add(self, digest: bytes) -> None:
        place = self._place(digest)
        if self._bytes[place : place + _DIGEST_BYTES] == _EMPTY:
            self._bytes[place : place + _DIGEST_BYTES] = digest
            self.count += 1

    def _place(self, digest: bytes) -> int:
        """Where it stands, or the empty slot that it would be put into: there is always one."""
        size = len(self._bytes)
        place = int.from_bytes(digest[:8], "little") * _DIGEST_BYTES % size
        while (found := self._bytes[place : place + _DIGEST_BYTES]) != digest and found != _EMPTY:
            place = (place + _DIGEST_BYTES) % size
        return place


def _digest(message_id: str) -> bytes:
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()

"""Batches of transactions are stored once each: what was stored is noted in the transaction that stores it.

`holdfast.stamps` has the newest stamp of each coordinator in a partition. It is read and changed while the partition's
row is locked, so whichever broker sends a batch, and however late, finds what is there (`broker/stamped.py` has the
rule, and what a cluster does instead).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from asyncpg import Connection

from holdfast.backends.postgres.queries import sql
from holdfast.broker.stamped import Newest, next_sequence
from holdfast.model.errors import Unavailable
from holdfast.model.ids import Offset
from holdfast.wire.stamps import Stamp

_Key = tuple[int, int]


class StampedWrite(Protocol):
    """What is looked at of a write."""

    @property
    def key(self) -> _Key: ...

    @property
    def stamp(self) -> Stamp | None: ...

    @property
    def floor(self) -> Offset: ...


class Stamps:
    """The newest stamps of the partitions of one database transaction."""

    def __init__(self, newest: dict[tuple[_Key, int], Newest]) -> None:
        self._newest = newest
        self._changed: dict[tuple[_Key, int], Newest] = {}

    @classmethod
    async def read(cls, connection: Connection, writes: Iterable[StampedWrite]) -> Stamps:
        """The partitions' rows are locked."""
        keys = sorted({write.key for write in writes if write.stamp is not None})
        if not keys:
            return cls({})
        rows = await connection.fetch(sql("newest_stamps"), [key[0] for key in keys], [key[1] for key in keys])
        return cls({((row[0], row[1]), row[2]): Newest(row[3], row[4], Offset(row[5])) for row in rows})

    def is_new(self, write: StampedWrite, base: int) -> bool:
        """Whether a batch is to be stored at `base`, which is noted. Raises `Unavailable` if it came too early."""
        mark = write.stamp
        if mark is None:
            return True
        place = (write.key, mark.coordinator)
        due = next_sequence(self._newest.get(place), mark, write.floor)
        if due is None or mark.sequence < due:
            return False
        if mark.sequence > due and not mark.is_next:
            raise Unavailable(f"batch {mark.sequence} of a transaction came before batch {due}")
        self._newest[place] = self._changed[place] = Newest(mark.decision, mark.sequence, Offset(base))
        return True

    async def keep(self, connection: Connection) -> None:
        if not self._changed:
            return
        await connection.execute(
            sql("keep_stamps"),
            [key[0] for key, _ in self._changed],
            [key[1] for key, _ in self._changed],
            [coordinator for _, coordinator in self._changed],
            [newest.decision for newest in self._changed.values()],
            [newest.sequence for newest in self._changed.values()],
            [newest.offset for newest in self._changed.values()],
        )

"""Letting go of staged data: what is committed, superseded, dropped, or too old to be committed.

Each partition of staged data has a cursor (`DONE_CURSOR`); stores delete what is below it. The coordinator moves it
over every piece that can never be committed any more: its writer has that number, or a later one, or has dropped it,
or it has expired. All of that is true for ever once it is true, so it does not matter who moves the cursor, or when.

Age is measured on the clock of a decision before which everything was done, and with a quarter of the expiry, or a
minute, to spare: a commit that was decided in time, and waits for its coordinator, does not find its data gone. Where
a clock is further off than that, the commit is refused as a whole: nothing below the cursor is taken for being there.

Of a writer that was forgotten it stays noted what it has dropped, until the cursor is past that.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from holdfast.broker.backend import Backend
from holdfast.model.errors import DamagedData, OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TimestampMs, WriterName
from holdfast.model.names import DONE_CURSOR
from holdfast.transactions.settings import LogEvent, Settings, TransactionStats
from holdfast.transactions.writers import Forgotten, Writers
from holdfast.wire import record_batch
from holdfast.wire.transactions import DEAD_CURSOR, STAGED, read_staged

# Pieces that are read in one round: others want the loop and the disk, too.
_ROUND_PIECES_MAX: Final = 64
# Notes of forgotten writers that are deleted in one round.
_ROUND_FORGOTTEN_MAX: Final = 256
# Offsets of committed pieces that are remembered, so that they are not read again to learn that they are done.
_REMEMBERED_MAX: Final = 200_000
# How exactly nodes are told what waits to be deleted: in parts of what may be staged.
_TOLD_PARTS: Final = 64
# Clocks of nodes may be so far apart.
_SPARE_MS_MIN: Final = 60_000


def staged_from(backend: Backend, coordinator: int) -> Offset:
    """What is staged below this is deleted, or may be at any time."""
    partition = PartitionId(STAGED, coordinator)
    done = (backend.cursor(STAGED, DONE_CURSOR) or {}).get(coordinator, Offset(0))
    return max(done, backend.start_offset(partition))


class _Live(NamedTuple):
    offset: Offset
    writer: WriterName
    number: int
    staged_ms: TimestampMs


class Sweeping:
    """One partition of staged data, while this node coordinates it."""

    def __init__(
        self,
        backend: Backend,
        coordinator: int,
        writers: Writers,
        settings: Settings,
        stats: TransactionStats,
        log: LogEvent,
    ) -> None:
        self._backend = backend
        self._partition = PartitionId(STAGED, coordinator)
        self._writers = writers
        self._settings = settings
        self._stats = stats
        self._log = log
        # Pieces that are committed, above the cursor, and how large they are.
        self._done: dict[Offset, int] = {}
        self._dead_bytes = 0
        # Writers that are noted to be forgotten, the one that staged earliest first.
        self._forgotten: list[Forgotten] = []
        # The piece at which it stands.
        self._live: _Live | None = None

    def committed(self, sizes: Mapping[Offset, int]) -> None:
        """These pieces are done with."""
        if len(self._done) < _REMEMBERED_MAX:
            self._done.update(sizes)
            self._dead_bytes += sum(sizes.values())

    def begin(self, forgotten: Iterable[Forgotten]) -> None:
        """These writers are noted to be forgotten."""
        self._forgotten = sorted(forgotten)

    def forgot(self, forgotten: Forgotten) -> None:
        """So is this one."""
        heapq.heappush(self._forgotten, forgotten)

    async def sweep(self, clock_ms: TimestampMs) -> None:
        """Move the cursor as far as it goes. Everything decided before `clock_ms` is done."""
        noted = (self._backend.cursor(STAGED, DONE_CURSOR) or {}).get(self._partition.number, Offset(0))
        position = max(noted, self._backend.start_offset(self._partition))
        end = self._backend.end_offset(self._partition)
        expired = reads = 0
        while position < end and reads < _ROUND_PIECES_MAX:
            if position in self._done:
                self._dead_bytes -= self._done.pop(position)
                position = Offset(position + 1)
                continue
            reads += 1
            next_position, is_expired = await self._past(position, clock_ms)
            if next_position == position:
                break
            if next_position > position + 1:
                self._forget_below(next_position)
            position, expired = next_position, expired + is_expired
        if expired:
            self._stats.expired_pieces += expired
            self._log("transaction_pieces_expired", partition=self._partition.number, pieces=expired)
        await self._tell_dead()
        if position > noted:
            done = {self._partition.number: position}
            await asyncio.shield(self._backend.set_cursor(STAGED, DONE_CURSOR, done, only_forward=True))
        await self._let_go_of_forgotten(position)

    async def _let_go_of_forgotten(self, position: Offset) -> None:
        """Nothing below the cursor can be committed, so it need not be said of anybody any more."""
        passed: list[Forgotten] = []
        while self._forgotten and self._forgotten[0].below <= position and len(passed) < _ROUND_FORGOTTEN_MAX:
            passed.append(heapq.heappop(self._forgotten))
        await asyncio.gather(*map(self._writers.let_go_of, passed))

    def _forget_below(self, position: Offset) -> None:
        """What is damaged was jumped over."""
        for offset in [offset for offset in self._done if offset < position]:
            self._dead_bytes -= self._done.pop(offset)

    async def _tell_dead(self) -> None:
        """Let all nodes know how much of what is staged only waits to be deleted; nearly is good enough."""
        told = (self._backend.cursor(STAGED, DEAD_CURSOR) or {}).get(self._partition.number, 0)
        step = self._settings.staged_bytes_max // _TOLD_PARTS
        if abs(self._dead_bytes - told) > step or (told and not self._dead_bytes):
            dead = {self._partition.number: Offset(self._dead_bytes)}
            await asyncio.shield(self._backend.set_cursor(STAGED, DEAD_CURSOR, dead))

    async def _past(self, position: Offset, clock_ms: TimestampMs) -> tuple[Offset, bool]:
        """Behind the piece at `position` if it is done with, and whether it is so by its age."""
        if self._live is None or self._live.offset != position:
            try:
                batches = await self._backend.read(self._partition, position, 1)
            except DamagedData as damage:
                return Offset(damage.next_offset), False
            except OffsetOutOfRange:  # a store was faster
                return max(position, self._backend.start_offset(self._partition)), False
            if not batches:
                return position, False
            head = record_batch.header(batches[0])
            piece, _ = read_staged(batches[0], position - head.base_offset)
            # Remembered, since it may be large, and stand there for an hour.
            self._live = _Live(position, piece.writer, piece.number, head.max_timestamp_ms)
        state = self._writers.state(self._live.writer)
        behind = Offset(position + 1)
        if self._live.number <= state.number or position < state.dropped_below:
            return behind, False
        expiry_ms = self._settings.expiry_ms
        is_expired = self._live.staged_ms < clock_ms - expiry_ms - max(expiry_ms // 4, _SPARE_MS_MIN)
        return (behind, True) if is_expired else (position, False)

"""Bringing the pieces of one commit to their topics: in order, once, and piece by piece however large it is.

Each batch gets a stamp (`wire/stamps.py`) that follows from the commit alone. Whoever leads the target recognises it,
so the copying may begin again at any time and on any node, and two nodes that do it at the same time do no harm.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from holdfast.broker.broker import Broker
from holdfast.broker.results import failure
from holdfast.model.errors import (
    DamagedData,
    HoldfastError,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.limits import MIB
from holdfast.model.messages import BatchPublished
from holdfast.transactions.settings import LogEvent, TransactionStats
from holdfast.transactions.staging import check_is_placed
from holdfast.wire import record_batch, stamps
from holdfast.wire.stamps import Stamp
from holdfast.wire.transactions import STAGED, Commit, Part, Piece, read_staged

# Batches that are under way to their topics: enough to keep disks and links busy. One piece more is being read.
_UNDER_WAY_BYTES_MAX: Final = 16 * MIB
# Each is a task of its own, however small it is.
_UNDER_WAY_BATCHES_MAX: Final = 256


class FloorExpired(Exception):
    """Retention took what would tell how much of a commit stands in a partition."""

    def __init__(self, target: int, partition: PartitionId) -> None:
        super().__init__(str(partition))
        self.target = target
        self.partition = partition


class PieceMissing(Exception):
    """A piece that a commit names is not there: its log has lost it again, or another one in its place."""


class _UnderWay(NamedTuple):
    target: int
    sequence: int
    size: int
    stored: asyncio.Future[BatchPublished]


class Copying:
    """One commit on its way; `run` until it returns. A run after one that failed goes on where that one was."""

    def __init__(
        self,
        broker: Broker,
        coordinator: int,
        decision: Offset,
        commit: Commit,
        stats: TransactionStats,
        log: LogEvent,
    ) -> None:
        self.decision = decision
        self.floors = [target.floor for target in commit.targets]
        self._broker = broker
        self._backend = broker.backend
        self._coordinator = coordinator
        self._staged = PartitionId(STAGED, coordinator)
        self._commit = commit
        self._stats = stats
        self._log = log
        self._partitions = [PartitionId(target.topic, target.partition) for target in commit.targets]
        # So many batches are known to be stored, or lost, by target.
        self._stored = [0] * len(commit.targets)
        self._gone: set[int] = set()
        self._lost: set[Offset] = set()
        # How large the pieces are; and those that were read a moment ago, as far as there is room for them.
        self.sizes: dict[Offset, int] = {}
        self._held: dict[Offset, memoryview] = {}
        self._under_way: deque[_UnderWay] = deque()
        self._under_way_bytes = 0

    async def is_whole(self) -> bool:
        """Whether every piece is the one that the commit names: asked once, before anything is copied.

        A receipt may name what its log lost again. Damage is another thing: it may come when a part is copied already,
        so what is left of the transaction is shown.
        """
        held = 0
        for part in self._commit.parts:
            if await self._is_gone(part.target):
                continue
            try:
                batches = await self._find(part)
            except PieceMissing:
                return False
            if batches is not None:
                self.sizes[part.offset] = len(batches)
                if held + len(batches) <= _UNDER_WAY_BYTES_MAX:
                    held += len(batches)
                    self._held[part.offset] = batches
            await asyncio.sleep(0)
        return True

    async def run(self) -> None:
        """Returns when everything is visible. Raises `WorldError`, `FloorExpired`; then it may be run again."""
        sent = [0] * len(self._partitions)
        try:
            for part in self._commit.parts:
                await self._send(part, sent)
            await self._settle(0, 0)
        except BaseException:
            self._let_go()
            raise

    async def _send(self, part: Part, sent: list[int]) -> None:
        target, first = part.target, sent[part.target]
        sent[target] += part.batches
        if await self._is_gone(target) or sent[target] <= self._stored[target]:
            return
        try:
            batches = self._held.pop(part.offset, None) or await self._find(part)
        except PieceMissing as missing:
            self._lose(part.offset, str(missing))
            batches = None
        if batches is None:
            # Its places stay free, and what is behind them says that nothing before it is missing.
            await self._settle(0, 0)
            self._stored[target] = max(self._stored[target], sent[target])
            return
        for sequence, batch in enumerate(record_batch.split_batches(batches), first):
            if sequence < self._stored[target]:
                continue
            await self._settle(_UNDER_WAY_BYTES_MAX, _UNDER_WAY_BATCHES_MAX - 1)
            if await self._is_gone(target):
                return
            stamped = bytearray(batch)
            mark = Stamp(self._coordinator, self.decision, sequence, is_next=sequence == self._stored[target])
            stamps.stamp(stamped, mark, self.floors[target], self._commit.targets[target].token)
            try:
                stored = self._broker.publisher.publish_own(self._partitions[target], stamped)
            except (TopicNotFound, PartitionNotFound) as error:
                await self._make_sure_it_is_gone(target, error)
                return
            self._under_way.append(_UnderWay(target, sequence, len(batch), stored))
            self._under_way_bytes += len(batch)

    async def _settle(self, bytes_max: int, batches_max: int) -> None:
        """Wait until no more than that is under way."""
        while self._under_way_bytes > bytes_max or len(self._under_way) > batches_max:
            first = self._under_way[0]
            try:
                check_is_placed(await asyncio.shield(first.stored))
            except (TopicNotFound, PartitionNotFound) as error:
                await self._make_sure_it_is_gone(first.target, error)
            except OffsetOutOfRange:
                raise FloorExpired(first.target, self._partitions[first.target]) from None
            else:
                self._stored[first.target] = max(self._stored[first.target], first.sequence + 1)
                self._stats.committed_bytes += first.size
            self._under_way.popleft()
            self._under_way_bytes -= first.size

    def _let_go(self) -> None:
        """What is under way arrives or not; nobody asks for it any more."""
        waiting = [each.stored for each in self._under_way]
        self._under_way.clear()
        self._under_way_bytes = 0
        for stored in waiting:
            stored.add_done_callback(failure)

    async def _is_gone(self, target: int) -> bool:
        """A topic that was deleted takes what a commit brings to it with it; a new one of its name is another.

        Raises `WorldError` where nobody can tell: then nothing is dropped, and the commit waits.
        """
        if target not in self._gone and not self._is_known(target):
            await self._ask_what_is_gone()
        return target in self._gone

    async def _make_sure_it_is_gone(self, target: int, error: HoldfastError) -> None:
        """Somebody did not find it, who may not have heard of it yet."""
        await self._ask_what_is_gone()
        if target not in self._gone:
            raise Unavailable(f"{self._partitions[target]} is there, but was not found: {error.message}") from error

    async def _ask_what_is_gone(self) -> None:
        """Only the store can tell: this node may be behind, and not know a topic that was made a moment ago."""
        await self._backend.catch_up_cursors()
        for target, wanted in enumerate(self._commit.targets):
            if target not in self._gone and not self._is_known(target):
                self._gone.add(target)
                self._log(
                    "transaction_target_gone",
                    writer=self._commit.writer,
                    number=self._commit.number,
                    topic=wanted.topic,
                    partition=wanted.partition,
                )

    def _is_known(self, target: int) -> bool:
        """Whether this node knows the topic that is meant."""
        wanted = self._commit.targets[target]
        topic = self._backend.topic(wanted.topic)
        return topic is not None and topic.token == wanted.token

    async def _find(self, part: Part) -> memoryview | None:
        """The batches of a piece, none where they are damaged. Raises `PieceMissing`."""
        if part.offset in self._lost:
            return None
        try:
            piece, batches = await self._read(part.offset)
        except DamagedData as damage:
            self._lose(part.offset, damage.message)
            return None
        if (piece.writer, piece.number, piece.nonce) != (self._commit.writer, self._commit.number, part.nonce):
            raise PieceMissing(f"another piece stands at {part.offset}")
        return batches

    async def _read(self, offset: Offset) -> tuple[Piece, memoryview]:
        if offset >= self._backend.end_offset(self._staged):
            await self._backend.catch_up(self._staged)
        try:
            batches = await self._backend.read(self._staged, offset, 1)
        except OffsetOutOfRange as error:
            raise PieceMissing(error.message) from None
        if not batches:
            raise PieceMissing(f"{self._staged} ends before {offset}")
        return read_staged(batches[0], offset - record_batch.header(batches[0]).base_offset)

    def _lose(self, offset: Offset, why: str) -> None:
        """Damage that nobody can mend: all that is left of the transaction is shown, and this is said."""
        self._lost.add(offset)
        self._stats.lost_pieces += 1
        self._log(
            "transaction_data_lost",
            writer=self._commit.writer,
            number=self._commit.number,
            offset=offset,
            error=why,
        )

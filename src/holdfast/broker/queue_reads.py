"""Reads of queues: clients who share an id get each message once, through whichever nodes.

A client's pointer is a cursor, from which reads are drawn (`Backend.draw_cursor`). One draw of a pointer is under way
at a time; reads that come meanwhile make the next one. So a thousand readers of one pointer cost one decision a round,
and those of other nodes neither wait for them nor read in vain. What is given out was drawn before, durably.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.broker import queue_names
from holdfast.broker.read_ahead import ReadAhead, TopicToken, token_of
from holdfast.broker.results import refuse
from holdfast.model.draws import OUTDATED_DRAW, Draw, Drawn
from holdfast.model.errors import HoldfastError, RequestOutdated, ShuttingDown, TopicNotFound
from holdfast.model.ids import CursorName, Offset, PartitionId
from holdfast.model.messages import StoredMessage

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker
    from holdfast.broker.queues import Queues

# In one round of a pointer: all of their messages are in memory together.
_READS_MAX: Final = 256

_Key = tuple[int, CursorName]


class _Read(NamedTuple):
    """One that waits: with an id, it can be asked again."""

    request: Draw | None
    done: asyncio.Future[StoredMessage | None]


class QueueReads:
    """All reads of queues through one broker. `session` is a name that no other broker has, nor this one before."""

    def __init__(self, broker: Broker, queues: Queues, session: str) -> None:
        self._broker = broker
        self._backend = broker.backend
        self._queues = queues
        self._read_ahead = ReadAhead(broker)
        # Reads without an id share one: that of the round they are in.
        self._reader = f"n.{session}"
        self._round = 0
        self._waiting: dict[_Key, list[_Read]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def read(self, queue_id: int, client_id: str, request_id: str | None) -> asyncio.Future[StoredMessage | None]:
        """The next message of a client; `None` if it has read them all."""
        request = None if request_id is None else queue_names.draw_of(request_id)
        key = (queue_id, queue_names.cursor_of(client_id))
        done: asyncio.Future[StoredMessage | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            task = asyncio.get_running_loop().create_task(self._serve(key, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append(_Read(request, done))
        return done

    async def _serve(self, key: _Key, waiting: list[_Read]) -> None:
        """Round after round, until nobody waits."""
        reads: list[_Read] = []
        try:
            while waiting:
                reads = waiting[:_READS_MAX]
                del waiting[:_READS_MAX]
                try:
                    await self._round_of(*key, reads)
                except Exception as error:  # noqa: BLE001 - whoever waits is told, also of a bug
                    for each in reads:
                        refuse(each.done, error)
        finally:
            del self._waiting[key]
            for each in (*reads, *waiting):
                refuse(each.done, ShuttingDown("the broker stopped before this was read"))

    async def _round_of(self, queue_id: int, cursor: CursorName, reads: list[_Read]) -> None:
        topic = await self._queues.read_from(queue_id)
        partition = PartitionId(topic, 0)
        is_current = False
        while reads:
            position = (self._backend.cursor(topic, cursor) or {}).get(0, Offset(0))
            start = self._backend.next_readable(partition, max(position, self._backend.start_offset(partition)))
            end = self._backend.end_offset(partition)
            if start >= end and not is_current:
                # "Nothing" is only said when it is true on every node.
                await asyncio.gather(self._backend.catch_up(partition), self._backend.catch_up_cursors())
                is_current = True
                continue
            made = token_of(self._backend.topic(topic))
            drawn = await self._drawn(partition, cursor, start, end, reads, is_current=is_current)
            await self._give(partition, made, drawn)
            reads = [read for read, each in drawn if not (each.count or each.is_repeat or each is _OUTDATED)]
            if is_current:
                for read in reads:
                    _settle(read, None)
                return
            if reads:
                await asyncio.gather(self._backend.catch_up(partition), self._backend.catch_up_cursors())
                is_current = True

    async def _drawn(
        self,
        partition: PartitionId,
        cursor: CursorName,
        start: Offset,
        end: Offset,
        reads: list[_Read],
        *,
        is_current: bool,
    ) -> list[tuple[_Read, Drawn]]:
        """What each of them has drawn, those without an id together.

        That a read with an id gets nothing is decided too, once it is true: it may come again, late.
        """
        named = [read for read in reads if read.request is not None]
        others = [read for read in reads if read.request is None]
        wanted = [read.request for read in named if read.request is not None]
        if others:
            self._round += 1
            wanted.append(Draw(self._reader, str(self._round), len(others)))
        if start >= end and not named:
            return [(read, _NOTHING) for read in others]
        results = await self._backend.draw_cursor(
            partition.topic,
            cursor,
            partition.number,
            start=start,
            end=end,
            wanted=wanted,
            notes_nothing=is_current and bool(named),
        )
        found = []
        for read, each in zip(named, results, strict=False):
            found.append((read, _OUTDATED if each == OUTDATED_DRAW else each))
        if others:
            together = results[-1]
            for place, read in enumerate(others):
                is_there = place < together.count
                found.append((read, Drawn(Offset(together.first + place), 1) if is_there else _NOTHING))
        return found

    async def _give(self, partition: PartitionId, made: TopicToken | None, drawn: list[tuple[_Read, Drawn]]) -> None:
        for read, each in drawn:
            if each is _OUTDATED:
                refuse(read.done, RequestOutdated("a later request of the same reader came before this one"))
            elif each.count:
                try:
                    message = await self._read_ahead.message(partition, each.first)
                    if token_of(self._backend.topic(partition.topic)) != made:
                        # What was drawn was of the one before: this one's reader has not come to its messages yet.
                        raise TopicNotFound(f"{partition.topic} was deleted while it was read; read again")
                except HoldfastError as error:
                    refuse(read.done, error)
                else:
                    _settle(read, message)
                    self._broker.stats.count_delivery(1, len(message.value))
            elif each.is_repeat:
                _settle(read, None)


_NOTHING: Final = Drawn(Offset(0), 0)
_OUTDATED: Final = OUTDATED_DRAW


def _settle(read: _Read, message: StoredMessage | None) -> None:
    if not read.done.done():
        read.done.set_result(message)

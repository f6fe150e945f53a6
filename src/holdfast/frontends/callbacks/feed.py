"""One partition that this node leads, read for all receivers of its messages.

Receivers that can take more stand in groups, by their place. A group is read for, and its lines made, once; so at the
tail a thousand receivers cost one read and a write each. Who does not acknowledge, or does not read, stands in no
group and delays nobody; who is far behind is read for beside the others, in the order in which they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.broker.broker import Broker
from holdfast.broker.callback_window import Budget
from holdfast.frontends.callbacks.subscriber import Subscriber
from holdfast.model.callbacks import Callback
from holdfast.model.errors import DamagedData, HoldfastError, OffsetOutOfRange, TopicNotFound
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.limits import MIB, SUBSCRIBER_BUFFER_BYTES_MAX
from holdfast.model.topics import Topic
from holdfast.wire import record_batch
from holdfast.wire.callbacks import Lines, numbered_lines, plain_lines

# Groups that are behind and read for at the same time; the one that is furthest does not count.
_BEHIND_MAX: Final = 4
# So much is written before others get their turn on the loop.
_WRITE_BYTES: Final = 4 * MIB
# So often a store that cannot be read is tried again.
_AWAY_PAUSE_S: Final = 0.1


class Feed:
    """Runs until it is closed; the tasks it begins end by themselves."""

    def __init__(self, broker: Broker, budget: Budget, topic: Topic, partition: PartitionId, reign: int) -> None:
        self._budget = budget
        self.topic = topic
        self.partition = partition
        self.reign = reign
        self.subscribers: set[Subscriber] = set()
        self._broker = broker
        self._backend = broker.backend
        self._loop = asyncio.get_running_loop()
        # Who can take more, by place; and the place of each, none while it is being read for.
        self._groups: dict[Offset, set[Subscriber]] = {}
        self._placed: dict[Subscriber, Offset | None] = {}
        self._furthest = Offset(0)
        self._reading: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self.is_closed = False
        # Whether the cursors are known here as they were when this reign began.
        self.is_begun = False
        self._unwatch = self._backend.watch(partition, self._look_soon)

    def close(self) -> None:
        self.is_closed = True
        self._unwatch()
        if self._turn is not None:
            self._turn.cancel()
        for task in self._reading:
            task.cancel()
        for subscriber in list(self.subscribers):
            self.discard(subscriber)

    def add(self, subscriber: Subscriber, position: Offset) -> None:
        self.subscribers.add(subscriber)
        self._furthest = max(self._furthest, position)
        subscriber.attach(self.partition.number, self, position)

    def discard(self, subscriber: Subscriber) -> None:
        self.subscribers.discard(subscriber)
        self._take_away(subscriber)
        subscriber.detach(self.partition.number, self)

    def place(self, subscriber: Subscriber) -> None:
        """It can take more, or stands elsewhere; one that is being read for is placed again when that is done."""
        position = subscriber.positions[self.partition.number]
        if subscriber in self._placed:
            if self._placed[subscriber] in (None, position):
                return
            self._take_away(subscriber)
        self._placed[subscriber] = position
        self._groups.setdefault(position, set()).add(subscriber)
        self._look_soon()

    def _take_away(self, subscriber: Subscriber) -> None:
        position = self._placed.pop(subscriber, None)
        if position is not None:
            group = self._groups[position]
            group.discard(subscriber)
            if not group:
                del self._groups[position]

    def _look_soon(self) -> None:
        if self._turn is None and not self.is_closed:
            self._turn = self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Begin to read for the groups that something is there for."""
        self._turn = None
        end = self._backend.end_offset(self.partition)
        for position in [position for position in self._groups if position < end]:
            if position < self._furthest and len(self._reading) >= _BEHIND_MAX:
                continue  # whoever is done looks again
            group = self._groups.pop(position)
            self._placed.update(dict.fromkeys(group))
            task = self._loop.create_task(self._serve(position, group))
            self._reading.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a feed of callbacks failed", "exception": bug})
        self._look_soon()

    async def _serve(self, position: Offset, group: set[Subscriber]) -> None:
        """Send one read to all of a group; each of them is placed again when it has its part."""
        try:
            if not await self._deliver(position, group):
                await asyncio.sleep(_AWAY_PAUSE_S)
        except TopicNotFound:
            return  # whoever watches the topics closes this feed
        except HoldfastError:
            await asyncio.sleep(_AWAY_PAUSE_S)
        finally:
            # Those who were served are placed already, and may be read for again.
            for subscriber in group:
                self._place_again(subscriber)

    def _place_again(self, subscriber: Subscriber) -> None:
        if subscriber in self._placed and self._placed[subscriber] is None:
            del self._placed[subscriber]
            if subscriber.has_room and subscriber in self.subscribers:
                self.place(subscriber)

    async def _deliver(self, position: Offset, group: set[Subscriber]) -> bool:
        """Whether there was anything at this place, be it that it is lost."""
        try:
            batches = list(await self._backend.read(self.partition, position, SUBSCRIBER_BUFFER_BYTES_MAX))
        except (OffsetOutOfRange, DamagedData) as error:
            return self._skip([each for each in group if self._stands(each, position)], position, error)
        if not batches:
            return False
        self._furthest = max(self._furthest, record_batch.header(batches[-1]).next_offset)
        alike: dict[tuple[str, str], list[Subscriber]] = {}
        for subscriber in group:
            alike.setdefault((subscriber.callback.topic, subscriber.callback.format), []).append(subscriber)
        for subscribers in alike.values():
            await self._send(position, batches, subscribers, group)
        return True

    async def _send(
        self, position: Offset, batches: Sequence[memoryview], subscribers: list[Subscriber], group: set[Subscriber]
    ) -> None:
        """The same lines to all of them, a piece at a time, for as long as one of them has room."""
        written = 0
        for lines in self._lines(subscribers[0].callback, batches, position):
            standing = [each for each in subscribers if self._stands(each, position)]
            if not standing:
                break
            for subscriber in standing:
                # Others had their turn since it was looked at.
                if self._stands(subscriber, position):
                    subscriber.send(self.partition.number, lines)
                    self._broker.stats.count_delivery(lines.messages, len(lines.data))
                    written += len(lines.data)
                if written > _WRITE_BYTES:
                    written = 0
                    await asyncio.sleep(0)
            position = lines.next_offset
        for subscriber in subscribers:
            self._place_again(subscriber)
            group.discard(subscriber)

    def _stands(self, subscriber: Subscriber, position: Offset) -> bool:
        """Whether it is still there: it may have been lost, and begun anew, meanwhile."""
        return subscriber.has_room and subscriber.positions.get(self.partition.number) == position

    def _lines(self, callback: Callback, batches: Sequence[memoryview], start: Offset) -> Iterator[Lines]:
        topic, piece = callback.topic.encode(), self._budget.piece
        if callback.format == "plain":
            return plain_lines(topic, batches, start, piece)
        # Topics of a store from before the control log have no token.
        token = self.topic.token or str(self.topic.id)
        return numbered_lines(topic, token, self.partition.number, batches, start, piece)

    def _skip(self, group: list[Subscriber], position: Offset, error: OffsetOutOfRange | DamagedData) -> bool:
        start = self._backend.start_offset(self.partition)
        to = Offset(error.next_offset) if isinstance(error, DamagedData) else start
        lost = to - position
        if lost <= 0:
            return False  # it was mended, or is there, by now
        for subscriber in group:
            subscriber.skip(self.partition.number, to)
        if isinstance(error, DamagedData):
            self._broker.stats.skipped_damaged += lost * len(group)
        else:
            self._broker.stats.skipped_expired += lost * len(group)
        return True

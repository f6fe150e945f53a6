"""Pops: a group of consumers takes messages off a topic, each once.

A group has a cursor of its name. A pop reads from there and then *takes* the cursor: moves it from exactly where it was
read to behind what was read (`Backend.take_cursor`). Of several who read the same, through whichever brokers, one
takes it; the others read again. So what is handed out was taken before, durably, and is handed out to nobody else: at
most once.

A pop of one partition name has a cursor of its own, for several names share a partition's log. It moves behind
everything it has looked at, so each message is looked at once for each such name. Whatever the group's own cursor has
passed is done for all names; and what a name's cursor has passed is left out where the group reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from holdfast.model import names
from holdfast.model.errors import BadCursorName, CursorMoved
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.limits import CURSOR_NAME_BYTES_MAX
from holdfast.model.messages import StoredMessage
from holdfast.model.topics import Topic
from holdfast.wire import record_batch
from holdfast.wire.push_batch import DEFAULT_PARTITION

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker
    from holdfast.broker.follower import Delivery

# What is read of a log at once, however little of it is wanted.
_READ_BYTES: Final = 256 * 1024
# Messages of other names that may be looked at again, before it is worth storing that they were looked at.
_LOOKED_AT_MAX: Final = 1000
# A long way without one that is wanted: what was looked at is worth storing before going on.
_STRETCH_MAX: Final = 100_000
_DECODED_MIN: Final = 16
_GROUP_CHARACTERS_MAX: Final = CURSOR_NAME_BYTES_MAX - len(".pop-") - 16


class Popped(NamedTuple):
    """Messages that were taken, all from one partition's log; and where each log was looked at up to."""

    messages: list[StoredMessage]
    looked_at: dict[int, Offset]


def name_of(message: StoredMessage) -> str:
    """The name of the partition a message was pushed to; whatever its key is, that counts as one."""
    return DEFAULT_PARTITION if message.key is None else message.key.decode("utf-8", "backslashreplace")


def cursor_of(group: str, name: str | None) -> CursorName:
    """The cursor of a group, or of a group in the partition of one name."""
    return CursorName(group if name is None else f"{group}.pop-{sha256(name.encode()).hexdigest()[:16]}")


def checked_group(group: str) -> str:
    """A group's name, or `BadCursorName`. There has to be room for what `cursor_of` adds."""
    if len(group) > _GROUP_CHARACTERS_MAX:
        raise BadCursorName(f"a group's name has {len(group)} characters; at most {_GROUP_CHARACTERS_MAX} are allowed")
    return names.cursor_name(group)


BeforeTaking = Callable[[int], Awaitable[None]]


async def at_once(size: int) -> None:
    """Take messages of any size."""


class Pops:
    """All pops of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # One pop of a group at a time: those who come together would all read the same, and all but one in vain.
        self._turns: WeakValueDictionary[tuple[TopicName, str], asyncio.Lock] = WeakValueDictionary()
        self._rotation = 0
        # Those who wait for a topic that is not there yet, by its name.
        self._awaited: dict[TopicName, set[asyncio.Future[None]]] = {}
        self._is_watching = False

    async def is_there(self, topic: TopicName) -> bool:
        """Whether a topic was made, through whichever node. To pop from one that was not does not make it."""
        backend = self._broker.backend
        if backend.topic(topic) is None:
            await backend.catch_up_cursors()
        return backend.topic(topic) is not None

    async def wait_for_topic(self, topic: TopicName, timeout_s: float) -> bool:
        """Until it is made; False when the time is up."""
        if not self._is_watching:
            self._is_watching = True
            self._broker.backend.watch_topics(self._on_topic)
        if self._broker.backend.topic(topic) is not None:
            return True
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._awaited.setdefault(topic, set())
        waiting.add(made)
        try:
            async with asyncio.timeout(timeout_s):
                await made
        except TimeoutError:
            return False
        finally:
            waiting.discard(made)
            if not waiting and self._awaited.get(topic) is waiting:
                del self._awaited[topic]
        return True

    def _on_topic(self, topic: Topic) -> None:
        for made in self._awaited.get(topic.name, ()):
            if not made.done():
                made.set_result(None)

    async def pop(
        self,
        topic: Topic,
        group: str,
        name: str | None,
        *,
        messages_max: int,
        bytes_max: int,
        looked_at: dict[int, Offset] | None = None,
        before_taking: BeforeTaking = at_once,
    ) -> Popped:
        """Up to so many of the next messages, if there are any. `looked_at` is what a pop before this ended with."""
        checked_group(group)
        turn = self._turns.setdefault((topic.name, group), asyncio.Lock())
        async with turn:
            pop = _Pop(self._broker, topic, group, name, dict(looked_at or {}), messages_max, bytes_max, before_taking)
            is_current = False
            while True:
                for number in self._numbers(topic, name):
                    messages = await pop.of(number)
                    if messages:
                        return Popped(messages, pop.looked_at)
                if is_current:
                    return Popped([], pop.looked_at)
                # "Nothing" is only said when it is true on every node.
                for number in self._numbers(topic, name):
                    await self._broker.backend.catch_up(PartitionId(topic.name, number))
                is_current = True

    def _numbers(self, topic: Topic, name: str | None) -> Iterator[int]:
        """The logs to look into, beginning with another one each time, so that a busy one does not starve the others.

        Messages of a name are usually in one log; but whoever publishes may name another partition.
        """
        partitions = topic.config.partitions
        self._rotation += 1
        return ((self._rotation + step) % partitions for step in range(partitions))


class _Pop:
    """One pop on its way."""

    def __init__(
        self,
        broker: Broker,
        topic: Topic,
        group: str,
        name: str | None,
        looked_at: dict[int, Offset],
        messages_max: int,
        bytes_max: int,
        before_taking: BeforeTaking,
    ) -> None:
        self.looked_at = looked_at
        self._before_taking = before_taking
        self._broker = broker
        self._backend = broker.backend
        self._topic = topic.name
        self._group = group
        self._name = name
        self._cursor = cursor_of(group, name)
        self._messages_max = messages_max
        self._bytes_max = bytes_max

    async def of(self, number: int) -> list[StoredMessage]:
        """Take the next messages of one log."""
        partition = PartitionId(self._topic, number)
        while True:
            stands_at = self._position(self._cursor, number)
            # Who is new begins with what is still there; who is not is told that something expired.
            begin = self._backend.start_offset(partition) if stands_at is None else stands_at
            begin = max(begin, self.looked_at.get(number, Offset(0)))
            if self._name is not None:
                # The group itself may be further than its cursor for this name.
                begin = max(begin, self._position(cursor_of(self._group, None), number) or Offset(0))
            messages, end = await self._look(number, begin)
            if messages:
                await self._before_taking(sum(len(message.value) for message in messages))
            try:
                if messages or end - (stands_at or 0) > _LOOKED_AT_MAX:
                    await self._backend.take_cursor(self._topic, self._cursor, number, stands_at=stands_at, to=end)
            except CursorMoved:
                # Somebody else has these; where it stands now is known when everything before is.
                await self._backend.catch_up_cursors()
                continue
            self.looked_at[number] = end
            if messages or end >= self._backend.end_offset(partition):
                return messages

    async def _look(self, number: int, begin: Offset) -> tuple[list[StoredMessage], Offset]:
        """The next messages that are wanted, and the offset behind all that was looked at."""
        follower = self._broker.follow(self._topic, {number: begin})
        found: list[StoredMessage] = []
        size = 0
        passed: dict[str, Offset] = {}
        try:
            while (delivery := await follower.poll(_READ_BYTES)) is not None:
                for message in self._decoded(delivery):
                    if not self._is_wanted(message, number, passed):
                        continue
                    size += len(message.value)
                    if found and size > self._bytes_max:
                        return found, message.offset
                    found.append(message)
                    if len(found) >= self._messages_max:
                        return found, Offset(message.offset + 1)
                if not found and follower.positions[number] - begin > _STRETCH_MAX:
                    break
        finally:
            follower.close()
        return found, follower.positions[number]

    def _decoded(self, delivery: Delivery) -> Iterator[StoredMessage]:
        """The messages of a delivery, a few at a time: of a batch of thousands one may be wanted."""
        step = max(self._messages_max, _DECODED_MIN)
        for batch in delivery.batches:
            offset, end = delivery.offset, record_batch.header(batch).next_offset
            while offset < end:
                messages = record_batch.decode(
                    batch,
                    delivery.partition,
                    start=offset,
                    messages_max=step,
                    is_epoch_told=self._backend.delivers_where_led,
                )
                yield from messages
                offset = Offset(messages[-1].offset + 1)

    def _is_wanted(self, message: StoredMessage, number: int, passed: dict[str, Offset]) -> bool:
        name = name_of(message)
        if self._name is not None:
            return name == self._name
        if name not in passed:
            passed[name] = self._position(cursor_of(self._group, name), number) or Offset(0)
        return message.offset >= passed[name]

    def _position(self, cursor: CursorName, number: int) -> Offset | None:
        positions = self._backend.cursor(self._topic, cursor)
        return None if positions is None else positions.get(number)

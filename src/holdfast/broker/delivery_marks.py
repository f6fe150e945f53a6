"""How far the live subscribers of a topic have come, where only the node that leads delivers to them.

A subscriber of a pair is connected to both brokers and has no name. The broker that leads delivers, and notes
under a cursor of its own how far everybody has come; the one that takes the lead goes on from there. What was
delivered a moment before and not noted yet is delivered again: subscribers that ask for ids can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Mapping

from holdfast.broker.backend import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.names import is_internal

# No reader can have this name: see `names.cursor_name`.
DELIVERED = CursorName("~delivered")
# So long a new leader keeps what may not be delivered for subscribers that have to connect again.
_YOUNG_MS = 5_000


class DeliveryMarks:
    """The marks of all topics on this node."""

    def __init__(self, backend: Backend, now_ms: Callable[[], TimestampMs]) -> None:
        self._backend = backend
        self._now_ms = now_ms
        self._reigns_began_ms: dict[PartitionId, TimestampMs] = {}
        self._left_ms: dict[TopicName, TimestampMs] = {}
        self._subscribers: dict[TopicName, dict[Hashable, dict[int, Offset]]] = {}

    def watch(self) -> None:
        """Take note of reigns from now on."""
        if self._backend.delivers_where_led:
            self._backend.watch_reigns(self._on_reign)

    def _on_reign(self, partition: PartitionId) -> None:
        if self._backend.reign(partition) is None:
            self._reigns_began_ms.pop(partition, None)
        else:
            self._reigns_began_ms.setdefault(partition, self._now_ms())

    def is_young(self, partition: PartitionId) -> bool:
        """Whether this node leads since a moment ago: subscribers of the one before are on their way."""
        began_ms = self._reigns_began_ms.get(partition)
        return began_ms is not None and self._now_ms() - began_ms < _YOUNG_MS

    def joined(self, topic: TopicName, subscriber: Hashable, positions: Mapping[int, Offset]) -> None:
        self._subscribers.setdefault(topic, {})[subscriber] = dict(positions)

    def left(self, topic: TopicName, subscriber: Hashable) -> None:
        subscribers = self._subscribers.get(topic, {})
        subscribers.pop(subscriber, None)
        if not subscribers and self._subscribers.pop(topic, None) is not None:
            self._left_ms[topic] = self._now_ms()

    def taken(self, topic: TopicName, subscriber: Hashable, positions: Mapping[int, Offset]) -> None:
        """A subscriber has everything below these offsets."""
        subscribers = self._subscribers.get(topic, {})
        if subscriber not in subscribers:
            return
        subscribers[subscriber].update(positions)
        reached = {number: min(each.get(number, Offset(0)) for each in subscribers.values()) for number in positions}
        self._note(topic, reached)

    def note_unwaited(self) -> None:
        """What nobody waits for counts as delivered, so that a new leader does not begin with what is long gone."""
        for topic in self._backend.topics():
            if topic.name in self._subscribers or self._was_left_just_now(topic.name) or is_internal(topic.name):
                continue
            partitions = [PartitionId(topic.name, number) for number in range(topic.config.partitions)]
            led = [each for each in partitions if self._backend.reign(each) is not None and not self.is_young(each)]
            self._note(topic.name, {each.number: self._backend.end_offset(each) for each in led})

    def _was_left_just_now(self, topic: TopicName) -> bool:
        """Its subscribers may be about to connect to the other one, since this one is about to go."""
        left_ms = self._left_ms.get(topic)
        if left_ms is None or self._now_ms() - left_ms < _YOUNG_MS:
            return left_ms is not None
        del self._left_ms[topic]
        return False

    def _note(self, topic: TopicName, reached: Mapping[int, Offset]) -> None:
        noted = self._backend.cursor(topic, DELIVERED) or {}
        news = {number: offset for number, offset in reached.items() if offset > noted.get(number, Offset(0))}
        if news:
            with contextlib.suppress(HoldfastError):  # the topic was deleted meanwhile
                self._backend.set_cursor(topic, DELIVERED, news, only_forward=True).add_done_callback(_ignored)


def _ignored(noted: asyncio.Future[None]) -> None:
    """A mark that could not be noted means a second delivery, no loss; the next one may be."""
    if not noted.cancelled() and (error := noted.exception()) is not None and not isinstance(error, HoldfastError):
        raise error

"""Who delivers what: a feed for each partition that this node leads and somebody subscribed to with an address.

A node that comes to lead begins at the cursors, as far as any node has moved them; one that stops leading ends at
once. A cursor moves behind what was acknowledged, never before, and not for each acknowledgement: what all receivers
of a node acknowledged within a tenth of a second is decided together. So after a failover a receiver gets again what
it acknowledged last, and what it had not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final, Protocol

import msgspec

from holdfast.broker.broker import Broker
from holdfast.broker.callback_addresses import CallbackPolicy
from holdfast.broker.callback_window import Budget
from holdfast.broker.callbacks import CallbackStore
from holdfast.broker.results import failure
from holdfast.frontends.callbacks.announcing import Announcer
from holdfast.frontends.callbacks.dialing import Dialer
from holdfast.frontends.callbacks.feed import Feed
from holdfast.frontends.callbacks.subscriber import Subscriber
from holdfast.model.callbacks import Callback, CallbackDelivery, DeliveryState
from holdfast.model.errors import HoldfastError, NotFound
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.names import callback_place
from holdfast.model.topics import Topic

# Cursors move so often at most; where many do, so much later for each of them, as each is a command on every node.
_MOVE_S_MIN: Final = 0.1
_MOVE_S_EACH: Final = 0.0005
# A stop waits so long for what was acknowledged last to be noted.
_STOP_S: Final = 2.0
_AGAIN_S: Final = 0.2

_Key = tuple[TopicName, CursorName]


class LogEvent(Protocol):
    """Where it is said what an operator should know."""

    def __call__(self, event: str, /, **fields: object) -> None: ...


class DeliveryStats(msgspec.Struct):
    """Since the start of this node."""

    acknowledged: int = 0


class CallbackDeliveries:
    """All callbacks of one node. `start`, then `stop`; both once."""

    def __init__(
        self,
        broker: Broker,
        store: CallbackStore,
        policy: CallbackPolicy,
        *,
        ack_timeout_s: float,
        connections_max: int,
        log: LogEvent,
    ) -> None:
        self.stats = DeliveryStats()
        self._broker = broker
        self._store = store
        self._ack_timeout_s = ack_timeout_s
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._dialer = Dialer(policy, connections_max)
        self.announcer = Announcer(self._dialer, self._on_not_told)
        self._budget = Budget()
        # By the topic whose messages they get.
        self._wanted: dict[TopicName, set[_Key]] = {}
        self._feeds: dict[PartitionId, Feed] = {}
        self._subscribers: dict[_Key, Subscriber] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._moved: set[Subscriber] = set()
        self._moving: dict[asyncio.Future[None], Subscriber] = {}
        self._mover: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Begin with what there is, and follow subscriptions, topics and leaders from now on."""
        self._store.tell_with(self.told)
        self._store.watch(self._on_change)
        for callback in self._store.callbacks():
            self._wanted.setdefault(self._broker.delivers_from(callback.topic), set()).add(
                (callback.topic, callback.name)
            )
        self._broker.backend.watch_reigns(self._look_at)
        self._broker.backend.watch_deletions(self._on_deleted)
        self._broker.on_topic(self._on_topic)
        self._sweeper = self._loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Send nothing more, and note what was acknowledged until now."""
        self._is_stopping = True
        await self.announcer.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._beginning:
            task.cancel()
        for feed in self._feeds.values():
            feed.close()
        for subscriber in self._subscribers.values():
            subscriber.close()
        if self._mover is not None:
            self._mover.cancel()
        if self._moving:
            await asyncio.wait(list(self._moving), timeout=_STOP_S)
        self._move()
        if self._moving:
            await asyncio.wait(list(self._moving), timeout=_STOP_S)

    def told(self) -> list[CallbackDelivery]:
        node = self._broker.backend.node_id
        return [subscriber.told(node) for subscriber in self._subscribers.values()]

    def states(self) -> Counter[DeliveryState]:
        return Counter(subscriber.state for subscriber in self._subscribers.values())

    # --- what is wanted -------------------------------------------------------------------------------

    def _on_change(self, topic: TopicName, name: CursorName) -> None:
        """A subscription came, went, goes elsewhere or begins anew."""
        delivered, key = self._broker.delivers_from(topic), (topic, name)
        wanted = self._wanted.setdefault(delivered, set())
        if self._store.callback(topic, name) is not None:
            wanted.add(key)
        else:
            wanted.discard(key)
        if not wanted:
            del self._wanted[delivered]
        # When what was just decided is known in full.
        self._loop.call_soon(self._look_again, delivered, key)

    def _look_again(self, delivered: TopicName, key: _Key) -> None:
        """At all partitions of a topic, for one subscription."""
        topic = self._broker.backend.topic(delivered)
        for number in range(topic.config.partitions if topic is not None else 0):
            partition = PartitionId(delivered, number)
            feed = self._feeds.get(partition)
            if feed is None or delivered not in self._wanted:
                self._look_at(partition)
            elif feed.is_begun:
                self._serve_one(feed, key)

    def _on_topic(self, topic: Topic) -> None:
        for number in range(topic.config.partitions):
            self._look_at(PartitionId(topic.name, number))

    def _on_deleted(self, topic: TopicName) -> None:
        for partition in [partition for partition in self._feeds if partition.topic == topic]:
            self._close(self._feeds.pop(partition))

    # --- partitions -----------------------------------------------------------------------------------

    def _look_at(self, partition: PartitionId) -> None:
        """Deliver a partition if it is led here and somebody wants it, and only then."""
        wanted = self._wanted.get(partition.topic)
        feed = self._feeds.get(partition)
        if feed is None and wanted is None:
            return  # as almost always
        topic, reign = self._broker.backend.topic(partition.topic), self._broker.backend.reign(partition)
        if feed is not None and (wanted is None or feed.topic != topic or feed.reign != reign):
            self._close(self._feeds.pop(partition))
            feed = None
        if wanted is None or topic is None or reign is None or self._is_stopping:
            return
        if feed is None:
            feed = self._feeds[partition] = Feed(self._broker, self._budget, topic, partition, reign)
            task = self._loop.create_task(self._begin(feed))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        elif feed.is_begun:
            self._serve(feed)

    async def _begin(self, feed: Feed) -> None:
        """Once it is known how far another node came that led before."""
        while not feed.is_closed:
            try:
                await self._broker.backend.catch_up_cursors()
                break
            except HoldfastError:
                await asyncio.sleep(_AGAIN_S)
        if not feed.is_closed:
            feed.is_begun = True
            self._serve(feed)

    def _serve(self, feed: Feed) -> None:
        """Have a feed serve those who want it, and nobody else."""
        served = [(each.callback.topic, each.callback.name) for each in feed.subscribers]
        for key in {*served, *self._wanted.get(feed.partition.topic, ())}:
            self._serve_one(feed, key)

    def _serve_one(self, feed: Feed, key: _Key) -> None:
        if self._is_stopping:
            return
        callback = self._store.callback(*key)
        subscriber = self._subscribers.get(key)
        if subscriber is not None and (callback is None or not _is_same(callback, subscriber.callback)):
            self._end(subscriber)
            subscriber = None
        if callback is None:
            return
        if subscriber is None:
            subscriber = self._subscribers[key] = Subscriber(
                callback,
                feed.topic,
                self._dialer,
                self._budget,
                self._on_acked,
                self._on_moved,
                self._on_refused,
            )
        if subscriber not in feed.subscribers:
            feed.add(subscriber, self._place(feed.partition, callback))

    def _place(self, partition: PartitionId, callback: Callback) -> Offset:
        """Where to begin; a place beyond the end, which a power loss can leave behind, is the end."""
        backend = self._broker.backend
        place = callback_place(callback.topic, callback.name, partition.topic)
        stored = (backend.cursor(partition.topic, place) or {}).get(partition.number)
        if stored is None:
            return backend.start_offset(partition)
        return min(stored, backend.end_offset(partition))

    def _close(self, feed: Feed) -> None:
        served = list(feed.subscribers)
        feed.close()
        for subscriber in served:
            if not subscriber.feeds:
                self._end(subscriber)
        # Whoever leads now begins at what is noted.
        self._move_soon(0.0)

    def _end(self, subscriber: Subscriber) -> None:
        subscriber.close()
        key = (subscriber.callback.topic, subscriber.callback.name)
        if self._subscribers.get(key) is subscriber:
            del self._subscribers[key]

    # --- cursors --------------------------------------------------------------------------------------

    def _on_acked(self, count: int) -> None:
        self.stats.acknowledged += count

    def _on_moved(self, subscriber: Subscriber) -> None:
        self._moved.add(subscriber)
        if self._mover is None:
            self._move_soon(max(_MOVE_S_MIN, len(self._subscribers) * _MOVE_S_EACH))

    def _move_soon(self, delay_s: float) -> None:
        if self._moved and not self._is_stopping:
            if self._mover is not None:
                self._mover.cancel()
            self._mover = self._loop.call_later(delay_s, self._move)

    def _move(self) -> None:
        """Note what was acknowledged; one that is being noted waits for that."""
        self._mover = None
        under_way = set(self._moving.values())
        moved, self._moved = self._moved, self._moved & under_way
        for subscriber in moved - under_way:
            positions = {
                number: place
                for number, place in subscriber.acked.items()
                if place > subscriber.stored.get(number, Offset(-1))
            }
            if not positions:
                continue
            stored = self._store.move(subscriber.callback, subscriber.delivered, positions, subscriber.lost)
            self._moving[stored] = subscriber
            stored.add_done_callback(partial(self._on_stored, positions))

    def _on_stored(self, positions: dict[int, Offset], stored: asyncio.Future[None]) -> None:
        subscriber = self._moving.pop(stored)
        error = failure(stored)
        if error is None:
            subscriber.stored.update(positions)
        elif not isinstance(error, NotFound):
            # It is noted with the next ones: until then a failover sends more again, and loses nothing.
            self._moved.add(subscriber)
        if self._moved and self._mover is None:
            self._move_soon(_MOVE_S_MIN)

    # --- receivers ------------------------------------------------------------------------------------

    def _on_not_told(self, callback: Callback, why: str) -> None:
        self._log("callback_not_told", topic=callback.topic, name=callback.name, callback=callback.address, problem=why)

    def _on_refused(self, subscriber: Subscriber, why: str) -> None:
        callback = subscriber.callback
        self._log("callback_refused", topic=callback.topic, name=callback.name, callback=callback.address, problem=why)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._ack_timeout_s / 4))
            subscribers = list(self._subscribers.values())
            for subscriber in subscribers:
                subscriber.drop_if_silent(self._ack_timeout_s)
            if self._budget.owes_news():
                for subscriber in subscribers:
                    subscriber.on_room()


def _is_same(one: Callback, other: Callback) -> bool:
    return (one.number, one.address, one.format) == (other.number, other.address, other.format)

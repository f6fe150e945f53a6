"""Subscriptions of receivers that the cluster connects to: making, removing and describing them.

They are state of the cluster, so a subscription outlives the node it was made on. Who delivers is decided elsewhere
(`frontends/callbacks`): for each partition the node that leads it, from the cursor of the subscription's name on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.broker.callback_addresses import CallbackPolicy, default_name, parse_callback_address
from holdfast.model import names
from holdfast.model.callbacks import Callback, CallbackDelivery, CallbackDescription, CallbackFormat, DeliveryState
from holdfast.model.errors import NotFound, NotSupported, SubscriptionNotFound, TooManySubscriptions, Unavailable
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName
from holdfast.model.limits import CALLBACKS_MAX
from holdfast.model.topics import Topic

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

_BEST_FIRST: Final[tuple[DeliveryState, ...]] = ("connected", "waiting", "refused")


def too_many() -> TooManySubscriptions:
    return TooManySubscriptions(f"a cluster delivers to {CALLBACKS_MAX} callbacks; remove one that is not needed")


class CallbackStore(Protocol):
    """Where subscriptions are kept: durable, and the same on all nodes."""

    def callbacks(self) -> Sequence[Callback]: ...

    def callback(self, topic: TopicName, name: CursorName) -> Callback | None: ...

    async def add(self, callback: Callback, delivered: Topic, positions: Mapping[int, Offset]) -> None:
        """Durable on return. One of the same name is delivered elsewhere from now on, and a new one begins there.

        Raises `TooManySubscriptions`, and leaves nothing behind then.
        """
        ...

    async def remove(self, callback: Callback, delivered: TopicName) -> None:
        """Its cursor, in the topic whose messages it gets, goes with it; another one of its name stays."""
        ...

    def move(
        self, callback: Callback, delivered: Topic, positions: Mapping[int, Offset], lost: Mapping[int, int]
    ) -> asyncio.Future[None]:
        """What is below these offsets was acknowledged, or is `lost`. Never moves back.

        Raises `SubscriptionNotFound` for one that was removed, or whose cursor somebody moved.
        """
        ...

    def watch(self, on_change: Callable[[TopicName, CursorName], None]) -> None:
        """Call back from now on for a subscription that comes, goes, changes or is to begin anew at its cursor."""
        ...

    def tell_with(self, tell: Callable[[], list[CallbackDelivery]]) -> None:
        """How this node gets along with its receivers, for all nodes that ask."""
        ...

    async def deliveries(self) -> list[CallbackDelivery]:
        """What all nodes tell that can be reached."""
        ...


class Announce(Protocol):
    """Tells receivers of their subscriptions, if they want that."""

    def subscribed(self, callback: Callback) -> None: ...
    def removed(self, callback: Callback) -> None: ...


class Callbacks:
    """What front ends may do with such subscriptions."""

    def __init__(self, broker: Broker, now_ms: Callable[[], TimestampMs]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._store: CallbackStore | None = None
        self._policy: CallbackPolicy
        self._announce: Announce | None = None

    def serve(self, store: CallbackStore, policy: CallbackPolicy, announce: Announce | None = None) -> None:
        """There is a store that keeps them. With `announce`, receivers are told."""
        self._store, self._policy, self._announce = store, policy, announce

    async def subscribe(
        self,
        topic: str,
        address: str,
        *,
        name: str | None = None,
        start: str | int = "latest",
        format: CallbackFormat = "plain",
    ) -> CallbackDescription:
        """Deliver a topic to an address from now on. A name that is known goes on where it stands, at this address.

        Raises `CallbackRefused`, `TopicNotFound`, `TooManySubscriptions`, `NotSupported`.
        """
        store = self._served()
        checked, wanted = names.topic_name(topic), parse_callback_address(address)
        self._policy.check(wanted)
        cursor = names.cursor_name(default_name(wanted) if name is None else name)
        broker = self._broker
        delivered = broker.delivers_from(checked)
        # As of now, and not of when the topic is made or the others are heard.
        if start == "latest" and broker.backend.topic(delivered) is None:
            start = "earliest"
        place = (broker.end_positions(delivered) or start) if start == "latest" else start
        await broker.backend.catch_up_cursors()
        if store.callback(checked, cursor) is None and len(store.callbacks()) >= CALLBACKS_MAX:
            raise too_many()
        await broker.ensure_topic(checked)
        source = await broker.ensure_topic(delivered)
        positions = await broker.positions(delivered, place) if isinstance(place, str | int) else place
        broker.cursor_claims.check(source, positions)
        await store.add(
            Callback(topic=checked, name=cursor, address=str(wanted), format=format, created_ms=self._now_ms()),
            source,
            positions,
        )
        made = store.callback(checked, cursor)
        if made is None:
            raise SubscriptionNotFound(f"subscription {cursor} to {checked} was removed meanwhile; subscribe again")
        if self._announce is not None:
            self._announce.subscribed(made)
        return self._described(made, [])

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Raises `SubscriptionNotFound`."""
        store = self._served()
        checked, cursor = names.topic_name(topic), names.cursor_name(name)
        await self._broker.backend.catch_up_cursors()
        callback = store.callback(checked, cursor)
        if callback is None:
            raise SubscriptionNotFound(
                f"there is no subscription {cursor} to {checked}; `holdfast subscriptions list` shows all"
            )
        await self._remove(store, callback)

    async def unsubscribe_address(self, topic: str, address: str) -> None:
        """All of a topic's subscriptions that go to an address. Raises `SubscriptionNotFound`."""
        store = self._served()
        checked, wanted = names.topic_name(topic), str(parse_callback_address(address))
        await self._broker.backend.catch_up_cursors()
        found = [each for each in store.callbacks() if each.topic == checked and each.address == wanted]
        if not found:
            raise SubscriptionNotFound(f"no subscription to {checked} goes to {wanted}")
        for callback in found:
            await self._remove(store, callback)

    async def _remove(self, store: CallbackStore, callback: Callback) -> None:
        found: Callback | None = callback
        while found is not None and found.created_ms == callback.created_ms:
            # Once more where somebody moved its cursor meanwhile, and so gave it another number.
            await store.remove(found, self._broker.delivers_from(callback.topic))
            found = store.callback(callback.topic, callback.name)
        if self._announce is not None:
            self._announce.removed(callback)

    async def describe(self, topic: str | None = None) -> list[CallbackDescription]:
        """All there are, or those of a topic, by topic and name."""
        store = self._served()
        with contextlib.suppress(Unavailable):  # whoever looks for what is wrong sees what is known here
            await self._broker.backend.catch_up_cursors()
        told: dict[tuple[TopicName, CursorName], list[CallbackDelivery]] = {}
        for delivery in await store.deliveries():
            told.setdefault((delivery.topic, delivery.name), []).append(delivery)
        wanted = None if topic is None else names.topic_name(topic)
        found = sorted(store.callbacks(), key=lambda each: (each.topic, each.name))
        return [
            self._described(each, told.get((each.topic, each.name), []))
            for each in found
            if wanted in (None, each.topic)
        ]

    def _described(self, callback: Callback, deliveries: list[CallbackDelivery]) -> CallbackDescription:
        try:
            delivered = self._broker.delivers_from(callback.topic)
            place = names.callback_place(callback.topic, callback.name, delivered)
            behind = self._broker.describe_cursor(callback.topic, place).lag
        except NotFound:
            behind = 0  # its topic, or its cursor, is being deleted
        states = [each.state for each in deliveries] or ["waiting"]
        errors = sorted((each for each in deliveries if each.error), key=lambda each: each.error_ms or 0)
        return CallbackDescription(
            topic=callback.topic,
            name=callback.name,
            callback=callback.address,
            format=callback.format,
            created_ms=callback.created_ms,
            state=max(states, key=_BEST_FIRST.index),
            behind=behind,
            lost=sum(callback.lost.values()),
            error=errors[-1].error if errors else None,
            deliveries=sorted(deliveries, key=lambda each: each.node),
        )

    def _served(self) -> CallbackStore:
        if self._store is None:
            raise NotSupported(
                "this broker's store keeps no callbacks: a cluster and a broker on its own disk do; "
                "subscribe over a connection instead"
            )
        return self._store

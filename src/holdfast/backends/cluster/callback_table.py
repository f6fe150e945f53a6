"""Subscriptions that the cluster connects to: what is decided of them, and what the nodes tell of delivering them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.backends.cluster.commands import AddCallback, Command, MoveCallback, RemoveCallback
from holdfast.backends.cluster.requests import Method
from holdfast.backends.cluster.state import CursorKey
from holdfast.model.callbacks import Callback, CallbackDelivery
from holdfast.model.errors import HoldfastError, SubscriptionNotFound, TooManySubscriptions, TopicNotFound
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.limits import CALLBACKS_MAX

if TYPE_CHECKING:
    from holdfast.backends.cluster.backend import ClusterBackend

# A node that does not answer this soon tells nothing of its deliveries.
_ANSWER_S: Final = 1.0
_decode_deliveries = msgspec.json.Decoder(list[CallbackDelivery]).decode

OnChange = Callable[[TopicName, CursorName | None], None]
Propose = Callable[[Command], asyncio.Future[None]]


class CallbackTable:
    """All of them, as far as the control log was applied here."""

    def __init__(
        self, propose: Propose, token_of: Callable[[TopicName], str], loaded: Mapping[CursorKey, Callback]
    ) -> None:
        self.propose = propose
        self.token_of = token_of
        self.known = dict(loaded)
        self.watchers: list[OnChange] = []
        self.seek_watchers: list[Callable[[TopicName, CursorName], None]] = []
        self.tell: Callable[[], list[CallbackDelivery]] = list

    def apply_add(self, command: AddCallback, number: int) -> Callback:
        """Returns it as it is now. Raises `TooManySubscriptions`."""
        key = (command.topic, command.name)
        before = self.known.get(key)
        if before is None and len(self.known) >= CALLBACKS_MAX:
            raise TooManySubscriptions(
                f"a cluster delivers to {CALLBACKS_MAX} callbacks; remove one that is not needed"
            )
        if before is not None:
            # What its receiver has seen does not depend on where it is.
            now = msgspec.structs.replace(before, address=command.address, format=command.format)
        else:
            now = Callback(
                topic=command.topic,
                name=command.name,
                address=command.address,
                format=command.format,
                created_ms=command.created_ms,
                number=number,
            )
        self.known[key] = now
        if now != before:
            self._tell_change(command.topic, command.name)
        return now

    def apply_remove(self, command: RemoveCallback) -> None:
        if self.known.pop((command.topic, command.name), None) is not None:
            self._tell_change(command.topic, command.name)

    def apply_move(self, command: MoveCallback) -> list[Callback]:
        """Returns it if more of it is lost than was known. Raises `SubscriptionNotFound`."""
        key = (command.topic, command.name)
        callback = self.known.get(key)
        if callback is None or callback.number != command.number:
            raise SubscriptionNotFound(f"there is no subscription {command.name} to {command.topic} any more")
        more = {number: lost for number, lost in command.lost.items() if lost > callback.lost.get(number, 0)}
        if not more:
            return []
        # Nobody who delivers has to know: it is they who count.
        self.known[key] = msgspec.structs.replace(callback, lost={**callback.lost, **more})
        return [self.known[key]]

    def forget_topic(self, name: TopicName) -> None:
        """The topic's subscriptions go with it."""
        gone = [key for key in self.known if key[0] == name]
        for key in gone:
            del self.known[key]
        if gone:
            self._tell_change(name, None)

    def sought(self, delivered: TopicName, name: CursorName) -> None:
        """Somebody moved a cursor, maybe that of a subscription."""
        for on_seek in self.seek_watchers:
            on_seek(delivered, name)

    def replace(self, loaded: Mapping[CursorKey, Callback]) -> None:
        """Everything is as another node has it."""
        topics = {key[0] for key in (*self.known, *loaded)}
        self.known = dict(loaded)
        for topic in topics:
            self._tell_change(topic, None)

    def _tell_change(self, topic: TopicName, name: CursorName | None) -> None:
        for on_change in self.watchers:
            on_change(topic, name)


class ClusterCallbacks:
    """Keeps the promises of `broker.callbacks.CallbackStore` with the nodes of a cluster."""

    def __init__(self, backend: ClusterBackend) -> None:
        self._backend = backend
        self._table = backend.state.callbacks

    def callbacks(self) -> Sequence[Callback]:
        return list(self._table.known.values())

    def callback(self, topic: TopicName, name: CursorName) -> Callback | None:
        return self._table.known.get((topic, name))

    async def add(self, callback: Callback) -> None:
        token = self._table.token_of(callback.topic)
        if not token:
            raise TopicNotFound(f"topic {callback.topic} was deleted meanwhile")
        await self._table.propose(
            AddCallback(callback.topic, token, callback.name, callback.address, callback.format, callback.created_ms)
        )

    async def remove(self, topic: TopicName, name: CursorName, delivered: TopicName) -> None:
        if self.callback(topic, name) is None:
            raise SubscriptionNotFound(f"there is no subscription {name} to {topic}; `holdfast subscriptions list`")
        await self._table.propose(RemoveCallback(topic, self._table.token_of(topic), name, delivered))

    def move(
        self, callback: Callback, delivered: TopicName, positions: Mapping[int, Offset], lost: Mapping[int, int]
    ) -> asyncio.Future[None]:
        token = self._table.token_of(delivered)
        move = MoveCallback(
            callback.topic, callback.name, callback.number, delivered, token, dict(positions), dict(lost)
        )
        return self._table.propose(move)

    def watch(self, on_change: OnChange, on_seek: Callable[[TopicName, CursorName], None]) -> None:
        self._table.watchers.append(on_change)
        self._table.seek_watchers.append(on_seek)

    def tell_with(self, tell: Callable[[], list[CallbackDelivery]]) -> None:
        self._table.tell = tell

    async def deliveries(self) -> list[CallbackDelivery]:
        told = await asyncio.gather(*map(self._told_by, self._backend.neighbours.names))
        return [delivery for each in told for delivery in each]

    async def _told_by(self, node: str) -> list[CallbackDelivery]:
        if node == self._backend.node_id:
            return self._table.tell()
        try:
            return _decode_deliveries(await self._backend.neighbours.request(node, Method.CALLBACKS, b"", _ANSWER_S))
        except HoldfastError:
            return []  # it is not there, and so delivers nothing, or nobody can tell

"""Subscriptions that the cluster connects to: what is decided of them, and what the nodes tell of delivering them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from holdfast.backends.cluster.commands import AddCallback, Command, MoveCallback, RemoveCallback
from holdfast.backends.cluster.requests import Method
from holdfast.backends.cluster.state import CursorKey
from holdfast.broker.callbacks import too_many
from holdfast.model.callbacks import Callback, CallbackDelivery
from holdfast.model.errors import (
    CursorNotFound,
    HoldfastError,
    SubscriptionNotFound,
    TopicNotFound,
)
from holdfast.model.ids import CursorName, Offset, TopicName
from holdfast.model.limits import CALLBACKS_MAX
from holdfast.model.names import callback_at
from holdfast.model.topics import Topic

if TYPE_CHECKING:
    from holdfast.backends.cluster.backend import ClusterBackend

log = structlog.get_logger("holdfast.backends.cluster")

# A node that does not answer this soon tells nothing of its deliveries.
_ANSWER_S: Final = 1.0
_decode_deliveries = msgspec.json.Decoder(list[CallbackDelivery]).decode

OnChange = Callable[[TopicName, CursorName], None]
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
        self.tell: Callable[[], list[CallbackDelivery]] = list

    def apply_add(self, command: AddCallback, number: int) -> tuple[Callback, bool]:
        """Returns it as it is now, and whether it is new. Raises `TooManySubscriptions`."""
        key = (command.topic, command.name)
        before = self.known.get(key)
        if before is None and len(self.known) >= CALLBACKS_MAX:
            raise too_many()
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
            log.info("subscribed", topic=now.topic, name=now.name, address=now.address)
            self._tell_change(key)
        return now, before is None

    def apply_remove(self, command: RemoveCallback) -> bool:
        """Whether it was still there."""
        key = (command.topic, command.name)
        callback = self.known.get(key)
        if callback is None or callback.number != command.number:
            return False
        self._remove(key)
        return True

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
        for key in [key for key in self.known if key[0] == name]:
            self._remove(key)

    def check_seek(self, delivered: TopicName, place: CursorName) -> None:
        """Raises `CursorNotFound` for the place of a subscription that is not there."""
        key = callback_at(delivered, place)
        if key is not None and key not in self.known:
            raise CursorNotFound(
                f"there is no subscription {key[1]} to {key[0]}; `holdfast subscriptions list` shows all"
            )

    def sought(self, delivered: TopicName, place: CursorName, number: int) -> list[Callback]:
        """Somebody moved a cursor. The subscription that stands there, if one does, begins anew.

        It gets another number, so that what was acknowledged before and is told late does not move it away again.
        """
        key = callback_at(delivered, place)
        if key is None:
            return []
        self.known[key] = msgspec.structs.replace(self.known[key], number=number)
        self._tell_change(key)
        return [self.known[key]]

    def replace(self, loaded: Mapping[CursorKey, Callback]) -> None:
        """Everything is as another node has it."""
        before, self.known = self.known, dict(loaded)
        for key in {**before, **loaded}:
            if before.get(key) != loaded.get(key):
                self._tell_change(key)

    def _remove(self, key: CursorKey) -> None:
        callback = self.known.pop(key)
        log.info("unsubscribed", topic=callback.topic, name=callback.name, address=callback.address)
        self._tell_change(key)

    def _tell_change(self, key: CursorKey) -> None:
        for on_change in self.watchers:
            on_change(*key)


class ClusterCallbacks:
    """Keeps the promises of `broker.callbacks.CallbackStore` with the nodes of a cluster."""

    def __init__(self, backend: ClusterBackend) -> None:
        self._backend = backend
        self._table = backend.state.callbacks

    def callbacks(self) -> Sequence[Callback]:
        return list(self._table.known.values())

    def callback(self, topic: TopicName, name: CursorName) -> Callback | None:
        return self._table.known.get((topic, name))

    async def add(self, callback: Callback, delivered: Topic, positions: Mapping[int, Offset]) -> None:
        token = self._table.token_of(callback.topic)
        if not token:
            raise TopicNotFound(f"topic {callback.topic} was deleted meanwhile")
        await self._table.propose(
            AddCallback(
                topic=callback.topic,
                token=token,
                name=callback.name,
                address=callback.address,
                format=callback.format,
                created_ms=callback.created_ms,
                delivered=delivered.name,
                delivered_token=delivered.token,
                positions=dict(positions),
            )
        )

    async def remove(self, callback: Callback, delivered: TopicName) -> None:
        await self._table.propose(RemoveCallback(callback.topic, callback.name, callback.number, delivered))

    def move(
        self, callback: Callback, delivered: Topic, positions: Mapping[int, Offset], lost: Mapping[int, int]
    ) -> asyncio.Future[None]:
        move = MoveCallback(
            topic=callback.topic,
            name=callback.name,
            number=callback.number,
            delivered=delivered.name,
            delivered_token=delivered.token,
            positions=dict(positions),
            lost=dict(lost),
        )
        return self._table.propose(move)

    def watch(self, on_change: OnChange) -> None:
        self._table.watchers.append(on_change)

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

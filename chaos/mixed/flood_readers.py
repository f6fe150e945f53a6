"""Who reads in a long run: subscribers that follow a topic through one node, or through all, by name or without."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from chaos.history import CursorEvent, Place
from chaos.mixed.ledger import Ledger
from holdfast.client import Client, Subscription
from holdfast.model.errors import HoldfastError

_PAUSE_S: Final = 0.05
_TAKE_S: Final = 0.5
_TAKE_MAX: Final = 1000
# A session does not last for ever: coming back is what is to be tried.
_TAKES_MAX: Final = 400


class Follower:
    """With a `cursor` it acknowledges what it got, now and then, and comes back now and then, to where that stands.

    Without, it comes back when it has lost its node, to the first offset it has not got in some partition.
    """

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        node: str,
        dice: random.Random,
        connect: Callable[[], Client],
        topic: str,
        cursor: str | None = None,
    ) -> None:
        self.book = ledger.reader(name, node)
        self.stopping = False
        self._ledger = ledger
        self._dice = dice
        self._connect = connect
        self._topic = topic
        self._cursor = cursor
        self._session = 0
        self._next: dict[int, int] = {}

    def behind(self, ends: Mapping[int, int]) -> str | None:
        """What it has not got of places that end there; `None` where it has all."""
        for place, end in ends.items():
            where = self._ledger.places[place]
            if where.topic == self._topic and end > (here := self._next.get(where.partition, 0)):
                return f"{self.book.reader} is at {here} of {end} in {where}"
        return None

    async def run(self) -> None:
        while not self.stopping:
            self._session += 1
            try:
                async with self._connect() as client:
                    began = time.monotonic()
                    start = min(self._next.values()) if self._next else "earliest"
                    async with client.subscribe(self._topic, self._cursor, start=start) as subscription:
                        await self._follow(subscription, began)
            except HoldfastError as error:
                self.book.failed(error.code)
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self, subscription: Subscription, began: float) -> None:
        delivered: dict[int, int] = {}
        takes = 0
        while not self.stopping and (self._cursor is None or takes < _TAKES_MAX):
            messages = await subscription.take(_TAKE_MAX, _TAKE_S)
            takes += 1
            now = time.monotonic()
            for message in messages:
                partition, offset = message.partition, int(message.offset)
                if self._cursor is not None and partition not in delivered:
                    self._event(partition, "found", began, offset)
                place = self._ledger.place(self._topic, partition)
                self.book.got(self._session, place, offset, self._ledger.message(message.value), now)
                delivered[partition] = offset + 1
                self._next[partition] = max(offset + 1, self._next.get(partition, 0))
            if messages and self._cursor is not None and self._dice.random() < 0.2:
                moving = dict(delivered)
                asked = time.monotonic()
                await subscription.ack_all()
                for partition, moved_to in moving.items():
                    self._event(partition, "moved", asked, moved_to)

    def _event(self, partition: int, kind: Literal["moved", "found"], began: float, offset: int) -> None:
        assert self._cursor is not None
        place = Place(self._topic, partition)
        event = CursorEvent(self._cursor, self.book.node, place, kind, began, time.monotonic(), offset)
        self._ledger.rare.cursors.append(event)

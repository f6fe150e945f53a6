"""Who reads: live and named subscribers, readers that want to see the end, and somebody who moves a cursor about."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from chaos.asking import Refused, request
from chaos.history import CursorEvent, History, Place, Seen, TailRead, named
from holdfast.client import Client, Subscription
from holdfast.client.message import Message
from holdfast.model.errors import HoldfastError
from holdfast.testing import NodeProcess

_PAUSE_S: Final = 0.05
_TAKE_S: Final = 0.5
_REQUEST_S: Final = 8.0


class Reader:
    """A name, the book, and how often something went wrong."""

    def __init__(self, name: str, history: History, dice: random.Random) -> None:
        self.name = name
        self.stopping = False
        self.errors: dict[str, int] = {}
        self._history = history
        self._dice = dice

    async def run(self) -> None:
        raise NotImplementedError

    def _failed(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class Subscriber(Reader):
    """Follows a topic through one node, or through all. With a `cursor` it acknowledges what it got, now and then."""

    def __init__(
        self,
        name: str,
        history: History,
        dice: random.Random,
        connect: Callable[[], Client],
        node: str,
        topic: str,
        cursor: str | None = None,
    ) -> None:
        super().__init__(name, history, dice)
        self._connect = connect
        self._node = node
        self._topic = topic
        self._cursor = cursor
        self._session = 0

    async def run(self) -> None:
        while not self.stopping:
            self._session += 1
            try:
                async with self._connect() as client:
                    began = time.monotonic()
                    subscription = client.subscribe(self._topic, self._cursor, start="earliest")
                    async with subscription:
                        await self._follow(subscription, began)
            except HoldfastError as error:
                self._failed(error.code)
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self, subscription: Subscription, began: float) -> None:
        delivered: dict[int, int] = {}
        takes = 0
        # A session does not last for ever: coming back is what is to be tried.
        while not self.stopping and takes < 2000:
            messages = await subscription.take(500, _TAKE_S)
            takes += 1
            for message in messages:
                if self._cursor is not None and message.partition not in delivered:
                    self._event(message.partition, "found", began, message.offset)
                self._saw(message)
                delivered[message.partition] = message.offset + 1
            if messages and self._cursor is not None and self._dice.random() < 0.2:
                moving = dict(delivered)
                asked = time.monotonic()
                await subscription.ack_all()
                for partition, offset in moving.items():
                    self._event(partition, "moved", asked, offset)

    def _event(self, partition: int, kind: str, began: float, offset: int) -> None:
        assert self._cursor is not None and kind in ("moved", "found")
        event = partial(CursorEvent, self._cursor, self._node, Place(self._topic, partition))
        self._history.cursors.append(
            event(kind="moved" if kind == "moved" else "found", began=began, ended=time.monotonic(), offset=offset)
        )

    def _saw(self, message: Message) -> None:
        self._history.seen.append(
            Seen(
                reader=self.name,
                session=self._session,
                node=self._node,
                place=Place(self._topic, message.partition),
                offset=message.offset,
                value=named(message.value),
                at=time.monotonic(),
                at_ms=time.time_ns() // 1_000_000,
            )
        )


class TailReader(Reader):
    """Reads a partition to its end, through another node each time, as JSON."""

    def __init__(
        self, name: str, history: History, dice: random.Random, nodes: list[NodeProcess], places: list[Place]
    ) -> None:
        super().__init__(name, history, dice)
        self._nodes = nodes
        self._places = places
        self._known = dict.fromkeys(places, 0)

    async def run(self) -> None:
        while not self.stopping:
            node, place = self._dice.choice(self._nodes), self._dice.choice(self._places)
            began = time.monotonic()
            try:
                end = await asyncio.to_thread(self._read, node, place, self._known[place])
            except Refused as error:
                self._failed(error.code)
                await asyncio.sleep(_PAUSE_S)
                continue
            self._known[place] = end
            self._history.tails.append(TailRead(self.name, node.id, place, began, time.monotonic(), end))
            await asyncio.sleep(self._dice.random() * 0.1)

    def _read(self, node: NodeProcess, place: Place, offset: int) -> int:
        """From somewhat before the end that is known, so that there is something to read, until nothing comes."""
        path = f"/v1/topics/{place.topic}/partitions/{place.partition}/messages"
        offset = max(0, offset - self._dice.choice((0, 5)))
        while True:
            answer = request(node.http, "GET", f"{path}?offset={offset}&max=1000", timeout_s=_REQUEST_S).json()
            if not answer["messages"]:
                return int(answer["next_offset"])
            offset = answer["next_offset"]


class CursorMover(Reader):
    """Reads through a cursor on one node and acknowledges on another."""

    def __init__(self, name: str, history: History, dice: random.Random, nodes: list[NodeProcess], topic: str) -> None:
        super().__init__(name, history, dice)
        self._nodes = nodes
        self._topic = topic

    async def run(self) -> None:
        while not self.stopping:
            try:
                await asyncio.to_thread(self._step)
            except Refused as error:
                self._failed(error.code)
                await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(self._dice.random() * 0.1)

    def _step(self) -> None:
        path = f"/v1/topics/{self._topic}/cursors/{self.name}"
        reading, acking = self._dice.choice(self._nodes), self._dice.choice(self._nodes)
        began = time.monotonic()
        answer = request(reading.http, "GET", f"{path}/messages?max=50", timeout_s=_REQUEST_S).json()
        firsts: dict[int, int] = {}
        for message in answer["messages"]:
            firsts.setdefault(message["partition"], message["offset"])
        for partition, offset in firsts.items():
            self._note(reading, partition, "found", began, offset)
        if not answer["ack"]:
            return
        began = time.monotonic()
        request(acking.http, "POST", f"{path}/ack", {"offsets": answer["ack"]}, timeout_s=_REQUEST_S)
        for partition, offset in answer["ack"].items():
            self._note(acking, int(partition), "moved", began, offset)

    def _note(self, node: NodeProcess, partition: int, kind: str, began: float, offset: int) -> None:
        place = Place(self._topic, partition)
        found = CursorEvent(
            self.name, node.id, place, "moved" if kind == "moved" else "found", began, time.monotonic(), offset
        )
        self._history.cursors.append(found)

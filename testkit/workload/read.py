"""Readers: subscribers that follow a topic, readers that want to see the end, and one that moves a cursor about."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from holdfast.client import Client, Subscription
from holdfast.model.errors import HoldfastError
from holdfast.testing import NodeProcess
from testkit.asking import Refused, request
from testkit.history import NOWHERE, CursorEvent, History, Place, TailRead

_PAUSE_S: Final = 0.05
_TAKE_S: Final = 0.5
_TAKE_MAX: Final = 1000
# A session does not last for ever: coming back is what is to be tried.
_TAKES_MAX: Final = 400
_REQUEST_S: Final = 8.0
_LINE_BYTES_MAX: Final = 1 << 20
# A subscriber that has got no more than this begins anew when it comes back, instead of going on where it was.
_AGAIN_MAX: Final = 20_000


class Reader:
    """A name, the history, and how often something went wrong."""

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

    def _cursor_event(
        self, name: str, node: str, place: Place, kind: Literal["moved", "found"], began: float, offset: int
    ) -> None:
        event = CursorEvent(name, node, place, kind, began, time.monotonic(), offset)
        self._history.cursors.append(event)


class Follower(Reader):
    """With a `cursor` it acknowledges what it got, now and then, and comes back now and then, to where that stands.

    Without, it comes back when it has lost its node: to the beginning while that is little, and later to the first
    offset it has not got in some partition.
    """

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
        self.book = history.reader(name, node)
        self._connect = connect
        self._topic = topic
        self._cursor = cursor
        self._session = 0
        self._next: dict[int, int] = {}

    def behind(self, ends: Mapping[int, int]) -> str | None:
        """What it has not got of places that end there; `None` where it has all."""
        for place, end in ends.items():
            where = self._history.places[place]
            if where.topic == self._topic and end > (here := self._next.get(where.partition, 0)):
                return f"{self.book.reader} is at {here} of {end} in {where}"
        return None

    async def run(self) -> None:
        while not self.stopping:
            self._session += 1
            try:
                async with self._connect() as client:
                    began = time.monotonic()
                    async with client.subscribe(self._topic, self._cursor, start=self._start()) as subscription:
                        await self._follow(subscription, began)
            except HoldfastError as error:
                self._failed(error.code)
                await asyncio.sleep(_PAUSE_S)

    def _start(self) -> int | Literal["earliest"]:
        return min(self._next.values()) if len(self.book) > _AGAIN_MAX else "earliest"

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
                place = self._history.place(self._topic, partition)
                self.book.got(self._session, place, offset, self._history.message(message.value), now)
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
        self._cursor_event(self._cursor, self.book.node, Place(self._topic, partition), kind, began, offset)


class TextFollower(Reader):
    """Follows a topic of one partition over the text protocol, through one node, from now on in each session.

    It is not told offsets; the checker finds them by what the nodes serve in the end.
    """

    def __init__(self, name: str, history: History, dice: random.Random, node: NodeProcess, topic: str) -> None:
        super().__init__(name, history, dice)
        self.book = history.reader(name, node.id)
        self._node = node
        self._topic = topic
        self._session = 0

    async def run(self) -> None:
        while not self.stopping:
            self._session += 1
            try:
                await self._follow()
            except (OSError, EOFError, TimeoutError) as error:
                self._failed(type(error).__name__)
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self) -> None:
        host, _, port = self._node.text.rpartition(":")
        async with asyncio.timeout(_REQUEST_S):
            reader, writer = await asyncio.open_connection(host, int(port), limit=_LINE_BYTES_MAX)
        try:
            async with asyncio.timeout(_REQUEST_S):
                await reader.readline()
                writer.write(f"SUBSCRIBE|{self._topic}\n".encode())
                if not (await reader.readline()).startswith(b"SUBACK|"):
                    raise EOFError
            start, place = f"MESSAGE|{self._topic}|".encode(), self._history.place(self._topic, 0)
            while not self.stopping:
                line = b""
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TAKE_S):
                        line = await reader.readline()
                    if not line.endswith(b"\n"):
                        raise EOFError
                if line:
                    # A line that is no message of the topic is one that nobody sent.
                    message = self._history.message(line.removeprefix(start)[:-1])
                    self.book.got(self._session, place, NOWHERE, message, time.monotonic())
        finally:
            writer.transport.abort()


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
            self._cursor_event(self.name, reading.id, Place(self._topic, partition), "found", began, offset)
        if not answer["ack"]:
            return
        began = time.monotonic()
        request(acking.http, "POST", f"{path}/ack", {"offsets": answer["ack"]}, timeout_s=_REQUEST_S)
        for partition, offset in answer["ack"].items():
            self._cursor_event(self.name, acking.id, Place(self._topic, int(partition)), "moved", began, offset)

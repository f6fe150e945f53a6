"""The load of many messages: publishers with and without ids, subscribers on every node, cursors, reads to the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Final

from holdfast.client import Client
from holdfast.testing.node_process import Setting
from testkit.cluster import BreakableCluster
from testkit.history import History, Place
from testkit.workload.publish import IdPublisher, PacedPublisher, TextPublisher, TopicMaker
from testkit.workload.read import CursorMover, Follower, Reader, TailReader, TextFollower

# Topics and how many partitions they have.
TOPICS: Final = {"orders": 1, "events": 3}
# Which share of the rate they take; text publishers are bound to one node and stand still with it.
_WITH_IDS: Final = (("orders", 0.3), ("events", 0.3), ("events", 0.3))
_TEXT: Final = (("orders", 0.05), ("events", 0.05))
_CALL_S: Final = 10.0
# Long enough for a client to give up on a call it has begun.
_STOP_S: Final = 30.0


class Flood:
    """Follows `Workload`."""

    name: ClassVar[str] = "publish and read"
    settings: ClassVar[Mapping[str, Setting]] = {}

    def __init__(self, cluster: BreakableCluster, history: History, seed: str, rate: float) -> None:
        self._cluster = cluster
        self._history = history
        self._seed = seed
        self._rate = rate
        self._publishers: list[PacedPublisher] = []
        self._maker: TopicMaker | None = None
        self._followers: list[Follower] = []
        self._texts: list[TextFollower] = []
        self._others: list[Reader] = []
        self._sending: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self._closing = contextlib.AsyncExitStack()

    def places(self) -> list[Place]:
        return [Place(topic, number) for topic, count in TOPICS.items() for number in range(count)]

    async def start(self) -> None:
        client = await self._client()
        for topic, partitions in TOPICS.items():
            await client.create_topic(topic, partitions=partitions)
        for number, (topic, share) in enumerate(_WITH_IDS):
            name = f"ids{number}"
            args = (self._history.producer(name, topic), self._history, self._dice(name), self._rate * share)
            self._publishers.append(IdPublisher(*args, await self._client()))
        for number, (topic, share) in enumerate(_TEXT):
            name, node = f"text{number}", self._cluster.nodes[number % len(self._cluster.nodes)]
            args = (self._history.producer(name, topic), self._history, self._dice(name), self._rate * share)
            self._publishers.append(TextPublisher(*args, node))
        self._maker = TopicMaker(self._history, self._dice("maker"), client)
        for node in self._cluster.nodes:
            through = partial(self._through, node.id)
            name = f"live-{node.id}"
            self._followers.append(Follower(name, self._history, self._dice(name), through, node.id, "events"))
        named = Follower("named", self._history, self._dice("named"), self._through, "any", "orders", "named")
        self._followers.append(named)
        nodes, history = self._cluster.nodes, self._history
        for node in nodes[:2]:
            name = f"text-{node.id}"
            self._texts.append(TextFollower(name, history, self._dice(name), node, "orders"))
        self._others = [
            TailReader("tails", history, self._dice("tails"), nodes, self.places()),
            CursorMover("mover", history, self._dice("mover"), nodes, "events"),
        ]
        self._sending = [asyncio.create_task(each.run()) for each in self._publishers]
        self._sending.append(asyncio.create_task(self._maker.run()))
        self._reading = [asyncio.create_task(each.run()) for each in self._followers]
        self._reading += [asyncio.create_task(each.run()) for each in (*self._texts, *self._others)]

    def _dice(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def _through(self, node: str | None = None) -> Client:
        return self._cluster.connect(node, timeout_s=_CALL_S)

    async def _client(self) -> Client:
        return await self._closing.enter_async_context(self._through())

    # --- how far it is --------------------------------------------------------------------------------

    def progress(self) -> int:
        return sum(each.book.acknowledged for each in self._publishers if isinstance(each, IdPublisher))

    def begin_waiting(self) -> Callable[[], bool]:
        before = self._counts()
        return lambda: all(count > before.get(name, 0) for name, count in self._counts().items())

    def _counts(self) -> dict[str, int]:
        publishers = {each.book.name: each.book.acknowledged for each in self._publishers}
        books = [each.book for each in self._followers] + [each.book for each in self._texts]
        return publishers | {book.reader: len(book) for book in books}

    def checks(self) -> Mapping[str, Iterator[str]]:
        return {"did not go on": self._ended_by_themselves()}

    def _ended_by_themselves(self) -> Iterator[str]:
        """Publishers and readers that ended by an error of their own: a bug in the client, or in here."""
        for task in (*self._sending, *self._reading):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                yield f"a client ended by itself: {error!r}"

    def totals(self) -> Mapping[str, int]:
        return {
            "messages sent": self._history.sent,
            "messages acknowledged": self._history.acknowledged,
            "messages seen by subscribers": self._history.delivered,
            "reads to the end": len(self._history.tails),
            "cursor events": len(self._history.cursors),
        }

    def errors(self) -> Mapping[str, Mapping[str, int]]:
        found = {each.name: each.errors for each in self._history.producers}
        found |= {each.name: each.errors for each in (*self._followers, *self._texts, *self._others)}
        return {name: errors for name, errors in found.items() if errors}

    # --- the end --------------------------------------------------------------------------------------

    async def stop_sending(self) -> None:
        for publisher in self._publishers:
            publisher.stopping = True
        if self._maker is not None:
            self._maker.stopping = True
        if self._sending:
            await asyncio.wait(self._sending, timeout=_STOP_S)

    async def stop(self) -> None:
        await self.stop_sending()
        for reader in (*self._followers, *self._texts, *self._others):
            reader.stopping = True
        if self._reading:
            await asyncio.wait(self._reading, timeout=_STOP_S)
        tasks = [*self._sending, *self._reading]
        for task in tasks:
            if not task.done():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._closing.aclose()

    async def read_to_the_end(self, ends: Mapping[int, int], timeout_s: float) -> list[str]:
        """Wait until every subscriber has got all there is; who has not, and how far it came."""
        deadline = time.monotonic() + timeout_s
        while behind := [said for each in self._followers if (said := each.behind(ends))]:
            if time.monotonic() > deadline:
                return behind
            await asyncio.sleep(0.1)
        return []

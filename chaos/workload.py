"""The load of one run: publishers, readers and cursor movers on one event loop, and how far they have come."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

from chaos.cluster import ChaosCluster
from chaos.history import History, Place
from chaos.publishers import IdPublisher, Publisher, TextPublisher, TopicMaker
from chaos.readers import CursorMover, Reader, Subscriber, TailReader
from holdfast.client import Client

# Topics and how many partitions they have.
TOPICS: Final = {"orders": 1, "events": 3}
_CALL_S: Final = 10.0
# Long enough for a client to give up on a call it has begun.
_STOP_S: Final = 30.0


class Workload:
    """`run` it in the background; faults look at `acknowledged_by` to see whether things go on."""

    def __init__(self, cluster: ChaosCluster, history: History, seed: str, *, topics_made_max: int = 8) -> None:
        self._cluster = cluster
        self._history = history
        self._seed = seed
        self._topics_made_max = topics_made_max
        self.publishers: list[Publisher] = []
        self.readers: list[Reader] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = contextlib.AsyncExitStack()

    @property
    def places(self) -> list[Place]:
        return [Place(topic, number) for topic, count in TOPICS.items() for number in range(count)]

    async def start(self) -> None:
        """Make the topics and begin."""
        clients = [await self._client() for _ in range(3)]
        for topic, partitions in TOPICS.items():
            await clients[0].create_topic(topic, partitions=partitions)
        nodes = self._cluster.nodes
        history, names = self._history, list(TOPICS)
        for number, client in enumerate(clients[:2]):
            name = f"ids{number}"
            self.publishers.append(IdPublisher(name, history, self._dice(name), client, names[number]))
        for number, node in enumerate(nodes[:2]):
            name = f"text{number}"
            self.publishers.append(TextPublisher(name, history, self._dice(name), node, names[number]))
        maker = TopicMaker("maker", history, self._dice("maker"), clients[2], self._topics_made_max)
        for node in nodes:
            name = f"live-{node.id}"
            through = partial(self._through, node.id)
            self.readers.append(Subscriber(name, history, self._dice(name), through, node.id, "events"))
        everyone = Subscriber("named", history, self._dice("named"), self._through, "any", "orders", "named")
        self.readers += [
            everyone,
            TailReader("tails", history, self._dice("tails"), nodes, self.places),
            CursorMover("mover", history, self._dice("mover"), nodes, "events"),
        ]
        self.publishers.append(maker)
        self._begin([each.run() for each in self.publishers] + [each.run() for each in self.readers])

    def _dice(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def _begin(self, jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
        self._tasks = [asyncio.create_task(job) for job in jobs]

    def _through(self, node: str | None = None) -> Client:
        return self._cluster.connect(node, timeout_s=_CALL_S)

    async def _client(self) -> Client:
        return await self._closing.enter_async_context(self._through())

    # --- how far it is --------------------------------------------------------------------------------

    @property
    def acknowledged_anywhere(self) -> int:
        """By publishers that are not bound to one node: it grows as long as a majority is well."""
        return sum(each.acknowledged for each in self.publishers if isinstance(each, IdPublisher))

    def acknowledged_by(self) -> dict[str, int]:
        return {each.name: each.acknowledged for each in self.publishers if not isinstance(each, TopicMaker)}

    def wait_for_acknowledgements(self, messages: int, timeout_s: float) -> bool:
        """For other threads: whether so many more were acknowledged to publishers that may use any node."""
        target = self.acknowledged_anywhere + messages
        deadline = time.monotonic() + timeout_s
        while self.acknowledged_anywhere < target:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def wait_for_everybody(self, timeout_s: float) -> list[str]:
        """For other threads: wait until every publisher gets something through; who did not."""
        before = self.acknowledged_by()
        deadline = time.monotonic() + timeout_s
        while stuck := [name for name, count in self.acknowledged_by().items() if count <= before[name]]:
            if time.monotonic() > deadline:
                return stuck
            time.sleep(0.01)
        return []

    def failures(self) -> list[str]:
        """Publishers and readers that ended by an error of their own: a bug in the client, or in here."""
        found = []
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                found.append(repr(error))
        return found

    def errors(self) -> dict[str, dict[str, int]]:
        """What everybody was refused with, and how often."""
        of_publishers = {each.name: each.errors for each in self.publishers if each.errors}
        return of_publishers | {each.name: each.errors for each in self.readers if each.errors}

    # --- the end --------------------------------------------------------------------------------------

    async def stop_publishing(self) -> None:
        """Everybody finishes what they have begun, or gives up on it."""
        for publisher in self.publishers:
            publisher.stopping = True
        await asyncio.wait(self._tasks[: len(self.publishers)], timeout=_STOP_S)

    async def stop(self) -> None:
        for publisher in self.publishers:
            publisher.stopping = True
        for reader in self.readers:
            reader.stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._closing.aclose()

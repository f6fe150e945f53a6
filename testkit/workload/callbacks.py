"""The load of callbacks: the cluster connects to receivers that come and go, and delivers the flood's topics to them.

A receiver gets every message of a partition in order; some come again after a failover, or after it was away, and none
is passed over. It acknowledges what it has got, several at a time. What it got is in the history, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Final

from holdfast.testing.node_process import Setting
from testkit.asking import Refused, request
from testkit.cluster import BreakableCluster
from testkit.history import History, Place
from testkit.workload.flood import TOPICS

_RECEIVERS_OF_EACH: Final = 2
_PORTS: Final = range(21_500, 21_600)
_HERE_S: Final = (5.0, 25.0)
_AWAY_S: Final = (0.5, 4.0)
_AGAIN_S: Final = 0.1
_CALL_S: Final = 8.0
_LINE_BYTES_MAX: Final = 1 << 20


class Receiver:
    """One subscription's other end, on an address that stays the same."""

    def __init__(self, name: str, topic: str, history: History, dice: random.Random, host: str) -> None:
        self.name = name
        self.topic = topic
        self.host = host
        self.port = 0
        self.stopping = False
        self.skipped: list[str] = []
        # By partition: what came again on one connection.
        self.repeated: dict[int, list[str]] = {}
        self.strange: list[str] = []
        self.book = history.reader(name, "any")
        # By partition: behind everything that came so far without a gap.
        self.next: dict[int, int] = {}
        self._history = history
        self._dice = dice
        self._sessions = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> asyncio.Server:
        for port in (self.port,) if self.port else _PORTS:
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(self._serve, self.host, port, limit=_LINE_BYTES_MAX)
                self.port = port
                return server
        raise OSError(f"no port is free for {self.name}")

    async def run(self, server: asyncio.Server) -> None:
        """Be there for a while, be away for a while."""
        while True:
            until = time.monotonic() + self._dice.uniform(*_HERE_S)
            while time.monotonic() < until and not self.stopping:
                await asyncio.sleep(0.05)
            if self.stopping:
                break
            self._hang_up(server)
            await asyncio.sleep(self._dice.uniform(*_AWAY_S))
            server = await self.listen()
        self._hang_up(server)

    def _hang_up(self, server: asyncio.Server) -> None:
        server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        last: dict[int, tuple[int, int]] = {}
        try:
            with contextlib.suppress(ConnectionError):
                waiting = 0
                while line := await reader.readline():
                    if not line.endswith(b"\n"):
                        break
                    self.got(line[:-1], last)
                    waiting += 1
                    # What came before the connection was lost is still read; nobody is left to hear of it.
                    if waiting >= self._dice.choice((1, 1, 10, 100)) and not writer.transport.is_closing():
                        writer.write(b"ACK|%d\n" % waiting)
                        waiting = 0
        finally:
            self._open.discard(writer)
            writer.close()

    def got(self, line: bytes, last: dict[int, tuple[int, int]]) -> None:
        fields = line.split(b"|", 6)
        if len(fields) < 7 or fields[0] != b"MESSAGE_AT" or fields[5].decode("utf-8", "replace") != self.topic:
            self.strange.append(f"{self.name}, which receives {self.topic}, got {line[:80]!r}")
            return
        partition, offset, value = int(fields[2]), int(fields[3]), fields[6]
        expected = self.next.get(partition, 0)
        if offset > expected:
            self.skipped.append(f"{self.topic}/{partition}: {self.name} got offset {offset} where {expected} is due")
        self.next[partition] = max(expected, offset + 1)
        # Another node may have delivered in between: what follows is another session of this connection.
        session, before = last.get(partition, (0, -1))
        if offset <= before:
            said = f"{self.topic}/{partition}: {self.name} got {offset} behind {before} on one connection"
            self.repeated.setdefault(partition, []).append(said)
        if offset != before + 1 or not session:
            self._sessions += 1
            session = self._sessions
        last[partition] = (session, offset)
        place = self._history.place(self.topic, partition)
        self.book.got(session, place, offset, self._history.message(value), time.monotonic())


class Callbacks:
    """Follows `Workload`. What is delivered is what the flood publishes, so it needs that one beside it."""

    name: ClassVar[str] = "callbacks"
    settings: ClassVar[Mapping[str, Setting]] = {"callback_networks": ["10.213.0.0/16"]}

    def __init__(self, cluster: BreakableCluster, history: History, seed: str, rate: float) -> None:
        self._cluster = cluster
        self._history = history
        self._dice = random.Random(f"{seed}/callbacks")
        host = cluster.links.outside
        self.receivers = [
            Receiver(f"callback-{topic}-{number}", topic, history, random.Random(f"{seed}/{topic}/{number}"), host)
            for topic in TOPICS
            for number in range(_RECEIVERS_OF_EACH)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._errors: dict[str, int] = {}

    async def start(self) -> None:
        for receiver in self.receivers:
            server = await receiver.listen()
            self._tasks.append(asyncio.create_task(receiver.run(server)))
            await self._subscribe(receiver)

    async def _subscribe(self, receiver: Receiver) -> None:
        address = f"{receiver.host}:{receiver.port}"
        wanted = {"topic": receiver.topic, "callback": address, "name": receiver.name, "from": "earliest"}
        while True:
            node = self._dice.choice(self._cluster.nodes)
            try:
                content = {**wanted, "format": "numbered"}
                await asyncio.to_thread(request, node.http, "POST", "/v1/subscriptions", content, timeout_s=_CALL_S)
                return
            except Refused as error:
                self._errors[error.code] = self._errors.get(error.code, 0) + 1
                await asyncio.sleep(_AGAIN_S)

    def places(self) -> list[Place]:
        return []

    def progress(self) -> int:
        return 0  # receivers are away now and then

    def begin_waiting(self) -> Callable[[], bool]:
        before = [sum(receiver.next.values()) for receiver in self.receivers]
        return lambda: all(
            sum(receiver.next.values()) > count for receiver, count in zip(self.receivers, before, strict=True)
        )

    def checks(self) -> Mapping[str, Iterator[str]]:
        return {
            "callback: passed over": (each for receiver in self.receivers for each in receiver.skipped),
            "callback: back on one connection": self._back(),
            "callback: no message of its topic": (each for receiver in self.receivers for each in receiver.strange),
            "did not go on": self._ended_by_themselves(),
        }

    def _back(self) -> Iterator[str]:
        """A node that leads a partition again goes on at the noted place, maybe on the connection it still has.

        So messages may come again on one connection once for each change of leaders, as terms count these.
        """
        for receiver in self.receivers:
            for partition, said in receiver.repeated.items():
                group = f"{receiver.topic}/{partition}"
                terms = [term for name, term in self._history.leaders if name == group]
                yield from said[max(terms, default=1) - 1 :]

    def _ended_by_themselves(self) -> Iterator[str]:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                yield f"a receiver ended by itself: {error!r}"

    def totals(self) -> Mapping[str, int]:
        again = sum(len(receiver.book) - sum(receiver.next.values()) for receiver in self.receivers)
        got = sum(len(receiver.book) for receiver in self.receivers)
        return {"delivered to callbacks": got, "of these again": again}

    def errors(self) -> Mapping[str, Mapping[str, int]]:
        return {"callbacks": self._errors} if self._errors else {}

    async def stop_sending(self) -> None:
        """It sends nothing."""

    async def read_to_the_end(self, ends: Mapping[int, int], timeout_s: float) -> list[str]:
        deadline = time.monotonic() + timeout_s
        while behind := [said for receiver in self.receivers if (said := self._behind(receiver, ends))]:
            if time.monotonic() > deadline:
                return behind
            await asyncio.sleep(0.1)
        return []

    def _behind(self, receiver: Receiver, ends: Mapping[int, int]) -> str | None:
        for place, end in ends.items():
            where = self._history.places[place]
            if where.topic == receiver.topic and end > (here := receiver.next.get(where.partition, 0)):
                return f"{receiver.name} is at {here} of {end} in {where}"
        return None

    async def stop(self) -> None:
        for receiver in self.receivers:
            receiver.stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

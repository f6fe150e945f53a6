"""Who publishes: with ids through any node, without ids through one, and to topics that are made on the way.

Each of them writes down a message before it is sent, and what it was told when it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Final

from chaos.history import History, Place, Sent
from holdfast.client import Client
from holdfast.model.errors import HoldfastError
from holdfast.model.messages import NewMessage
from holdfast.testing import NodeProcess

# Refusals that promise that nothing was stored.
_NOTHING_STORED: Final = frozenset({"no_quorum", "disk_full", "not_leader", "unavailable"})
_PAUSE_S: Final = 0.05
_ANSWER_S: Final = 15.0
_PUBACK: Final = b"PUBACK|"


class Publisher:
    """What all of them share: a name, a count, and the book they keep."""

    def __init__(self, name: str, history: History, dice: random.Random) -> None:
        self.name = name
        self.acknowledged = 0
        self.stopping = False
        self.errors: dict[str, int] = {}
        self._history = history
        self._dice = dice
        self._sequence = 0

    async def run(self) -> None:
        raise NotImplementedError

    def _next(self, topic: str, *, has_id: bool) -> Sent:
        value = f"{self.name}/{self._sequence}"
        sent = Sent(
            producer=self.name,
            sequence=self._sequence,
            topic=topic,
            value=value,
            id=value if has_id else None,
            sent_at=time.monotonic(),
            sent_ms=time.time_ns() // 1_000_000,
        )
        self._sequence += 1
        self._history.sent.append(sent)
        return sent

    def _content(self, sent: Sent) -> bytes:
        """The value with something behind it, so that logs fill and segments are sealed."""
        return f"{sent.value} {'x' * self._dice.choice((0, 10, 100, 400))}".encode()

    def _acknowledge(self, sent: Sent, place: Place | None = None, offset: int | None = None) -> None:
        sent.fate, sent.answered_at, sent.place, sent.offset = "acknowledged", time.monotonic(), place, offset
        self.acknowledged += 1

    def _failed(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class IdPublisher(Publisher):
    """Publishes through whichever node answers, and again with the same ids until it is told where they stand."""

    def __init__(self, name: str, history: History, dice: random.Random, client: Client, topic: str) -> None:
        super().__init__(name, history, dice)
        self._client = client
        self._topic = topic

    async def run(self) -> None:
        while not self.stopping:
            batch = [self._next(self._topic, has_id=True) for _ in range(self._dice.choice((1, 1, 5, 30)))]
            messages = [self._message(sent) for sent in batch]
            while True:
                try:
                    if len(messages) == 1:
                        one = messages[0]
                        results = [await self._client.publish(self._topic, one.value, key=one.key, id=one.id)]
                    else:
                        results = list(await self._client.publish_many(self._topic, messages))
                except HoldfastError as error:
                    self._failed(error.code)
                    if self.stopping:
                        return
                    await asyncio.sleep(_PAUSE_S)
                    continue
                break
            for sent, result in zip(batch, results, strict=True):
                self._acknowledge(sent, Place(self._topic, result.partition), result.offset)
            await asyncio.sleep(self._dice.random() * 0.03)

    def _message(self, sent: Sent) -> NewMessage:
        key = self._dice.choice((None, b"k1", b"k2", b"k3"))
        return NewMessage(value=self._content(sent), id=sent.id, key=key)


class TextPublisher(Publisher):
    """Publishes lines without ids through one node; what it is not told stays unknown, and is never sent again."""

    def __init__(self, name: str, history: History, dice: random.Random, node: NodeProcess, topic: str) -> None:
        super().__init__(name, history, dice)
        self._node = node
        self._topic = topic

    async def run(self) -> None:
        while not self.stopping:
            try:
                await self._session()
            except (OSError, EOFError, TimeoutError) as error:
                self._failed(type(error).__name__)
                await asyncio.sleep(_PAUSE_S)

    async def _session(self) -> None:
        host, _, port = self._node.text.rpartition(":")
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(_ANSWER_S):
                await reader.readline()
            while not self.stopping:
                batch = [self._next(self._topic, has_id=False) for _ in range(self._dice.choice((1, 3, 20)))]
                lines = [b"PUBLISH|%b|%b\n" % (self._topic.encode(), self._content(sent)) for sent in batch]
                writer.write(b"".join(lines))
                for sent in batch:
                    async with asyncio.timeout(_ANSWER_S):
                        line = await reader.readline()
                    self._answered(sent, line)
                await asyncio.sleep(self._dice.random() * 0.03)
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    def _answered(self, sent: Sent, line: bytes) -> None:
        if line.startswith(_PUBACK):
            self._acknowledge(sent)
            return
        if not line.endswith(b"\n"):
            raise EOFError
        code = line.split(b"|")[1].decode()
        self._failed(code)
        sent.why = code
        if code in _NOTHING_STORED:
            sent.fate = "refused"


class TopicMaker(Publisher):
    """Creates a topic now and then and publishes the first message to it."""

    def __init__(self, name: str, history: History, dice: random.Random, client: Client, topics_max: int) -> None:
        super().__init__(name, history, dice)
        self._client = client
        self._topics_max = topics_max

    async def run(self) -> None:
        for number in range(self._topics_max):
            topic = f"made-{number}"
            while not self.stopping:
                try:
                    await self._client.create_topic(topic, partitions=self._dice.choice((1, 2)), exist_ok=True)
                    break
                except HoldfastError as error:
                    self._failed(error.code)
                    await asyncio.sleep(_PAUSE_S)
            if self.stopping:
                return
            sent = self._next(topic, has_id=True)
            while not self.stopping:
                try:
                    result = await self._client.publish(topic, self._content(sent), id=sent.id)
                except HoldfastError as error:
                    self._failed(error.code)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self._acknowledge(sent, Place(topic, result.partition), result.offset)
                break
            await asyncio.sleep(self._dice.uniform(0.3, 1.5))

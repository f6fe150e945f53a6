"""Publishers: in batches, at a pace of their own, with a note of each message before it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Final

from holdfast.client import Client
from holdfast.model.errors import HoldfastError
from holdfast.model.messages import NewMessage, Published
from holdfast.testing import NodeProcess
from testkit.history import History, Producer

# Refusals that promise that nothing was stored.
_NOTHING_STORED: Final = frozenset({"no_quorum", "disk_full", "not_leader", "unavailable"})
_PAUSE_S: Final = 0.05
_ANSWER_S: Final = 15.0
_PUBACK: Final = b"PUBACK|"
_SIZES: Final = (1, 5, 30, 100, 200)
_TEXT_SIZES: Final = (1, 3, 20)
# A batch is of no more messages than are due in this time, so that slow publishers send often.
_BATCH_S: Final = 0.3
# Something behind each value, so that logs fill and segments are sealed.
_PADDINGS: Final = (0, 10, 100, 400)
# Of many kinds, so that partitions grow alike.
_KEYS: Final = (None, *(f"k{number}".encode() for number in range(12)))
# After a time without acknowledgements a publisher is faster than its pace for so long, and not longer.
_BEHIND_S_MAX: Final = 5.0
_TOPICS_MADE_MAX: Final = 8
_TOPIC_PAUSE_S: Final = (0.3, 5.0)


class PacedPublisher:
    """A producer's book, and a pace in messages a second."""

    def __init__(self, book: Producer, history: History, dice: random.Random, rate: float) -> None:
        self.book = book
        self.stopping = False
        self._history = history
        self._dice = dice
        self._rate = rate
        self._due = 0.0

    async def run(self) -> None:
        raise NotImplementedError

    def _next(self, sizes: tuple[int, ...]) -> tuple[range, list[bytes]]:
        fitting = [size for size in sizes if size <= self._rate * _BATCH_S] or sizes[:1]
        sequences = self.book.send(self._dice.choice(fitting), time.monotonic())
        return sequences, [self._content(sequence) for sequence in sequences]

    def _content(self, sequence: int) -> bytes:
        padding = "x" * self._dice.choice(_PADDINGS)
        return f"{self.book.name}/{sequence} {padding}".encode()

    async def _pace(self, messages: int) -> None:
        now = time.monotonic()
        self._due = max(self._due, now - _BEHIND_S_MAX) + messages / self._rate
        await asyncio.sleep(max(0.0, self._due - now))


class IdPublisher(PacedPublisher):
    """Publishes through whichever node answers, and again with the same ids until it is told where they stand."""

    def __init__(self, book: Producer, history: History, dice: random.Random, rate: float, client: Client) -> None:
        super().__init__(book, history, dice, rate)
        self._client = client

    async def run(self) -> None:
        while not self.stopping:
            sequences, values = self._next(_SIZES)
            messages = [
                NewMessage(value=value, id=f"{self.book.name}/{sequence}", key=self._dice.choice(_KEYS))
                for sequence, value in zip(sequences, values, strict=True)
            ]
            while True:
                try:
                    results = await self._publish(messages)
                except HoldfastError as error:
                    self.book.failed(error.code)
                    if self.stopping:
                        return
                    await asyncio.sleep(_PAUSE_S)
                    continue
                break
            now = time.monotonic()
            for sequence, result in zip(sequences, results, strict=True):
                place = self._history.place(self.book.topic, result.partition)
                self.book.acknowledge(sequence, now, place, result.offset)
            await self._pace(len(sequences))

    async def _publish(self, messages: list[NewMessage]) -> list[Published]:
        if len(messages) > 1:
            return list(await self._client.publish_many(self.book.topic, messages))
        one = messages[0]
        return [await self._client.publish(self.book.topic, one.value, key=one.key, id=one.id)]


class TextPublisher(PacedPublisher):
    """Publishes lines without ids through one node; what it is not told stays unknown, and is never sent again."""

    def __init__(self, book: Producer, history: History, dice: random.Random, rate: float, node: NodeProcess) -> None:
        super().__init__(book, history, dice, rate)
        self._node = node

    async def run(self) -> None:
        while not self.stopping:
            try:
                await self._session()
            except (OSError, EOFError, TimeoutError) as error:
                self.book.failed(type(error).__name__)
                await asyncio.sleep(_PAUSE_S)

    async def _session(self) -> None:
        host, _, port = self._node.text.rpartition(":")
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(_ANSWER_S):
                await reader.readline()
            topic = self.book.topic.encode()
            while not self.stopping:
                sequences, values = self._next(_TEXT_SIZES)
                writer.write(b"".join(b"PUBLISH|%b|%b\n" % (topic, value) for value in values))
                for sequence in sequences:
                    async with asyncio.timeout(_ANSWER_S):
                        line = await reader.readline()
                    self._answered(sequence, line)
                await self._pace(len(sequences))
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    def _answered(self, sequence: int, line: bytes) -> None:
        if line.startswith(_PUBACK):
            self.book.acknowledge(sequence, time.monotonic())
            return
        if not line.endswith(b"\n"):
            raise EOFError
        code = line.split(b"|")[1].decode()
        self.book.failed(code)
        if code in _NOTHING_STORED:
            self.book.refuse(sequence)


class TopicMaker:
    """Creates a topic now and then and publishes the first message to it."""

    def __init__(self, history: History, dice: random.Random, client: Client) -> None:
        self.stopping = False
        self._history = history
        self._dice = dice
        self._client = client

    async def run(self) -> None:
        for number in range(_TOPICS_MADE_MAX):
            topic = f"made-{number}"
            book = self._history.producer(f"maker{number}", topic)
            partitions = self._dice.choice((1, 2))
            sequence = None
            while not self.stopping and not book.acknowledged:
                try:
                    await self._client.create_topic(topic, partitions=partitions, exist_ok=True)
                    if sequence is None:
                        sequence = book.send(1, time.monotonic())[0]
                    name = f"{book.name}/{sequence}"
                    result = await self._client.publish(topic, name.encode(), id=name)
                except HoldfastError as error:
                    book.failed(error.code)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                place = self._history.place(topic, result.partition)
                book.acknowledge(sequence, time.monotonic(), place, result.offset)
            if self.stopping:
                return
            await asyncio.sleep(self._dice.uniform(*_TOPIC_PAUSE_S))

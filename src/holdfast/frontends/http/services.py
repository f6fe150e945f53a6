"""What every handler works with: the broker, the counters, and a way to wait that ends in time.

Waiting is where a front end can hang: a long poll or a stream sits until something is committed. All
waits go through `Services.wait`, which also returns when the reader has left or the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from enum import Enum, auto
from typing import Any, Final, Protocol, TypeVar

from holdfast.broker.broker import Broker
from holdfast.broker.outgoing import Outgoing
from holdfast.broker.queues import Queues
from holdfast.frontends.http.event_cache import EventCache
from holdfast.frontends.http.exchange import BodyBudget, Request
from holdfast.frontends.http.pushing import Pushes
from holdfast.frontends.http.schema import Info
from holdfast.model.errors import Overloaded, Unavailable
from holdfast.model.ids import Offset, TopicName
from holdfast.model.limits import KIB
from holdfast.model.metrics import MetricsSource
from holdfast.model.spill import FileBuffer
from holdfast.transactions.service import Transactions

T = TypeVar("T")

# A body that takes longer than a millisecond to work on.
_LARGE_BYTES: Final = 128 * KIB
# Readers that take nothing are cut off sooner.
ROOM_PATIENCE_S: Final = 15.0
# The most that is read for an answer where room is short, unless its first message is larger.
_SHORT_BYTES: Final = 256 * KIB


class Log(Protocol):
    """Where this front end says what went wrong inside: an event and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None: ...


class Woken(Enum):
    """Why a wait ended."""

    DATA = auto()
    TIMEOUT = auto()
    READER_GONE = auto()
    STOPPING = auto()


class Room:
    """What one answer may hold. While half of all room is free, that is what was asked for; then it is short."""

    def __init__(self, outgoing: Outgoing, bytes_max: int) -> None:
        self._outgoing = outgoing
        self._held = bytes_max if outgoing.has_ample_room(bytes_max) else 0
        # How many bytes to read.
        self.bytes_max = bytes_max if self._held else min(bytes_max, _SHORT_BYTES)
        outgoing.hold(self._held)

    def is_enough(self, size: int) -> bool:
        """Whether an answer of that size need not wait."""
        return size <= max(self._held, _SHORT_BYTES) or self._outgoing.has_room(size)

    async def wait_for(self, size: int) -> None:
        """Hold so many bytes more, unless there is enough. Raises `Overloaded`."""
        if self.is_enough(size):
            return
        try:
            async with asyncio.timeout(ROOM_PATIENCE_S):
                await self._outgoing.room(size)
        except TimeoutError:
            raise Overloaded(
                f"answers and messages that readers have not taken hold {self._outgoing.bytes_held} bytes, "
                f"{self._outgoing.bytes_max} is the most: try again in a moment"
            ) from None
        self._held += size

    def give_back(self) -> None:
        self._outgoing.hold(-self._held)


class Services:
    """One front end's shared state. Lives on one event loop."""

    def __init__(
        self,
        broker: Broker,
        *,
        info: Callable[[], Info],
        metrics_source: MetricsSource,
        log: Log,
        budget: BodyBudget,
        transactions: Transactions | None = None,
    ) -> None:
        self.broker = broker
        self.transactions = transactions
        self.info = info
        self.log = log
        self.budget = budget
        # The OpenAPI document; the server writes it from the table of routes.
        self.description = b"{}"
        self.stopping = False
        self.answers: Counter[tuple[str, int]] = Counter()
        self.connections: Callable[[], int] = lambda: 0
        self.refused_connections: Callable[[], int] = lambda: 0
        self.tails = 0
        self.metrics_source = metrics_source
        self.events = EventCache()
        self.pushes = Pushes(broker, log)
        self.queues = Queues(broker, session=uuid.uuid4().hex)
        # Told of each publish that comes, where somebody wants to know.
        self.on_publish: Callable[[str, int], None] | None = None
        # What the broker keeps while its store is away; none where it keeps nothing.
        self.file_buffer: Callable[[], FileBuffer] | None = None
        self._waits: set[asyncio.Task[bool]] = set()

    @property
    def waits(self) -> int:
        """Requests that wait for a message."""
        return len(self._waits)

    @property
    def errors(self) -> Counter[str]:
        """How often each code was answered with."""
        return self.broker.stats.errors

    def delivers_from(self, topic: str) -> TopicName:
        """The topic that readers of `topic` get.

        Where a processor makes it, it comes a moment after the topic itself; a reader that is faster
        should come again, and not believe that there is nothing.
        """
        source = self.broker.delivers_from(topic)
        known = self.broker.backend.topic
        if source != topic and known(source) is None and known(TopicName(topic)) is not None:
            raise Unavailable(f"{source}, which readers of {topic} get, is being made; try again in a moment")
        return source

    async def turn(self, size: int) -> None:
        """Before work on a request of `size` bytes that keeps the event loop busy: others go on in between."""
        if size > _LARGE_BYTES:
            await self.broker.turns.take_for_request()

    async def body_of(self, request: Request) -> bytes:
        """The whole body, once there is time to work on one of its size."""
        body = await request.body()
        await self.turn(len(body))
        return body

    @contextlib.asynccontextmanager
    async def room(self, bytes_max: int) -> AsyncIterator[Room]:
        """Room to read an answer of up to `bytes_max`, for as long as it is read."""
        await self.broker.turns.take()
        room = Room(self.broker.outgoing, bytes_max)
        try:
            yield room
        finally:
            room.give_back()

    async def read_in_room(self, read: Callable[[int], Awaitable[T]], size_of: Callable[[T], int], bytes_max: int) -> T:
        """What `read` gives of at most so many bytes. It may be called twice. Raises `Overloaded`.

        A read gives one message at least. If that is large, and there is no room, it is read again when there is.
        """
        async with self.room(bytes_max) as room:
            found = await read(room.bytes_max)
            size = size_of(found)
            if room.is_enough(size):
                return found
            del found
            await room.wait_for(size)
            return await read(room.bytes_max)

    async def wait(self, request: Request, topic: str, positions: Mapping[int, Offset], timeout_s: float) -> Woken:
        """Sleep until a partition has something at its position, the time is up, or nobody cares any more."""
        return await self._wait(request, self.broker.wait_for(topic, positions, timeout_s))

    async def wait_for_topic(self, request: Request, topic: TopicName, timeout_s: float) -> Woken:
        """The same, until there is such a topic."""
        return await self._wait(request, self.broker.pops.wait_for_topic(topic, timeout_s))

    async def _wait(self, request: Request, until: Coroutine[Any, Any, bool]) -> Woken:
        if self.stopping:
            until.close()
            return Woken.STOPPING
        wait = asyncio.ensure_future(until)
        self._waits.add(wait)
        try:
            await asyncio.wait((wait, request.gone), return_when=asyncio.FIRST_COMPLETED)
            if request.gone.done():
                return Woken.READER_GONE
            if wait.cancelled():
                return Woken.STOPPING
            return Woken.DATA if wait.result() else Woken.TIMEOUT
        finally:
            self._waits.discard(wait)
            if not wait.cancel() and not wait.cancelled():
                wait.exception()  # looked at, also where the reader left first and nobody asks for it

    def stop_waits(self) -> None:
        """End every wait now; those that come later end at once."""
        self.stopping = True
        for wait in self._waits:
            wait.cancel()

"""Hearing what other brokers stored: one connection that listens, and what each notice means.

PostgreSQL delivers notices in the order of the commits, to everybody who listens, this broker included. So a broker
that hears a notice of its own has heard everything that was committed before it: that is how it knows that it is
current (`caught_up`), and, as every beat is one, that the connection still carries anything at all. When a connection
is new, everything is read once, so nothing that was said meanwhile is missed.

Notices, all numbers in decimal::

    end TOPIC PARTITION OFFSET ...   the ends of partitions after a transaction; several, where one would be too long
    look                             read them all: what brokers of before say of many partitions
    start TOPIC PARTITION OFFSET     retention deleted what is before
    topic TOPIC · gone TOPIC         a topic was created · deleted
    cursor TOPIC NAME PARTITION POSITION MOVE · nocursor TOPIC NAME MOVE
    heard BROKER NUMBER              a beat, or somebody who wants to be current
    left BROKER                      a broker is gone: what it processed is free
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

import structlog
from asyncpg import Connection

from holdfast.backends.postgres.cursors import Cursors
from holdfast.backends.postgres.database import TROUBLE, Database, is_away
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.state import KnownTopics
from holdfast.backends.postgres.topics import Topics
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.ids import CursorName, Offset

log = structlog.get_logger("holdfast.postgres")

CHANNEL: Final = "holdfast"
# A connection on which the broker does not hear its own beats for so long is replaced.
_SILENCE_S: Final = 3.0
_PAUSE_S: Final = 0.1


class Notices:
    """Keeps what is known of topics, partitions and cursors up to date."""

    def __init__(
        self, database: Database, known: KnownTopics, topics: Topics, cursors: Cursors, broker_id: UUID
    ) -> None:
        # Somebody left or came: what is free may be taken.
        self.on_brokers: Callable[[], None] = lambda: None
        # The connection is new: behind it may be another server than before.
        self.on_listening: Callable[[], None] = lambda: None
        self.received = 0
        self._database = database
        self._known = known
        self._topics = topics
        self._cursors = cursors
        self._me = str(broker_id)
        self._numbers = itertools.count(1)
        # When each notice of this broker's own that has not come back was sent.
        self._sent_s: dict[int, float] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._barrier: asyncio.Task[None] | None = None
        self._current_s = float("-inf")
        self._is_listening = False
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()

    async def start(self) -> None:
        """Begin to listen; where the database is there, everything is known on return."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self._database.is_up:
            try:
                async with asyncio.timeout(self._database.timeout_s):
                    await self._first.wait()
            except TimeoutError as error:
                self._database.lost(error)

    async def stop(self) -> None:
        for task in (self._task, self._barrier):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def staleness_ms(self) -> int:
        """How long ago this broker last knew that it had heard everything."""
        return int(min(time.monotonic() - self._current_s, 1e9) * 1000)

    # --- listening --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            connection: Connection | None = None
            try:
                if self._database.is_up:
                    connection = await self._database.connect()
                    await self._listen(connection)
            except (*TROUBLE, HoldfastError) as error:
                if connection is None and is_away(error):
                    self._database.lost(error)
                log.info("listening_again", problem=str(error) or type(error).__name__)
            except Exception:
                # A bug of ours: whoever hears nothing any more would not know of anything new.
                log.exception("listener_failed")
            finally:
                self._is_listening = False
                if connection is not None:
                    connection.terminate()
                self._fail_waiting()
            await asyncio.sleep(_PAUSE_S)

    async def _listen(self, connection: Connection) -> None:
        """Until the connection breaks or falls silent."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        connection.add_termination_listener(lambda _: queue.put_nowait(None))
        async with asyncio.timeout(self._database.timeout_s):
            await connection.add_listener(CHANNEL, lambda _, __, ___, text: queue.put_nowait(text))
            asked_s = time.monotonic()
            await self.read_all(connection)
        self.on_listening()
        self._current_s = heard_s = asked_s
        self._is_listening = True
        self._first.set()
        while True:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    notice = await queue.get()
            except TimeoutError:
                raise Unavailable(f"no notice came for {_SILENCE_S:g} s") from None
            if notice is None:
                raise Unavailable("the connection that listens was closed")
            self.received += 1
            try:
                await self._understand(notice, connection)
            except (ValueError, IndexError):
                # Anybody who may connect may say anything here, and a newer broker something else.
                log.warning("notice_not_understood", notice=notice[:100])
            if self._current_s > heard_s:
                heard_s = self._current_s
            elif time.monotonic() - heard_s > _SILENCE_S:
                raise Unavailable(f"no notice of this broker's own came for {_SILENCE_S:g} s")

    async def read_all(self, connection: Connection) -> None:
        """Everything there is, as of one moment."""
        before = self._known.as_it_is()
        moves = self._cursors.moves()
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await self._topics.load_all(connection, before)
            self._cursors.replace(await connection.fetch(sql("all_cursors")), moves)

    async def _understand(self, notice: str, connection: Connection) -> None:
        kind, *words = notice.split(" ")
        if kind == "end":
            numbers = list(map(int, words))
            for topic_id, number, end in zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True):
                state = self._known.state(topic_id, number)
                if state is not None:
                    state.reached(Offset(end))
        elif kind == "heard":
            if words[0] == self._me:
                self._heard(int(words[1]))
        elif kind == "cursor":
            # The place of a callback names a topic, which may have blanks.
            topic, *name = words[:-3]
            number, position, move = map(int, words[-3:])
            self._cursors.moved(int(topic), CursorName(" ".join(name)), number, Offset(position), move)
        elif kind == "nocursor":
            topic, *name = words[:-1]
            self._cursors.dropped(int(topic), CursorName(" ".join(name)), int(words[-1]))
        elif kind == "start":
            state = self._known.state(int(words[0]), int(words[1]))
            if state is not None:
                state.start = max(state.start, Offset(int(words[2])))
        elif kind == "topic":
            if int(words[0]) not in self._known.by_id:
                await self._topics.load(int(words[0]))
        elif kind == "gone":
            self._known.deleted(int(words[0]))
        elif kind == "look":
            async with asyncio.timeout(self._database.timeout_s):
                await self.read_all(connection)
        elif kind == "left":
            self.on_brokers()

    # --- being current ----------------------------------------------------------------------------------

    def next_notice(self) -> str:
        """One that only this broker waits for; to be sent within a transaction."""
        number = next(self._numbers)
        self._sent_s[number] = time.monotonic()
        return f"heard {self._me} {number}"

    def _heard(self, number: int) -> None:
        for each in [each for each in self._sent_s if each <= number]:
            self._current_s = max(self._current_s, self._sent_s.pop(each))
        for each in [each for each in self._waiting if each <= number]:
            waiting = self._waiting.pop(each)
            if not waiting.done():
                waiting.set_result(None)

    def _fail_waiting(self) -> None:
        self._sent_s.clear()
        while self._waiting:
            _, waiting = self._waiting.popitem()
            if not waiting.done():
                waiting.set_exception(Unavailable("the connection that listens to the database was lost; try again"))
                waiting.exception()

    async def caught_up(self) -> None:
        """Know every topic and cursor that was stored anywhere before this call. Raises `Unavailable`."""
        if not self._database.is_up:
            raise self._database.unavailable()
        if self._barrier is None:
            self._barrier = asyncio.get_running_loop().create_task(self._pass_barrier())
        await asyncio.shield(self._barrier)

    async def _pass_barrier(self) -> None:
        # One turn of the loop for others to join; whoever comes later needs a notice of his own.
        await asyncio.sleep(0)
        self._barrier = None
        try:
            async with asyncio.timeout(self._database.timeout_s):
                await self._first.wait()
                while not self._is_listening:
                    await asyncio.sleep(_PAUSE_S / 4)
                notice = self.next_notice()
                number = int(notice.rpartition(" ")[2])
                heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting[number] = heard
                await self._database.fetch(sql("say"), notice)
                await heard
        except TimeoutError as error:
            raise self._database.failed(error, connected=True) from error

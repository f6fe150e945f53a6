"""Publishing to a pair over the text protocol: `failover.py` decides, this sends, waits and tells.

::

    async with holdfast.PairPublisher("localhost:8080", "localhost:8081") as publisher:
        await publisher.publish("topicC", b"Hello")

Publishes made at the same time are under way at the same time, and are stored in the order of the calls, through any
number of failovers. Three rules make that so:

- There is one connection at a time, and it begins with everything that is not acknowledged, in order (`failover.py`).
- The connection is left at the first refusal that may pass. Nothing is sent again on the same one.
- A broker stores the lines of a connection in their order or not at all: what is behind a line that it refused it
  refuses, too, and what it still takes of a connection that was left is the beginning of what comes through the next.

A broker of another make may take lines behind one that it refused. Then those are stored first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

from holdfast.client.encoding import IdMaker, Value, value_bytes
from holdfast.client.errors import ClientClosed, another, wrong_text_port
from holdfast.client.failover import (
    ACK_TIMEOUT_S_DEFAULT,
    PATIENCE_S_DEFAULT,
    RETAIN_DEFAULT,
    Counts,
    Failover,
    Kept,
)
from holdfast.client.pair import (
    ConnectionChange,
    LineConnection,
    OnChange,
    log_change,
    pair_addresses,
    passing_codes,
    reason_of,
)
from holdfast.model.errors import (
    BadCommand,
    BadMessage,
    BadMessageId,
    BadValue,
    ConnectionLost,
    HoldfastError,
    RemoteError,
)
from holdfast.model.names import message_id, topic_name
from holdfast.wire.text_answers import ACKNOWLEDGED, Refused, parse_answer


class PairPublished(NamedTuple):
    """A message that is acknowledged: its id, and the broker that said so."""

    id: str
    broker: str


class PairPublisher:
    """Publishes to a pair, or to one plain broker. Use it with `async with`, on one event loop.

    `publish` returns when the message is acknowledged. It raises `RemoteError` if a broker refuses the message,
    and `ConnectionLost` if nobody has acknowledged it within `patience_s`: it may be stored then, or not.

    Messages are stored in the order of the calls.
    """

    def __init__(
        self,
        *brokers: str,
        retain: int = RETAIN_DEFAULT,
        ack_timeout_s: float = ACK_TIMEOUT_S_DEFAULT,
        patience_s: float = PATIENCE_S_DEFAULT,
        on_change: OnChange = log_change,
    ) -> None:
        if retain < 0 or not ack_timeout_s > 0 or not patience_s > 0:
            raise BadValue("retain is a number from 0; ack_timeout_s and patience_s are more than 0")
        self._addresses = pair_addresses(brokers)
        self._names = list(self._addresses)
        self._ack_timeout_s = ack_timeout_s
        self._patience_s = patience_s
        self._on_change = on_change
        self._passing_codes = passing_codes()
        self._ids = IdMaker()
        self._failover = Failover(len(brokers), retain=retain, ack_timeout_s=ack_timeout_s, patience_s=patience_s)
        self._futures: dict[int, asyncio.Future[PairPublished]] = {}
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self._connection: LineConnection | None = None
        self._outgoing: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._lost: dict[str, str] = {}
        self._reached = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._fatal: HoldfastError | None = None

    # --- life ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> PairPublisher:
        self._running = asyncio.get_running_loop().create_task(self._run())
        try:
            async with asyncio.timeout(self._patience_s):
                await self._reached.wait()
        except TimeoutError:
            await self.close(quietly=True)
            raise ConnectionLost(f"no broker was reached within {self._patience_s:g} s: {self._troubles()}") from None
        except BaseException:
            await self.close(quietly=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(quietly=error is not None)

    async def close(self, *, quietly: bool = False) -> None:
        """Wait for what was begun, then hang up; `quietly` where an error is under way already: without waiting."""
        if not quietly and self._futures:
            await asyncio.wait(list(self._futures.values()))
        self._fail_all(ClientClosed("the publisher is closed"))
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
        if self._connection is not None:
            self._connection.end("closed")

    @property
    def counts(self) -> Counts:
        """How many messages were sent, acknowledged and sent again, and how often the broker changed."""
        return self._failover.counts

    @property
    def broker(self) -> str:
        """The address that is published to now."""
        return self._names[self._failover.current]

    # --- publishing ---------------------------------------------------------------------------------

    async def publish(self, topic: str, value: Value, *, id: str | None = None) -> PairPublished:
        """Publish one message; returns once it is acknowledged. Without an `id` it gets one."""
        return await (await self._hand_over(topic, value, id))

    async def publish_many(self, topic: str, values: Iterable[Value]) -> list[PairPublished]:
        """Publish values in their order, many under way at a time; returns once all are acknowledged.

        If one fails, those before and behind it may be stored all the same.
        """
        futures: list[asyncio.Future[PairPublished]] = []
        try:
            for value in values:
                futures.append(await self._hand_over(topic, value, None))
        except BaseException:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # seen: what is raised here is what happened first
            raise
        return await asyncio.gather(*futures)

    async def _hand_over(self, topic: str, value: Value, given_id: str | None) -> asyncio.Future[PairPublished]:
        """Accept a message in its turn, as soon as there is room; the future is its acknowledgement."""
        asked_at = asyncio.get_running_loop().time()
        chosen_id = self._ids.next() if given_id is None else _id(given_id)
        line = _line(topic, chosen_id, value_bytes(value))
        try:
            async with asyncio.timeout_at(asked_at + self._patience_s), self._turn:
                self._check_usable()
                while not self._failover.has_room(len(line)):
                    self._room.clear()
                    await self._room.wait()
                    self._check_usable()
                return self._accept(chosen_id, line, asked_at)
        except TimeoutError:
            raise ConnectionLost(
                f"{self._failover.unacknowledged} messages wait for acknowledgements, and for {self._patience_s:g} s "
                f"there was no room for one more: {self._troubles()}"
            ) from None

    def _accept(self, chosen_id: str, line: bytes, asked_at: float) -> asyncio.Future[PairPublished]:
        kept = self._failover.accept(chosen_id, line, asked_at)
        future: asyncio.Future[PairPublished] = asyncio.get_running_loop().create_future()
        self._futures[kept.number] = future
        if self._failover.is_connected:
            self._send(line)
        self._arm()
        return future

    def _send(self, line: bytes) -> None:
        """Lines of one turn of the loop leave in one piece."""
        self._outgoing.append(line)
        if len(self._outgoing) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        data, self._outgoing = b"".join(self._outgoing), []
        if data and self._connection is not None:
            self._connection.write(data)

    def _check_usable(self) -> None:
        if self._fatal is not None:
            raise another(self._fatal)
        if self._running is None or self._running.done():
            raise ClientClosed("the publisher is not open; use it with `async with`")

    # --- the connection -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._fatal is None:
            broker = self.broker
            reason = await self._publish_to(broker)
            self._connection = None
            pause_s = self._failover.failed()
            self._arm()
            if broker not in self._lost:
                self._on_change(ConnectionChange(broker, False, reason))
            self._lost[broker] = reason
            await asyncio.sleep(pause_s)

    async def _publish_to(self, broker: str) -> str:
        """Until the connection ends; returns why."""
        try:
            connection = await LineConnection.open(self._addresses[broker], self._ack_timeout_s, self._on_lines)
        except OSError as error:
            return reason_of(error)
        self._connection = connection
        self._outgoing = []
        try:
            connection.write(b"".join(self._failover.connected(asyncio.get_running_loop().time())))
            self._arm()
            self._reached.set()
            return await asyncio.shield(connection.ended)
        finally:
            connection.end("closed")

    def _on_lines(self, connection: LineConnection, lines: list[bytes]) -> None:
        now = asyncio.get_running_loop().time()
        for line in lines:
            if connection.ended.done():
                return
            if line in ACKNOWLEDGED and self._failover.is_waiting:
                self._acknowledged(self._failover.acknowledged(now))
            else:
                self._on_other_line(connection, line, now)

    def _acknowledged(self, kept: Kept | None) -> None:
        if self._lost:
            # It was not enough that it took a connection: now it is known that it takes messages.
            self._lost.clear()
            self._on_change(ConnectionChange(self.broker, True))
        if kept is not None:
            self._settled(kept).set_result(PairPublished(kept.id, self.broker))

    def _on_other_line(self, connection: LineConnection, line: bytes, now: float) -> None:
        try:
            answer = parse_answer(line)
        except BadCommand as error:
            self._fail_all(wrong_text_port(str(self.broker), line, error.message))
            connection.end("it is not the text port of a broker")
            return
        if not isinstance(answer, Refused):
            return
        if answer.code in self._passing_codes or not self._failover.is_waiting:
            connection.end(f"{answer.text} [{answer.code}]")
            return
        kept = self._failover.refused(now)
        if kept is not None:
            self._settled(kept).set_exception(RemoteError(answer.code, answer.text))

    # --- time and ends ------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have the timer fire when time alone changes something; one that fires early only looks again."""
        wakes_at = self._failover.wakes_at()
        if wakes_at is None:
            return
        if self._timer is not None:
            if self._timer.when() <= wakes_at:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(wakes_at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for kept in self._failover.expired(now):
            self._settled(kept).set_exception(
                ConnectionLost(
                    f"nobody acknowledged message {kept.id} within {self._patience_s:g} s; it may be stored or not: "
                    f"{self._troubles()}"
                )
            )
        if self._failover.is_overdue(now) and self._connection is not None:
            self._connection.end(f"no acknowledgement for {self._ack_timeout_s * 1000:.0f} ms")
        else:
            self._arm()

    def _settled(self, kept: Kept) -> asyncio.Future[PairPublished]:
        """The future of a message that is done with; one that nobody waits for any more is replaced."""
        self._room.set()
        future = self._futures.pop(kept.number, None)
        return asyncio.get_running_loop().create_future() if future is None or future.done() else future

    def _fail_all(self, error: HoldfastError) -> None:
        if self._fatal is None:
            self._fatal = error
        self._room.set()
        self._reached.set()
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(another(error))

    def _troubles(self) -> str:
        return ", ".join(f"{broker} ({reason})" for broker, reason in self._lost.items()) or f"{self.broker} is silent"


def _id(text: str) -> str:
    chosen = message_id(text)
    if "|" in chosen:
        raise BadMessageId(f"an id in a text line may not hold '|', as {chosen!a} does; publish over HTTP")
    return chosen


def _line(topic: str, chosen_id: str, value: bytes) -> bytes:
    if b"\n" in value or value.endswith(b"\r"):
        raise BadMessage("a value with a line break cannot be a text line; publish it over HTTP, with holdfast.connect")
    return b"PUBLISH_ID|%b|%b|%b\n" % (chosen_id.encode(), topic_name(topic).encode(), value)

"""Following a topic of a pair: connected to both brokers at once, each message once and in order (`merging.py`).

::

    async with holdfast.PairSubscriber("topicC", "localhost:8080", "localhost:8081") as subscriber:
        async for message in subscriber:
            print(message.broker, message.value)
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from types import TracebackType
from typing import Final, NamedTuple

from holdfast.client.errors import ClientClosed, another, wrong_text_port
from holdfast.client.limits import CONNECT_TIMEOUT_S
from holdfast.client.merging import Merge, Pong
from holdfast.client.pair import (
    ConnectionChange,
    LineConnection,
    OnChange,
    log_change,
    pair_addresses,
    passing_codes,
    reason_of,
)
from holdfast.model.errors import BadCommand, ConnectionLost, HoldfastError, RemoteError
from holdfast.model.limits import MIB
from holdfast.model.names import cursor_name, topic_name
from holdfast.wire.text_answers import PONG, Delivered, Refused, parse_answer

PATIENCE_S_DEFAULT: Final = 30.0
# Messages that nobody has taken, for each broker, before its connection is not read any more.
_INBOX_BYTES_MAX: Final = 8 * MIB
# A broker that restarts is found again within the longest pause.
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_PING_INTERVAL_S: Final = 2.0
# A machine that vanished is noticed. Not sooner: one that only paused goes on where it was, if the connection is there.
_SILENCE_S_MAX: Final = 10.0


class PairMessage(NamedTuple):
    """One message, and the address of the broker it came from."""

    broker: str
    topic: str
    id: str
    value: bytes


class _Side:
    """The connection to one broker, over all its reconnects."""

    def __init__(self, number: int, broker: str) -> None:
        self.number = number
        self.broker = broker
        self.connection: LineConnection | None = None
        self.is_subscribed = False
        self.is_paused = False
        self.heard_at = 0.0
        self.was_tried = False
        self.trouble = ""
        # When a subscription ended that has not begun again, and when the last message came.
        self.lost_at: float | None = None
        self.delivered_at = float("-inf")


class PairSubscriber:
    """Messages of one topic. Use it with `async with`, on one event loop, and iterate over it.

    It follows what is published from its beginning on. With a `name` the brokers keep its place: what was published
    while it was away comes first. It reconnects by itself; `on_change` is told of every connection lost and regained.
    Without a name it does not get what is delivered while it is not connected: `ConnectionChange.gap_s` says so.
    """

    def __init__(
        self,
        topic: str,
        *brokers: str,
        name: str | None = None,
        patience_s: float = PATIENCE_S_DEFAULT,
        on_change: OnChange = log_change,
    ) -> None:
        self.topic = topic_name(topic)
        self._addresses = pair_addresses(brokers)
        fields = ["SUBSCRIBE_ID", self.topic, *([] if name is None else [cursor_name(name)])]
        # The dialects differ in what they say to a SUBSCRIBE, and in nothing about a PING behind it.
        self._greeting = "|".join(fields).encode() + b"\nPING\n"
        self._keeps_place = name is not None
        self._patience_s = patience_s
        self._on_change = on_change
        self._passing_codes = passing_codes()
        self._merge = Merge(len(brokers))
        self._sides = [_Side(number, broker) for number, broker in enumerate(brokers)]
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._fatal: HoldfastError | None = None
        self._is_closed = False

    @property
    def duplicates(self) -> int:
        """How many messages came a second time and were not handed out."""
        return self._merge.duplicates

    # --- life ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> PairSubscriber:
        """Returns when every broker that is there has said that what is published from now on will come."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_connected(side)) for side in self._sides]
        try:
            async with asyncio.timeout(self._patience_s):
                while not self._is_ready():
                    await self._next_news()
        except TimeoutError:
            if not any(side.is_subscribed for side in self._sides):
                await self.close()
                raise ConnectionLost(
                    f"no broker was reached within {self._patience_s:g} s: {self._troubles()}"
                ) from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up; whoever waits for a message is told that there is none."""
        self._is_closed = True
        self._news.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _is_ready(self) -> bool:
        if self._fatal is not None:
            raise another(self._fatal)
        return all(side.was_tried for side in self._sides) and any(side.is_subscribed for side in self._sides)

    # --- taking messages ----------------------------------------------------------------------------

    def __aiter__(self) -> PairSubscriber:
        return self

    async def __anext__(self) -> PairMessage:
        try:
            message = await self.get()
        except ClientClosed:
            raise StopAsyncIteration from None
        assert message is not None
        return message

    async def get(self, timeout_s: float | None = None) -> PairMessage | None:
        """The next message, or `None` if there is none within `timeout_s`."""
        if not self._tasks:
            raise ClientClosed("the subscriber is not open; use it with `async with`")
        try:
            async with asyncio.timeout(timeout_s):
                while (message := self._take()) is None:
                    await self._next_news()
        except TimeoutError:
            return None
        return message

    def _take(self) -> PairMessage | None:
        if self._is_closed:
            raise ClientClosed("the subscriber is closed")
        found = self._merge.next(asyncio.get_running_loop().time())
        for side in self._sides:
            self._read_on(side)
        if found is not None:
            number, delivered = found
            return PairMessage(self._sides[number].broker, delivered.topic, delivered.message_id, delivered.value)
        if self._fatal is not None:
            raise another(self._fatal)
        asked = self._merge.asks()
        if asked is not None:
            self._ping(self._sides[asked])
        return None

    async def _next_news(self) -> None:
        """Wait until something came or changed, or until time alone changes something."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._merge.wakes_at()):
                await self._news.wait()

    def _read_on(self, side: _Side) -> None:
        """Go on reading once there is room again; it was not silent, it was not listened to."""
        if side.is_paused and self._merge.waiting_bytes(side.number) < _INBOX_BYTES_MAX // 2:
            side.is_paused = False
            side.heard_at = asyncio.get_running_loop().time()
            self._merge.heard(side.number, side.heard_at)
            if side.connection is not None:
                side.connection.resume()

    # --- connections --------------------------------------------------------------------------------

    async def _keep_connected(self, side: _Side) -> None:
        pause_s = _PAUSE_S_MIN
        while self._fatal is None:
            reason = await self._follow(side)
            if side.is_subscribed:
                pause_s = _PAUSE_S_MIN
            if side.is_subscribed or not side.was_tried:
                self._on_change(ConnectionChange(side.broker, False, reason))
            if side.is_subscribed:
                side.lost_at = asyncio.get_running_loop().time()
            side.is_subscribed, side.was_tried, side.trouble = False, True, reason
            self._merge.lost(side.number)
            self._news.set()
            # With jitter, so that many subscribers that lost one broker do not come back as one.
            await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(_PAUSE_S_MAX, pause_s * 2)

    async def _follow(self, side: _Side) -> str:
        """Until the connection ends; returns why."""

        def on_lines(connection: LineConnection, lines: list[bytes]) -> None:
            self._on_lines(side, connection, lines)

        try:
            connection = await LineConnection.open(self._addresses[side.broker], CONNECT_TIMEOUT_S, on_lines)
        except OSError as error:
            return reason_of(error)
        now = asyncio.get_running_loop().time()
        side.connection, side.is_paused, side.heard_at = connection, False, now
        self._merge.connected(side.number, now)
        try:
            connection.write(self._greeting)
            self._merge.pinged(side.number)
            while True:
                done, _ = await asyncio.wait((connection.ended,), timeout=_PING_INTERVAL_S)
                if done:
                    return connection.ended.result()
                self._look_after(side, connection)
        finally:
            side.connection = None
            connection.end("closed")

    def _look_after(self, side: _Side, connection: LineConnection) -> None:
        if side.is_paused:
            return
        silent_s = asyncio.get_running_loop().time() - side.heard_at
        if silent_s >= _SILENCE_S_MAX:
            connection.end(f"silent for {silent_s:.0f} s")
        elif silent_s >= _PING_INTERVAL_S / 2:
            self._ping(side)

    def _ping(self, side: _Side) -> None:
        if side.connection is not None:
            side.connection.write(b"PING\n")
            self._merge.pinged(side.number)

    def _on_lines(self, side: _Side, connection: LineConnection, lines: list[bytes]) -> None:
        side.heard_at = now = asyncio.get_running_loop().time()
        for line in lines:
            if line == PONG:
                self._merge.came(side.number, Pong(), now)
                self._subscribed(side)
            else:
                self._on_other_line(side, connection, line, now)
            if connection.ended.done():
                break
        if self._merge.waiting_bytes(side.number) > _INBOX_BYTES_MAX and not side.is_paused:
            side.is_paused = True
            connection.pause()
        self._news.set()

    def _subscribed(self, side: _Side) -> None:
        if side.is_subscribed:
            return
        side.is_subscribed = True
        if side.trouble:
            side.trouble = ""
            self._on_change(ConnectionChange(side.broker, True, gap_s=self._gap_s(side)))
        side.was_tried, side.lost_at = True, None

    def _gap_s(self, side: _Side) -> float | None:
        """How long messages may have gone past this subscriber; none if they cannot.

        Only the primary delivers. The other broker has taken over if it was connected and a message came from it.
        """
        others = [other for other in self._sides if other is not side]
        lost_at = [each.lost_at for each in self._sides if each.lost_at is not None]
        if self._keeps_place or not lost_at:
            return None
        now = asyncio.get_running_loop().time()
        if not any(other.is_subscribed for other in others):
            return now - max(lost_at)
        if side.lost_at is None or any(other.delivered_at > side.lost_at for other in others):
            return None
        return now - side.lost_at

    def _on_other_line(self, side: _Side, connection: LineConnection, line: bytes, now: float) -> None:
        try:
            answer = parse_answer(line)
        except BadCommand as error:
            self._fatal = wrong_text_port(str(side.broker), line, error.message)
            connection.end("it is not the text port of a broker")
            return
        if isinstance(answer, Delivered):
            side.delivered_at = now
            self._merge.came(side.number, answer, now)
        elif isinstance(answer, Refused):
            if answer.code == "topic_not_found" and side.is_subscribed:
                self._merge.forget_ids()
            elif answer.code not in self._passing_codes:
                self._fatal = RemoteError(answer.code, f"{side.broker}: {answer.text}")
            connection.end(f"{answer.text} [{answer.code}]")

    def _troubles(self) -> str:
        return ", ".join(f"{side.broker} ({side.trouble or 'silent'})" for side in self._sides)

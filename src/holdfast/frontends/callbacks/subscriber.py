"""One subscription on one node: its connection, where it stands in each partition led here, and what it is told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

from holdfast.broker.callback_addresses import parse_callback_address
from holdfast.broker.callback_window import Budget, Window
from holdfast.frontends.callbacks.connection import ReceiverConnection
from holdfast.frontends.callbacks.dialing import Dialer
from holdfast.model.callbacks import Callback, CallbackDelivery, DeliveryState
from holdfast.model.errors import CallbackRefused, ConnectionLost
from holdfast.model.ids import Offset, TimestampMs
from holdfast.model.limits import CALLBACK_WINDOW_BYTES_MAX
from holdfast.model.topics import Topic
from holdfast.wire.callbacks import Lines

# Between two attempts to connect: so long at first, at most so long for some minutes, and then at most so long.
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_PATIENT_S: Final = 180.0
_PAUSE_S_LATER: Final = 15.0
# A connection that held so long was a good one, as is one over which a whole window was acknowledged.
_GOOD_S: Final = 5.0


class Feeding(Protocol):
    """Who reads a partition for its subscribers."""

    def place(self, subscriber: Subscriber) -> None:
        """It can take more."""
        ...

    def discard(self, subscriber: Subscriber) -> None: ...


class Subscriber:
    """Begins to connect when it gets its first partition."""

    def __init__(
        self,
        callback: Callback,
        delivered: Topic,
        dialer: Dialer,
        budget: Budget,
        on_acked: Callable[[int], None],
        on_moved: Callable[[Subscriber], None],
        on_refused: Callable[[Subscriber, str], None],
    ) -> None:
        self.callback = callback
        self.delivered = delivered
        self._dialer = dialer
        self._budget = budget
        budget.receivers += 1
        self._on_acked = on_acked
        self._on_moved = on_moved
        self._on_refused = on_refused
        self._address = parse_callback_address(callback.address)
        self._loop = asyncio.get_running_loop()
        self.feeds: dict[int, Feeding] = {}
        # What is sent next, and what is acknowledged, by partition.
        self.positions: dict[int, Offset] = {}
        self.acked: dict[int, Offset] = {}
        self.stored: dict[int, Offset] = {}
        self.lost = dict(callback.lost)
        # Up to here, by partition, it is known what is lost: a connection that is lost too does not count it again.
        self._counted: dict[int, Offset] = {}
        self._window = Window(budget)
        self._connection: ReceiverConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connected_s = 0.0
        self._progress_s = 0.0
        self._away_since_s: float | None = None
        self._pause_s = _PAUSE_S_MIN
        self.state: DeliveryState = "waiting"
        # Who answered nonsense counts as connected again when it has acknowledged something.
        self._is_suspect = False
        self._error: str | None = None
        self._error_ms: TimestampMs | None = None
        self.is_closed = False

    # --- partitions ---------------------------------------------------------------------------------

    def attach(self, number: int, feed: Feeding, position: Offset) -> None:
        """Deliver a partition from here on."""
        # It may have been another node's meanwhile, which gave the same offsets to other messages.
        self._window.disown(number)
        self.feeds[number] = feed
        self.positions[number] = self.acked[number] = self.stored[number] = position
        if self._connecting is None and self._connection is None:
            self._begin_to_connect(0.0)
        elif self.has_room:
            feed.place(self)

    def detach(self, number: int, feed: Feeding) -> None:
        """Another node delivers it from now on; what is under way may still be acknowledged here."""
        if self.feeds.get(number) is feed:
            del self.feeds[number], self.positions[number]

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._budget.receivers -= 1
        self._window.clear()
        for feed in list(self.feeds.values()):
            feed.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- sending ------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self._connection is not None and self._connection.has_room and self._window.has_room

    @property
    def unacknowledged(self) -> int:
        return self._window.messages

    def send(self, number: int, lines: Lines) -> None:
        """The next messages of a partition; only while it has room."""
        assert self._connection is not None
        if not lines.messages:
            self._pass(number, lines.next_offset)
            return
        if not self._window.messages:
            self._progress_s = self._loop.time()
        self._window.sent(number, self.positions[number], lines.next_offset, lines.messages, len(lines.data))
        self.positions[number] = lines.next_offset
        self._connection.write(lines.data)

    def skip(self, number: int, to: Offset) -> None:
        """What stands below is gone, and nobody can have it any more."""
        counted = max(self.positions[number], self._counted.get(number, 0))
        if to > counted:
            self.lost[number] = self.lost.get(number, 0) + to - counted
            self._counted[number] = to
        self._pass(number, to)

    def _pass(self, number: int, to: Offset) -> None:
        """There is no message up to here."""
        if self._window.messages:
            # It counts as done when all that was sent before it is.
            self._window.sent(number, self.positions[number], to, 0, 0)
        else:
            self.acked[number] = to
        self.positions[number] = to
        self._on_moved(self)

    def on_acks(self, count: int) -> None:
        places = self._window.acknowledged(count)
        self._progress_s = self._loop.time()
        self._is_suspect, self.state = False, "connected"
        self._on_acked(count)
        if places:
            for number, place in places.items():
                self.acked[number] = max(place, self.acked.get(number, place))
            self._on_moved(self)
        self.on_room()

    def on_room(self) -> None:
        if self.has_room:
            for feed in list(self.feeds.values()):
                feed.place(self)

    # --- connecting -----------------------------------------------------------------------------------

    def _begin_to_connect(self, pause_s: float) -> None:
        self._connecting = self._loop.create_task(self._connect(pause_s))
        self._connecting.add_done_callback(self._connect_ended)

    def _connect_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (bug := task.exception()) is not None:
            # Whatever it is, the receiver is tried again.
            self._loop.call_exception_handler({"message": "connecting to a receiver failed", "exception": bug})
            self._again(f"a fault of this broker: {bug!a}", "waiting")

    async def _connect(self, pause_s: float) -> None:
        while True:
            # At random, so that many that were lost together do not come back together.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            if pause_s:
                await self._dialer.turn()
            try:
                connection = await self._dialer.connect(self._address, lambda: ReceiverConnection(self))
            except CallbackRefused as error:
                self._note(error.message, "refused")
            except ConnectionLost as error:
                self._note(error.message, "waiting")
            else:
                break
            pause_s = self._next_pause_s()
        self._connecting = None
        if connection.end is not None:  # it came and went at once
            why, is_nonsense = connection.end
            self._again(why, "refused" if is_nonsense else "waiting")
            return
        self._connection = connection
        self._connected_s = self._loop.time()
        if not self._is_suspect:
            self.state = "connected"
        for number in self.positions:
            self.positions[number] = self.acked[number]
        self.on_room()

    def on_lost(self, connection: ReceiverConnection, why: str, *, is_nonsense: bool) -> None:
        if connection is self._connection:
            self._connection = None
            held_s = self._loop.time() - self._connected_s
            is_good = held_s > _GOOD_S or self._window.acknowledged_bytes >= CALLBACK_WINDOW_BYTES_MAX
            self._window.clear()
            if is_good and not is_nonsense:
                self._away_since_s, self._pause_s = None, _PAUSE_S_MIN
            self._again(why, "refused" if is_nonsense else "waiting")

    def on_opened(self) -> None:
        self._dialer.opened()

    def on_hung_up(self) -> None:
        self._dialer.hung_up()

    def _again(self, why: str, state: DeliveryState) -> None:
        self._note(why, state)
        if not self.is_closed:
            self._begin_to_connect(self._next_pause_s())

    def _next_pause_s(self) -> float:
        now_s = self._loop.time()
        if self._away_since_s is None:
            self._away_since_s = now_s
        is_patient = self.state != "refused" and now_s - self._away_since_s < _PATIENT_S
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _PAUSE_S_MAX if is_patient else _PAUSE_S_LATER)
        return pause_s

    def _note(self, why: str, state: DeliveryState) -> None:
        if state == "refused" and self.state != "refused":
            self._on_refused(self, why)
        self._is_suspect = state == "refused"
        self.state, self._error = state, why
        self._error_ms = TimestampMs(time.time_ns() // 1_000_000)

    def drop_if_silent(self, timeout_s: float) -> None:
        """What is not acknowledged in time is sent again."""
        if self._connection is not None and self._window.messages:
            silent_s = self._loop.time() - self._progress_s
            if silent_s > timeout_s:
                left = self._window.messages
                self._connection.drop(f"no acknowledgement came for {silent_s:.0f} s; {left} messages are sent again")

    def told(self, node: str) -> CallbackDelivery:
        return CallbackDelivery(
            topic=self.callback.topic,
            name=self.callback.name,
            node=node,
            state=self.state,
            partitions=sorted(self.feeds),
            unacknowledged=self._window.messages if self._connection is not None else 0,
            error=self._error,
            error_ms=self._error_ms,
        )

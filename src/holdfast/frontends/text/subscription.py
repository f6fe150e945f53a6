"""One subscription of one text connection: reads the log at its own pace and writes lines.

A durable subscription has a name and a cursor under it. Its cursor moves when a message is delivered, which
here means that the subscriber's machine has acknowledged the bytes: the text protocol has no acknowledgement
of its own, so the kernel's count of unacknowledged bytes stands in for it. What was only written, but not
taken over there, is delivered again after a reconnect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from holdfast.broker.broker import Broker
from holdfast.broker.delivery_marks import DELIVERED
from holdfast.broker.follower import Follower
from holdfast.frontends.text.line_cache import LineCache, Piece, Place
from holdfast.model.errors import HoldfastError, Internal, TakenOver
from holdfast.model.ids import CursorName, Offset
from holdfast.model.limits import MIB, SUBSCRIBER_BUFFER_BYTES_MAX

# How often the cursor of a busy durable subscription is moved.
_CONFIRM_INTERVAL_S: Final = 0.02
# As much as one client is sent before others have their turn.
_TURN_BYTES: Final = 4 * MIB


class Outlet(Protocol):
    """What a subscription needs of its connection."""

    def write(self, data: bytes) -> None: ...
    def written_bytes(self) -> int: ...
    def taken_bytes(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def piece_bytes(self) -> int: ...
    async def drained(self) -> None: ...


class Subscription:
    """Runs as a task until it is stopped, its cursor is taken over, or its topic is deleted."""

    def __init__(
        self,
        broker: Broker,
        outlet: Outlet,
        cache: LineCache,
        topic: str,
        cursor: CursorName | None,
        *,
        with_ids: bool = False,
    ) -> None:
        self.topic = topic
        self.cursor = cursor
        self.with_ids = with_ids
        self._broker = broker
        self._outlet = outlet
        self._cache = cache
        self._source = broker.delivers_from(topic)
        # Taken now, not when the task gets its turn: the next line may publish already. In a topic that
        # does not exist yet, everything is still to come.
        # What is published from now on: all of it where the topic is yet to be made.
        from_now_on = "earliest" if broker.backend.topic(self._source) is None else "latest"
        self._start: str | dict[int, Offset] = broker.end_positions(self._source) or from_now_on
        # Whether others go on where it ends: it has no cursor of its own then.
        self._is_marked = cursor is None and broker.backend.delivers_where_led
        self._unconfirmed: deque[tuple[int, int, Offset]] = deque()
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = False

    async def open(self) -> Follower:
        """Find where to start. Raises `HoldfastError`; nothing is left behind then."""
        broker = self._broker
        await broker.ensure_topic(self.topic)
        if self._source != self.topic:
            await broker.ensure_topic(self._source)
        if self.cursor is not None:
            # Whoever read through it before stops, and stores how far it came, before we look.
            broker.cursor_claims.claim((self._source, self.cursor), self._taken_over)
            positions = await broker.open_cursor(self.topic, self.cursor, self._start)
        elif isinstance(self._start, str):
            positions = await broker.positions(self._source, self._start)
        else:
            positions = self._start
        if self._is_marked:
            broker.delivery_marks.joined(self._source, self, positions)
        return broker.follow(self._source, positions, place=self.cursor or DELIVERED)

    def start(self, follower: Follower, on_end: Callable[[Subscription, HoldfastError], None]) -> None:
        if self._lost:  # while it was being opened
            follower.close()
            on_end(self, self._why_lost())
            return
        self._broker.stats.subscriptions += 1
        self._task = asyncio.get_running_loop().create_task(self._run(follower, on_end))
        # Not in the task itself, which may be cancelled before its first step.
        self._task.add_done_callback(lambda task: self._ended(task, follower, on_end))

    def stop(self) -> None:
        """End it; a durable one goes on later after what was delivered until now."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self.confirm()
        self._release()

    def _release(self) -> None:
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
        if self.cursor is not None:
            self._broker.cursor_claims.release((self._source, self.cursor), self._taken_over)
        if self._is_marked:
            self._broker.delivery_marks.left(self._source, self)
        self._unconfirmed.clear()

    async def _run(self, follower: Follower, on_end: Callable[[Subscription, HoldfastError], None]) -> None:
        try:
            while True:
                await self._outlet.drained()
                number = await follower.ready()
                await self._broker.turns.take()
                await self._deliver(follower, number)
        except HoldfastError as error:
            self._release()
            on_end(self, error)

    async def _deliver(self, follower: Follower, number: int) -> None:
        """Write what comes next in one partition, until the client has to take it first or others have their turn."""
        outgoing, left = self._broker.outgoing, _TURN_BYTES
        while left > 0 and not self._outlet.is_full:
            piece = await self._next_piece(follower, number)
            # Other subscriptions of this connection may have written while this one read.
            if piece is None or self._outlet.is_full:
                return
            size = len(piece.lines)
            left -= size
            if size <= self._outlet.piece_bytes or outgoing.has_room(size):
                self._write(follower, number, piece)
                continue
            # A large message. Nothing of it is held while it waits for room.
            del piece
            await outgoing.room(size)
            try:
                piece = await self._next_piece(follower, number)
                if piece is not None and not self._outlet.is_full:
                    self._write(follower, number, piece)
            finally:
                # What of it is not taken counts as held by now.
                outgoing.hold(-size)

    def _write(self, follower: Follower, number: int, piece: Piece) -> None:
        follower.positions[number] = piece.next_offset
        self._outlet.write(piece.lines)
        self._broker.stats.count_delivery(piece.messages, len(piece.lines))
        if self.cursor is not None or self._is_marked:
            self._unconfirmed.append((self._outlet.written_bytes(), number, piece.next_offset))
            self._confirm_later()

    async def _next_piece(self, follower: Follower, number: int) -> Piece | None:
        """What stands at the position, which moves when it is written."""
        offset, bytes_max = follower.positions[number], self._outlet.piece_bytes
        place = Place(self.topic, follower.followed, number, offset, follower.cuts[number], self.with_ids)
        piece = self._cache.find(place, bytes_max)
        if piece is None:
            delivery = await follower.read(number, SUBSCRIBER_BUFFER_BYTES_MAX)
            if delivery is None:
                return None
            place = place._replace(offset=delivery.offset, cuts=delivery.cuts, with_ids=self.with_ids)
            piece = self._cache.make(place, delivery, bytes_max)
        return piece

    def _ended(
        self, task: asyncio.Task[None], follower: Follower, on_end: Callable[[Subscription, HoldfastError], None]
    ) -> None:
        self._task = None
        self._broker.stats.subscriptions -= 1
        follower.close()
        if task.cancelled():
            if self._lost:
                on_end(self, self._why_lost())
            return
        bug = task.exception()
        if bug is not None:
            # Ours, and for the log; but the subscriber must not wait for ever.
            asyncio.get_running_loop().call_exception_handler({"message": "a subscription failed", "exception": bug})
            on_end(self, Internal("the subscription failed inside the broker, whose log says how; subscribe again"))

    def confirm(self) -> None:
        """Move the cursor behind everything the subscriber's machine has taken."""
        taken = self._outlet.taken_bytes()
        positions: dict[int, Offset] = {}
        while self._unconfirmed and self._unconfirmed[0][0] <= taken:
            _, partition, next_offset = self._unconfirmed.popleft()
            positions[partition] = next_offset
        if positions and self._is_marked:
            self._broker.delivery_marks.taken(self._source, self, positions)
        elif positions and self.cursor is not None:
            try:
                stored = self._broker.ack_cursor(self.topic, self.cursor, positions)
            except HoldfastError:
                return  # the topic or the cursor was deleted meanwhile: there is nothing to move
            stored.add_done_callback(self._count_failure)

    def _count_failure(self, stored: asyncio.Future[None]) -> None:
        """A cursor that could not be stored means a second delivery later, not a loss: count it, go on."""
        error = None if stored.cancelled() else stored.exception()
        if isinstance(error, HoldfastError):
            self._broker.stats.errors[error.code] += 1

    def _confirm_later(self) -> None:
        if self._confirm_timer is None:
            self._confirm_timer = asyncio.get_running_loop().call_later(_CONFIRM_INTERVAL_S, self._confirm_now)

    def _confirm_now(self) -> None:
        self._confirm_timer = None
        self.confirm()
        if self._unconfirmed:
            self._confirm_later()

    def _why_lost(self) -> TakenOver:
        return TakenOver(
            f"subscription {self.cursor} to {self.topic} was taken over, moved or deleted; subscribe again"
        )

    def _taken_over(self) -> None:
        self._lost = True
        self.stop()

"""One text connection: lines in, replies and deliveries out, and no more memory than the limits say."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from holdfast.broker.broker import Broker
from holdfast.broker.intake import ReplicaIntake, ReplicaSession
from holdfast.broker.outgoing import Taking, piece_bytes
from holdfast.frontends.text.callback_changes import CallbackChanges
from holdfast.frontends.text.half_lines import HalfLine, HalfLines
from holdfast.frontends.text.id_lines import IdLines
from holdfast.frontends.text.line_cache import LineCache
from holdfast.frontends.text.replies import PublishReply, Replies, Reply
from holdfast.frontends.text.subscription import Subscription
from holdfast.frontends.untaken import untaken_bytes
from holdfast.model import names
from holdfast.model.errors import (
    HalfLineTimeout,
    HoldfastError,
    LineTooLong,
    NotBackup,
    NotSubscribed,
    Overloaded,
    TooLarge,
    TooManyConnections,
    TooManySubscriptions,
)
from holdfast.model.ids import CursorName
from holdfast.model.limits import (
    SUBSCRIBER_PIECE_BYTES_MIN,
    TEXT_LINE_OVERHEAD_BYTES,
    TEXT_SUBSCRIPTIONS_PER_CONNECTION_MAX,
    TEXT_UNACKNOWLEDGED_BYTES_MAX,
)
from holdfast.model.member_errors import NodeRemoved
from holdfast.wire import text
from holdfast.wire.text import Command, Dialect, Invalid, Item, Publishes, PublishIds, Replication

# A machine that vanished is noticed after about two minutes of silence, though nothing is sent to it.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 3))

# So long what a client still sends is read and dropped, so that it can read why it is hung up on.
_LINGER_S: Final = 2.0

SubscriptionKey = tuple[str, CursorName | None]


class TextConnection(asyncio.Protocol):
    """The state of one client."""

    def __init__(
        self,
        broker: Broker,
        dialect: Dialect,
        cache: LineCache,
        open_connections: set[TextConnection],
        connections_max: int,
        half_lines: HalfLines,
        intake: ReplicaIntake | None = None,
    ) -> None:
        self._broker = broker
        self._dialect = dialect
        self._cache = cache
        self._open_connections = open_connections
        self._connections_max = connections_max
        self._intake = intake
        self._replicas: ReplicaSession | None = None
        self._loop = asyncio.get_running_loop()
        self._line_bytes_max = broker.message_bytes_max + TEXT_LINE_OVERHEAD_BYTES
        self._replies = Replies(self.write, broker.stats.count_error)
        self._id_lines = IdLines(broker, dialect.published, self._on_ids_answered, broker.stats.count_error, self.abort)
        # Lines with ids that came while others have no answer yet, and what is behind them: at most one piece, since
        # nothing more is read then.
        self._held: deque[tuple[Item, int]] = deque()
        self._is_taking_held = False
        self._subscriptions: dict[SubscriptionKey, Subscription] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._callback_changes = CallbackChanges(broker.callbacks, dialect, self._replies, self._close_if_finished)
        self._half_line = HalfLine(half_lines)
        self._half_line_since = 0.0
        self._written = 0
        self._taken = 0
        self._reading = True
        self._no_more_lines = False
        # Whether the client is in the midst of a line that it is hung up on for; and what ends the wait for it.
        self._is_cut_short = False
        self._lingering: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._writable: asyncio.Future[None] | None = None
        # What is counted as held while it is not, and how much was written last.
        self._held_bytes = 0
        self._writing_bytes = 0
        self._taking = Taking()
        self._transport: asyncio.Transport

    # --- the protocol's events --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Here and not before: of many that come at once, each is counted before the next is looked at.
        if len(self._open_connections) >= self._connections_max:
            reason = f"this broker serves {self._connections_max} text connections; try again later"
            self.close_with(TooManyConnections(reason))
            return
        # A piece that is not taken at once fills it.
        self._transport.set_write_buffer_limits(high=SUBSCRIBER_PIECE_BYTES_MIN)
        _find_dead_peers(self._transport)
        self._open_connections.add(self)
        if self._dialect.connected:
            self.write(self._dialect.connected)

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            return
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._keep_half_line(data)
        else:
            lines = data if end == len(data) else data[:end]
            if self._half_line:
                lines = self._half_line.take() + lines
            self._take(text.parse(lines), len(lines))
            if end < len(data):
                self._keep_half_line(data[end:])
        self._pause_if_behind()

    def _take(self, items: list[Item], size: int) -> None:
        """Do what lines of `size` bytes ask for, in their order; one run of lines with ids waits for the other."""
        for item in items:
            if self._held or (isinstance(item, PublishIds) and self._id_lines.is_under_way):
                self._held.append((item, size))
            else:
                self._answer(item, size)

    def _answer(self, item: Item, size: int) -> None:
        if isinstance(item, Publishes):
            self._publish(item, size)
        elif isinstance(item, PublishIds):
            self._id_lines.publish(item.lines, self._replies.place(size))
        elif isinstance(item, Invalid):
            self._refuse(item.error)
        elif isinstance(item, Replication):
            self._replicate(item, size)
        else:
            self._command(item)

    def _on_ids_answered(self, reply: Reply, answers: bytes) -> None:
        self._replies.set(reply, answers)
        if self._is_taking_held:
            return  # a run among them was answered at once
        self._is_taking_held = True
        while self._held and not (isinstance(self._held[0][0], PublishIds) and self._id_lines.is_under_way):
            self._answer(*self._held.popleft())
        self._is_taking_held = False
        if not self._reading:
            self._resume_if_caught_up()
        if self._no_more_lines:
            self._close_if_finished()
        self._part_if_over()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        # A line that has left in part is held as a whole.
        self._count_held(max(self._transport.get_write_buffer_size(), self._writing_bytes))
        self._pause_if_behind()

    def resume_writing(self) -> None:
        self._set_writable()
        self._resume_if_caught_up()

    def _set_writable(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
            self._taking.forget()
            self._count_held(0)

    def _count_held(self, size: int) -> None:
        self._broker.outgoing.hold(size - self._held_bytes)
        self._held_bytes = size

    def eof_received(self) -> bool:
        # A client may close its sending half and still wait for its answers: `printf … | nc -N`. Its
        # subscriptions end: nobody could tell it from one that is gone, for as long as nothing is published.
        self._half_line.clear()
        self._no_more_lines = True
        self._is_cut_short = False
        self._stop_subscriptions()
        return not self._is_finished

    def connection_lost(self, exc: Exception | None) -> None:
        self._half_line.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        self._open_connections.discard(self)
        for task in self._opening:
            task.cancel()
        self._stop_subscriptions()
        # Nobody is there to be answered, and what was to be published still is.
        self._held = deque(held for held in self._held if isinstance(held[0], Publishes | PublishIds))
        self._set_writable()
        if self._replicas is not None:
            self._replicas.close()
        self._is_lost = True
        self._replies.end()
        self._callback_changes.end()
        self._part_if_over()

    def _part_if_over(self) -> None:
        """Let go of the last part that holds this connection, so that its memory is free now and not at the next
        search for reference cycles."""
        if self._is_lost and not self._held and not self._id_lines.is_under_way:
            self._id_lines.end()

    # --- commands ---------------------------------------------------------------------------------

    def _publish(self, item: Publishes, size: int) -> None:
        if len(item.values_by_topic) == 1:
            for topic, values in item.values_by_topic.items():
                self._publish_run(topic, values, size)
            return
        if any(max(map(len, values)) > self._broker.message_bytes_max for values in item.values_by_topic.values()):
            self._publish_one_by_one(item)
            return
        reply = PublishReply(self._replies, self._dialect.published, item.order, len(item.values_by_topic), size)
        for topic, values in item.values_by_topic.items():
            try:
                publishing = self._broker.publish_values(topic.decode("utf-8", "replace"), values)
            except HoldfastError as error:
                reply.refused(topic, error)
            else:
                reply.wait_for(topic, publishing.offset)

    def _publish_run(self, topic: bytes, values: Sequence[bytes], size: int) -> None:
        try:
            publishing = self._broker.publish_values(topic.decode("utf-8", "replace"), values)
        except TooLarge as error:
            if len(values) == 1:
                self._refuse(error)
            else:
                self._publish_one_by_one(Publishes({topic: values}, [topic] * len(values)))
        except HoldfastError as error:
            self._refuse(error, len(values))
        else:
            self._replies.after(publishing.offset, self._dialect.published, count=len(values), size=size)

    def _publish_one_by_one(self, item: Publishes) -> None:
        """For lines of which some are too large: what travels with them is not to blame."""
        values = {topic: iter(values) for topic, values in item.values_by_topic.items()}
        for topic in item.order:
            value = next(values[topic])
            self._publish_run(topic, [value], len(value))

    def _replicate(self, item: Replication, size: int) -> None:
        if self._intake is None:
            hint = "only one of a pair that was started with --plain takes these packets"
            self._refuse(NotBackup(f"this broker is no backup; {hint}"), len(item.lines))
            return
        if self._replicas is None:
            self._replicas = self._intake.session()
        self._replies.after_bytes(self._replicas.take(item.lines), size)

    def _command(self, item: Command) -> None:
        if item.name == b"PING":
            self._replies.say(b"PONG\n")
        elif item.name == b"HEARTBEAT":
            self._replies.say(b"HEARTBEAT_ACK\n")
        elif item.name == b"SUBSCRIBE":
            self._subscribe(item.fields, with_ids=False)
        elif item.name == b"SUBSCRIBE_ID":
            self._subscribe(item.fields, with_ids=True)
        elif item.name == b"UNSUBSCRIBE":
            self._unsubscribe(item.fields[0].decode("utf-8", "replace"))
        else:
            self._callback_changes.take(item)

    def _subscribe(self, fields: list[bytes], *, with_ids: bool) -> None:
        topic = fields[0].decode("utf-8", "replace")
        try:
            names.topic_name(topic)
            cursor = names.cursor_name(fields[1].decode("utf-8", "replace")) if len(fields) > 1 else None
            running = self._subscriptions.get((topic, cursor))
            if running is not None:
                # Going on in the other form, and not anew: nothing is missed between the two.
                running.with_ids = with_ids
                self._replies.say(self._dialect.subscribed)
                return
            if len(self._subscriptions) >= TEXT_SUBSCRIPTIONS_PER_CONNECTION_MAX:
                raise TooManySubscriptions(f"at most {TEXT_SUBSCRIPTIONS_PER_CONNECTION_MAX} on one connection")
            subscription = Subscription(self._broker, self, self._cache, topic, cursor, with_ids=with_ids)
        except HoldfastError as error:
            self._refuse(error)
            return
        self._subscriptions[topic, cursor] = subscription
        task = self._loop.create_task(self._open_subscription(subscription, self._replies.place(len(topic))))
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._close_if_finished()

    async def _open_subscription(self, subscription: Subscription, reply: Reply) -> None:
        key = (subscription.topic, subscription.cursor)
        # Where it begins is known already; thousands that come back at once take turns.
        await self._broker.turns.take()
        try:
            follower = await subscription.open()
        except HoldfastError as error:
            subscription.stop()
            if self._subscriptions.get(key) is subscription:
                del self._subscriptions[key]
            self._replies.fail(reply, error)
            return
        self._replies.set(reply, self._dialect.subscribed)
        if self._subscriptions.get(key) is subscription:
            subscription.start(follower, self._subscription_ended)
        else:
            subscription.stop()
            follower.close()

    def _subscription_ended(self, subscription: Subscription, error: HoldfastError) -> None:
        key = (subscription.topic, subscription.cursor)
        if self._subscriptions.get(key) is subscription:
            del self._subscriptions[key]
            if isinstance(error, NodeRemoved):
                # Nothing comes here any more: who is still connected would wait for it.
                self.close_with(error)
            else:
                self._refuse(error)

    def _unsubscribe(self, topic: str) -> None:
        found = [key for key in self._subscriptions if key[0] == topic]
        if not found:
            self._refuse(NotSubscribed(f"this connection has no subscription to {topic[:200]!a}"))
            return
        for key in found:
            self._subscriptions.pop(key).stop()
        self._replies.say(self._dialect.unsubscribed)

    def _stop_subscriptions(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.stop()
        self._subscriptions.clear()

    def _refuse(self, error: HoldfastError, count: int = 1) -> None:
        self._broker.stats.count_error(error)
        self._replies.say(text.error_line(error) * count)

    # --- lines that are not whole -------------------------------------------------------------------

    def _keep_half_line(self, data: bytes) -> None:
        if not self._half_line:
            self._half_line_since = self._loop.time()
        try:
            self._half_line.add(data)
        except Overloaded as error:
            self._cut_short(error)
            return
        if len(self._half_line) > self._line_bytes_max:
            self._cut_short(LineTooLong(f"a line may have {self._line_bytes_max} bytes; the connection is closed"))

    def _cut_short(self, error: HoldfastError) -> None:
        self._is_cut_short = True
        self.close_with(error)

    def close_if_half_line_since(self, deadline: float) -> None:
        """Do not hold a buffer for a client that began a line and fell silent."""
        if self._half_line and self._reading and self._half_line_since < deadline:
            self.close_with(HalfLineTimeout("a line was begun and not ended in time; the connection is closed"))

    def abort_if_stalled(self, now_s: float) -> None:
        """Room is short: what this client does not take is given up."""
        if self._writable is None:
            return
        untaken = untaken_bytes(self._transport)
        if untaken is not None and self._taking.has_stalled(untaken, now_s):
            self._broker.stats.count_error(Overloaded("a reader that took next to nothing was in the way of others"))
            self.abort()

    def close_with(self, error: HoldfastError) -> None:
        """Read nothing more, answer what was read before, say why, and close."""
        self._half_line.clear()
        self._stop_subscriptions()
        self._no_more_lines = True
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()
        self._take([Invalid(error)], 0)

    # --- flow ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        # What is dropped here counts as written, and so never as taken.
        self._written += len(data)
        if not self._transport.is_closing() and self._lingering is None:
            self._writing_bytes = len(data)
            self._transport.write(data)
        if not self._reading:
            self._resume_if_caught_up()
        if self._no_more_lines:
            self._close_if_finished()

    def written_bytes(self) -> int:
        return self._written

    def taken_bytes(self) -> int:
        """How many of the written bytes the client's machine has acknowledged.

        Of a connection that is lost, only what was known before: its buffer is empty then because it was
        thrown away.
        """
        if not self._transport.is_closing():
            untaken = untaken_bytes(self._transport)
            # Where nobody can tell any more, nothing counts as taken.
            self._taken = 0 if untaken is None else self._written - untaken
        return self._taken

    @property
    def is_full(self) -> bool:
        """Whether the client has to take something before more is written to it."""
        return self._writable is not None

    @property
    def piece_bytes(self) -> int:
        return piece_bytes(len(self._open_connections))

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    @property
    def waiting_replies(self) -> int:
        return len(self._replies)

    @property
    def is_settled(self) -> bool:
        """Whether every line that was received is answered."""
        return self._replies.is_empty and not self._opening and self._callback_changes.is_empty and not self._held

    def close(self) -> None:
        """Stop deliveries, send what is written, and close."""
        self._stop_subscriptions()
        self._transport.close()

    @property
    def _is_finished(self) -> bool:
        return self._no_more_lines and self.is_settled and not self._subscriptions

    def _close_if_finished(self) -> None:
        if not self._is_finished:
            return
        if self._is_cut_short and not self._transport.is_closing():
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        """Close once the client has stopped sending. Closed at once, its machine would drop the error unread."""
        if self._lingering is None:
            self._lingering = self._loop.call_later(_LINGER_S, self._transport.close)
            self._transport.write_eof()
            self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    def _is_behind(self, unacknowledged_bytes_max: int) -> bool:
        waiting_bytes = self._replies.waiting_bytes
        return self._writable is not None or waiting_bytes > unacknowledged_bytes_max or bool(self._held)

    def _pause_if_behind(self) -> None:
        is_behind = self._is_behind(TEXT_UNACKNOWLEDGED_BYTES_MAX)
        if self._reading and is_behind and not self._no_more_lines and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume_if_caught_up(self) -> None:
        is_behind = self._is_behind(TEXT_UNACKNOWLEDGED_BYTES_MAX // 2)
        if self._reading or is_behind or self._no_more_lines or self._transport.is_closing():
            return
        self._reading = True
        self._half_line_since = self._loop.time()  # nobody could end the line while nothing was read
        self._transport.resume_reading()


def _find_dead_peers(transport: asyncio.Transport) -> None:
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)

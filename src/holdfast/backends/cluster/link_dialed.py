"""The way to one peer: a connection that is made again and again, and what is sent through it.

After the HELLOs the caller sends an empty RAFT frame at once. It tells the other side that the caller is content
too; before that, a caller that reached the wrong node would push aside the right connection between the two.

What one turn of the loop queues leaves together: one RAFT frame (a new one after 4 MiB), then the requests.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Final

from holdfast.backends.cluster.link_connection import FrameConnection
from holdfast.backends.cluster.link_context import LinkContext, log
from holdfast.consensus.messages import Message
from holdfast.model.errors import BadPeerFrame, BadValue, Unavailable
from holdfast.model.limits import PEER_REQUESTS_MAX, PEER_WRITE_BUFFER_BYTES_MAX
from holdfast.wire import peer
from holdfast.wire.peer import Buffer, Hello
from holdfast.wire.peer_errors import decode_error
from holdfast.wire.peer_raft import RaftFrame

# A link that lived shorter than this does not count as a success: the next try waits longer.
_SHORT_LIFE_S: Final = 1.0
_REQUEST_ID_MASK: Final = (1 << 64) - 1


class DialedConnection(FrameConnection):
    """One try; `greeted` is done when the peer is content or the try is over, `ended` when it is over."""

    def __init__(self, context: LinkContext, node: str, address: str) -> None:
        super().__init__()
        self.hello: Hello | None = None
        self.is_refused = False
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._context = context
        self._node = node
        self._dialed_address = address
        self._frame = RaftFrame()
        # What waits for the end of this turn: full frames, then requests.
        self._full_frames: list[Buffer] = []
        self._requests: list[Buffer] = []
        self._queued_bytes = 0
        self._is_flush_due = False
        # The groups whose messages were dropped. While there are any, all messages are, until there is room.
        self._dropped_groups: set[int] = set()
        # Requests without an answer, those included for which nobody waits any more: the peer still works on them.
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._request_id = 0
        self._sent_at = 0.0
        self._keepalive: asyncio.TimerHandle | None = None

    @property
    def is_up(self) -> bool:
        return self.hello is not None and not self._is_closed

    @property
    def _is_choked(self) -> bool:
        return bool(self._dropped_groups)

    # --- getting to know each other -----------------------------------------------------------------------

    def opened(self) -> None:
        self.set_patience(self._context.timing.silence_s)
        self.write([peer.hello_frame(self._context.hello())])

    def bytes_received(self) -> None:
        if self.hello is not None:
            self._context.events.on_heard(self._node)

    def frame_received(self, kind: int, body: memoryview) -> bool:
        if kind == peer.REFUSAL:
            self._refused(peer.decode_refusal(body))
        elif self.hello is None:
            if kind != peer.HELLO:
                raise BadPeerFrame("the first frame is not a HELLO")
            self._greet(peer.decode_hello(body))
        elif kind == peer.REPLY:
            self._answered(*peer.decode_reply(body))
            return True
        else:
            raise BadPeerFrame(f"a frame of kind {kind} on a connection where only replies come back")
        return False

    def _greet(self, hello: Hello) -> None:
        reason = self._context.refusal(hello)
        if reason is None and hello.node != self._node:
            own = self._context.hello().node
            reason = f"{own} looks for {self._node} at {self._dialed_address}, but {hello.node} answers"
        if reason is not None:
            self.is_refused = True
            self._trouble("peer_refused", reason)
            self.end(reason, peer.refusal_frame(reason))
            return
        self.hello = hello
        self.agree(self._context.version_with(hello))
        self.trust()
        self._say_alive()
        self._context.trouble_is_over(self._node)
        log.info("peer_up", peer=self._node, address=self._dialed_address, protocol=self.version)
        self.greeted.set_result(None)
        self._context.events.on_up(hello)

    def _refused(self, reason: str) -> None:
        self.is_refused = True
        self._trouble("peer_refused_us", reason)
        self.end(f"refused: {reason}")

    def bad_frame(self, error: BadPeerFrame) -> None:
        self.is_refused = True
        self._trouble("peer_refused", error.message)
        self.end(error.message, peer.refusal_frame(error.message))

    def _trouble(self, event: str, reason: str) -> None:
        self._context.trouble(self._node, event, peer=self._node, address=self._dialed_address, reason=reason)

    # --- the end --------------------------------------------------------------------------------------------

    def lost(self, error: Exception | None) -> None:
        self._finish(f"connection lost: {error}" if error is not None else "connection closed by the peer")

    def end(self, reason: str, last_words: bytes = b"") -> None:
        """Close it; what was under way is lost."""
        if not self._is_closed:
            self.close(last_words)
            self._finish(reason)

    def _finish(self, reason: str) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Unavailable(f"the link to {self._node} broke: {reason}"))
        self._frame = RaftFrame()
        self._full_frames, self._requests, self._queued_bytes = [], [], 0
        for done in (self.greeted, self.ended):
            if not done.done():
                done.set_result(None)
        if self.hello is not None:
            log.info("peer_down", peer=self._node, address=self._dialed_address, reason=reason)
            self._context.events.on_down(self._node)

    # --- sending ----------------------------------------------------------------------------------------------

    def send(self, group: int, message: Message) -> None:
        if self._is_choked or self.unsent_bytes + self._queued_bytes >= PEER_WRITE_BUFFER_BYTES_MAX:
            self._dropped_groups.add(group)
            self._context.dropped_messages += 1
            return
        if self._frame.is_full:
            self._full_frames += self._frame.take(self.version)
        self._queued_bytes += self._frame.add(group, message)
        self._flush_soon()

    def request(self, method: int, body: Buffer) -> asyncio.Future[memoryview]:
        if len(self._waiting) >= PEER_REQUESTS_MAX:
            raise Unavailable(f"{self._node} has {PEER_REQUESTS_MAX} requests to answer already")
        if self.unsent_bytes + self._queued_bytes >= PEER_WRITE_BUFFER_BYTES_MAX:
            raise Unavailable(f"{self._node} reads too slowly: {self.unsent_bytes} bytes wait for it")
        number = self._request_id = (self._request_id + 1) & _REQUEST_ID_MASK
        self._requests += peer.request_frame(number, method, body, self.version)
        self._queued_bytes += len(body)
        future = self._waiting[number] = self._loop.create_future()
        self._flush_soon()
        return future

    def _answered(self, number: int, status: int, body: memoryview) -> None:
        future = self._waiting.pop(number, None)
        if future is None:
            raise BadPeerFrame(f"a REPLY to request {number}, which waits for none")
        if future.done():
            return  # too late: nobody waits any more
        if status == peer.OK:
            future.set_result(body)
        else:
            future.set_exception(decode_error(body))

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self.is_up:
            return
        buffers = self._full_frames
        if self._frame.body_bytes:
            buffers += self._frame.take(self.version)
        buffers += self._requests
        self._full_frames, self._requests, self._queued_bytes = [], [], 0
        self._sent_at = self._loop.time()
        self.write(buffers)
        if self._is_choked:
            self._loop.call_soon(self._unchoke)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_choked:
            # Not from within the transport: it is about to write.
            self._loop.call_soon(self._unchoke)

    def _unchoke(self) -> None:
        if self._is_choked and self.is_up and self.unsent_bytes <= PEER_WRITE_BUFFER_BYTES_MAX // 2:
            groups, self._dropped_groups = self._dropped_groups, set()
            self._context.events.on_dropped(self._node, groups)

    def _say_alive(self) -> None:
        """Send an empty frame where nothing was sent for long enough, and look again when that may be so."""
        self._unchoke()
        now = self._loop.time()
        keepalive_s = self._context.timing.keepalive_s
        idle_s = now - self._sent_at
        # A timer may fire a little early.
        if idle_s >= 0.95 * keepalive_s:
            # Where bytes wait, they tell as much; more of them would only fill the buffer.
            if not self.unsent_bytes:
                self.write(RaftFrame().take(self.version))
            self._sent_at, idle_s = now, 0.0
        self._keepalive = self._loop.call_later(keepalive_s - idle_s, self._say_alive)


class Link:
    """Keeps one peer connected, for as long as it is wanted."""

    def __init__(self, context: LinkContext, node: str, addresses: tuple[str, ...]) -> None:
        self.node = node
        self.addresses = addresses
        # The one that is used, or tried, now.
        self.address = addresses[0]
        self._context = context
        self._connection: DialedConnection | None = None
        self._hurry = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_connected(), name=f"link to {node}")
        self._task.add_done_callback(self._task_ended)

    @property
    def up(self) -> DialedConnection | None:
        """The connection, if the peer can be reached now."""
        connection = self._connection
        return connection if connection is not None and connection.is_up else None

    def hurry(self) -> None:
        """The peer was heard of: do not wait before the next try."""
        self._hurry.set()

    def drop(self, reason: str) -> None:
        """Whoever was at the other end is gone, or soon will be; connect anew.

        If it is still there, it hears that this says nothing about its own connection. Otherwise each side
        would follow the other in dropping what was just made, for ever where that takes about as long as the way
        between them.
        """
        connection = self.up
        if connection is not None:
            connection.end(reason, b"" if connection.unsent_bytes else peer.goodbye_frame(connection.version))

    async def _keep_connected(self) -> None:
        timing = self._context.timing
        loop = asyncio.get_running_loop()
        failures = short_lives = 0
        while True:
            began = loop.time()
            connection = self._connection = DialedConnection(self._context, self.node, self.address)
            try:
                await self._connect(connection)
            finally:
                connection.end("no longer wanted")
            was_up = connection.hello is not None
            short_lives = 0 if was_up and loop.time() - began >= _SHORT_LIFE_S else short_lives + was_up
            # Who was there just now is looked for at once, however long it had taken to find.
            failures = short_lives if was_up else failures + 1
            retry_s = min(timing.retry_min_s * 2 ** min(max(failures - 1, 0), 16), timing.retry_max_s)
            if connection.is_refused:
                retry_s = timing.refused_retry_s
            has_another = not was_up and self._try_next_address()
            if has_another:
                retry_s = timing.retry_min_s
            await self._pause(retry_s * random.uniform(0.5, 1.0))

    def _try_next_address(self) -> bool:
        """Whether there is one that was not tried since the first."""
        place = self.addresses.index(self.address) + 1 if self.address in self.addresses else 0
        self.address = self.addresses[place % len(self.addresses)]
        return place < len(self.addresses)

    async def _connect(self, connection: DialedConnection) -> None:
        """Returns when the connection has failed or is lost."""
        hello_s = self._context.timing.hello_s
        host, port = split_address(self.address)
        try:
            async with asyncio.timeout(hello_s):
                await asyncio.get_running_loop().create_connection(lambda: connection, host, port)
                await connection.greeted
        except TimeoutError:
            self._unreachable(f"no HELLO within {hello_s:g} s")
        except (OSError, UnicodeError) as error:
            number = getattr(error, "errno", None) or 0
            # Names that cannot be looked up have numbers of their own, below zero.
            self._unreachable(os.strerror(number) if number > 0 else str(error))
            if isinstance(error, ConnectionRefusedError):
                self._context.events.on_nobody_there(self.node)
        else:
            if not connection.is_refused:
                self._hurry.clear()
            if connection.hello is None and not connection.is_refused:
                self._unreachable("it closed the connection without a word")
            await connection.ended

    def _unreachable(self, reason: str) -> None:
        self._context.trouble(self.node, "peer_unreachable", peer=self.node, address=self.address, reason=reason)

    async def _pause(self, seconds: float) -> None:
        """One that has refused this node and then connects itself has changed its mind."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return  # nobody hurried us
        self._hurry.clear()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("link_failed", peer=self.node, exc_info=error)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise BadValue(f"the address of a peer is host:port, not {address[:200]!a}")
    return host.removeprefix("[").removesuffix("]"), int(port)

"""A connection that a peer has made: its messages and requests come in, only replies go out.

stranger   nothing is known; a HELLO must come in time, and is checked
greeted    our own HELLO was sent; the caller may still find that this is not whom it looked for
known      another frame came: the caller is content, and this is the connection that counts from now on
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from holdfast.backends.cluster.link_connection import FrameConnection
from holdfast.backends.cluster.link_context import LinkContext, log
from holdfast.backends.cluster.peer_book import with_host
from holdfast.consensus.messages import Append
from holdfast.model.errors import BadPeerFrame, HoldfastError, Internal, TooLarge
from holdfast.model.limits import PEER_FRAME_BYTES_MAX, PEER_REQUESTS_MAX
from holdfast.wire import peer
from holdfast.wire.peer import Buffer, Hello
from holdfast.wire.peer_errors import encode_error
from holdfast.wire.peer_raft import decode_raft


class Door(Protocol):
    """Where connections come in."""

    def came(self, connection: AcceptedConnection) -> bool:
        """Whether there is room for one more stranger."""

    def refusal(self, hello: Hello) -> str | None:
        """Why the peer is not wanted."""

    def is_known(self, connection: AcceptedConnection, hello: Hello) -> None:
        """It takes the place of the one that peer had before."""

    def left(self, connection: AcceptedConnection, hello: Hello | None, reason: str) -> None:
        """It is over; with a reason if that says something about the peer, else empty."""


class AcceptedConnection(FrameConnection):
    """What one peer sends."""

    def __init__(self, context: LinkContext, door: Door) -> None:
        super().__init__()
        self.heard_at = self._loop.time()
        self._context = context
        self._door = door
        self._hello: Hello | None = None
        self._is_known = False
        self._deadline: asyncio.TimerHandle | None = None
        self.answering: set[asyncio.Task[None]] = set()
        self._answering_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_reading(self) -> bool:
        return self._is_reading

    # --- getting to know each other ---------------------------------------------------------------------------

    def opened(self) -> None:
        if not self._door.came(self):
            self.close()
            return
        self._deadline = self._loop.call_later(self._context.timing.hello_s, self._too_slow)

    def _too_slow(self) -> None:
        self._turn_away(f"no HELLO within {self._context.timing.hello_s:g} s")

    def bytes_received(self) -> None:
        self.heard_at = self._loop.time()
        if self._is_known and self._hello is not None:
            self._context.events.on_heard(self._hello.node)

    def frame_received(self, kind: int, body: memoryview) -> bool:
        if kind == peer.REFUSAL:
            self._refused(peer.decode_refusal(body))
            return False
        hello = self._hello
        if hello is None:
            if kind != peer.HELLO:
                raise BadPeerFrame("the first frame is not a HELLO")
            # Who listens everywhere has not said where: this is where it comes from.
            self._greet(with_host(peer.decode_hello(body), self.address.rpartition(":")[0]))
            return False
        if not self._is_known:
            self._become_known(hello)
        if kind == peer.RAFT:
            return self._take_messages(hello, body)
        if kind == peer.REQUEST:
            self._take_request(hello, *peer.decode_request(body))
            return True
        if kind == peer.GOODBYE:
            self.end("")
            return False
        raise BadPeerFrame(f"a frame of kind {kind} from a caller")

    def _greet(self, hello: Hello) -> None:
        reason = self._door.refusal(hello)
        if reason is not None:
            self._hello = hello
            self._turn_away(reason)
            return
        self._hello = hello
        self.agree(self._context.version_with(hello))
        self.write([peer.hello_frame(self._context.hello())])

    def _become_known(self, hello: Hello) -> None:
        self._is_known = True
        self.trust()
        if self._deadline is not None:
            self._deadline.cancel()
        self._context.trouble_is_over(self._where())
        self._door.is_known(self, hello)
        self._context.events.on_heard(hello.node)

    def _where(self) -> str:
        """Of whom a trouble is remembered: a caller's port is another one each time."""
        return f"from {self.address.rpartition(':')[0] if self._hello is None else self._hello.node}"

    def _turn_away(self, reason: str) -> None:
        self._trouble("peer_refused", reason)
        self.end("refused" if self._is_known else "", peer.refusal_frame(reason))

    def _refused(self, reason: str) -> None:
        self._trouble("peer_refused_us", reason)
        self.end("it refused this node" if self._is_known else "")

    def bad_frame(self, error: BadPeerFrame) -> None:
        self._turn_away(error.message)

    def _trouble(self, event: str, reason: str) -> None:
        name = None if self._hello is None else self._hello.node
        self._context.trouble(self._where(), event, peer=name, address=self.address, reason=reason)

    # --- the end ------------------------------------------------------------------------------------------------

    def lost(self, error: Exception | None) -> None:
        self._finish("connection closed by the peer" if error is None else f"connection lost: {error}")

    def silent(self) -> None:
        """Nothing came for too long."""
        self.end(f"silent for {self._context.timing.silence_s:g} s")

    def replaced(self) -> None:
        """The peer has made a new connection."""
        self.end("")

    def end(self, reason: str, last_words: bytes = b"") -> None:
        """Close it; the peer connects anew if it wants to."""
        if not self._is_closed:
            self.close(last_words)
            self._finish(reason)

    def _finish(self, reason: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        for task in self.answering:
            task.cancel()
        self._door.left(self, self._hello if self._is_known else None, reason)

    async def stopped(self) -> None:
        """Close at once, and wait until no request is being answered."""
        answering = list(self.answering)
        self.end("")
        await asyncio.gather(*answering, return_exceptions=True)

    # --- what comes ---------------------------------------------------------------------------------------------

    def _take_messages(self, hello: Hello, body: memoryview) -> bool:
        if not body:
            return False
        messages = decode_raft(body)
        # Before they are handed on: whoever gets them may do with the list what it likes.
        holds_slices = any(type(message) is Append and message.entries for _, message in messages)
        self._context.events.on_messages(hello, messages)
        return holds_slices

    def _take_request(self, hello: Hello, number: int, method: int, body: memoryview) -> None:
        self._answering_bytes += len(body)
        task = self._loop.create_task(self._answer(hello.node, number, method, body))
        self.answering.add(task)
        task.add_done_callback(self._answered)
        self._read_if_able()

    async def _answer(self, node: str, number: int, method: int, body: memoryview) -> None:
        size = len(body)
        try:
            frame = await self._reply(node, number, method, body)
            del body
            # A peer that does not read its replies gets no more of them; then it gets no more requests in either.
            await self._writable.wait()
            self.write(frame)
        finally:
            self._answering_bytes -= size

    async def _reply(self, node: str, number: int, method: int, body: memoryview) -> list[Buffer]:
        error: HoldfastError
        try:
            answer = await self._context.events.on_request(node, method, body)
            try:
                return peer.reply_frame(number, peer.OK, answer, self.version)
            except TooLarge as too_large:
                # The request is not too large: it is done.
                error = Internal(f"{self._context.hello().node} has an answer that is too large: {too_large.message}")
        except HoldfastError as refused:
            error = refused
        except Exception:  # noqa: BLE001 - whatever it is, the peer waits for an answer
            log.exception("peer_request_failed", peer=node, method=method)
            error = Internal(f"{self._context.hello().node} failed to answer; its log says how")
        return peer.reply_frame(number, peer.REFUSED, encode_error(error), self.version)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self.answering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("peer_reply_failed", exc_info=error)
        self._read_if_able()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writable.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writable.set()

    def _read_if_able(self) -> None:
        is_full = len(self.answering) >= PEER_REQUESTS_MAX or self._answering_bytes >= PEER_FRAME_BYTES_MAX
        if not is_full:
            # The time while nothing was read was no silence of the peer.
            self.heard_at = self._loop.time() if not self._is_reading else self.heard_at
        self.set_reading(not is_full)

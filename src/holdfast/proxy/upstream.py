"""One HTTP/1.1 connection to a node: a request out, its answer in, piece by piece and no faster than it is taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import httptools

from holdfast.model.limits import KIB, MIB

# What may wait here for whoever takes the answer, before the node is not read from any more.
_WAITING_BYTES_MAX: Final = 256 * KIB
# An answer that is held whole: a page of messages is 8 MiB and one message more.
ANSWER_BYTES_MAX: Final = 32 * MIB

Headers = list[tuple[bytes, bytes]]


class NodeFailed(Exception):
    """A node did not answer. `sent`: it may have done what it was asked."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Head(NamedTuple):
    status: int
    headers: Headers


class Answer(NamedTuple):
    status: int
    headers: Headers
    body: bytes


OnAnswer = Callable[[Answer | NodeFailed], None]


class NodeConnection(asyncio.Protocol):
    """Carries one exchange at a time; whatever goes wrong ends it, and so does what comes between two of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head: asyncio.Future[Head] | None = None
        # Whoever wants an answer whole is called with it, or with why there is none.
        self._on_answer: OnAnswer | None = None
        self._status = 0
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_whole = True
        self._is_without_body = False
        self._changed: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._failure: NodeFailed | None = None
        self._is_paused = False
        self.keeps_alive = True

    # --- what the transport calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(NodeFailed(f"hung up: {exc}" if exc else "hung up before it answered", sent=True))

    def data_received(self, data: bytes) -> None:
        if self._is_whole:
            self._unasked()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(NodeFailed(f"sent what is not HTTP: {error}", sent=True))
            self.abort()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _unasked(self) -> None:
        """Whoever asks next must not take for an answer what was there before."""
        self._fail(NodeFailed("sent what nobody had asked for", sent=True))
        self.abort()

    def _fail(self, failure: NodeFailed) -> None:
        if self._failure is None:
            self._failure = failure
        for future in (self._head, self._changed, self._writable):
            if future is not None and not future.done():
                future.set_exception(self._failure)
                future.exception()
        self._settle(self._failure)

    def _settle(self, answer: Answer | NodeFailed) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(answer)

    # --- what the parser calls ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = []
        if self._is_whole:
            self._unasked()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._status = status = self._parser.get_status_code()
        if status < 200:
            return  # "100 Continue": the answer follows
        self.keeps_alive = self._parser.should_keep_alive()
        if self._head is not None and not self._head.done():
            self._head.set_result(Head(status, self._headers))
        if self._is_without_body:
            # The parser waits for a body that is announced and never comes.
            self.keeps_alive = False
            self._end()

    def on_body(self, body: bytes) -> None:
        if self._is_whole:
            return
        self._pieces.append(body)
        self._waiting_bytes += len(body)
        if self._on_answer is not None:
            if self._waiting_bytes > ANSWER_BYTES_MAX:
                self._fail(NodeFailed(f"sent an answer of over {ANSWER_BYTES_MAX} bytes", sent=True))
                self.abort()
            return
        if self._waiting_bytes > _WAITING_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def on_message_complete(self) -> None:
        if self._status < 200:
            return
        if self._on_answer is not None:
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._waiting_bytes = 0
            self._is_whole = True
            self._settle(Answer(self._status, self._headers, body))
            return
        self._end()

    def _end(self) -> None:
        self._is_whole = True
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # --- one exchange -------------------------------------------------------------------------------

    @property
    def is_reusable(self) -> bool:
        return (
            self._failure is None
            and self._is_whole
            and self.keeps_alive
            and not self._pieces
            and not self._transport.is_closing()
        )

    def begin(self, data: bytes, *, is_without_body: bool = False) -> asyncio.Future[Head]:
        """Send the head of a request, and its body as far as it is there; the answer's head will come."""
        self._is_without_body = is_without_body
        self._is_whole = False
        head: asyncio.Future[Head] = self._loop.create_future()
        self._head = head
        if self._failure is not None:
            head.set_exception(NodeFailed("hung up", sent=False))
        else:
            self._transport.write(data)
        return head

    async def write(self, data: bytes) -> None:
        """More of the request's body; waits while the node does not take it."""
        if self._failure is not None:
            raise self._failure
        self._transport.write(data)
        if self._writable is not None:
            await self._writable

    async def piece(self) -> bytes | None:
        """The next piece of the answer's body; `None` behind the last."""
        while not self._pieces:
            if self._is_whole:
                return None
            if self._failure is not None:
                raise self._failure
            self._changed = self._loop.create_future()
            await self._changed
        piece = b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
        self._pieces.clear()
        self._waiting_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    def ask(self, data: bytes, on_answer: OnAnswer) -> None:
        """A whole exchange: calls back once, at once where the node has hung up."""
        self._is_without_body = self._is_whole = False
        self._head = None
        self._on_answer = on_answer
        if self._failure is not None:
            self._settle(NodeFailed("hung up", sent=False))
        else:
            self._transport.write(data)

    async def answer(self, data: bytes) -> Answer:
        """The same, for whoever waits. Raises `NodeFailed`."""
        done: asyncio.Future[Answer | NodeFailed] = self._loop.create_future()
        self.ask(data, lambda answer: None if done.done() else done.set_result(answer))
        answer = await done
        if isinstance(answer, NodeFailed):
            raise answer
        return answer

    def time_out(self) -> None:
        """The answer is not waited for any longer."""
        self._fail(NodeFailed("no answer in time", sent=True))
        self.abort()

    def abort(self) -> None:
        self._transport.abort()

"""Replies of one connection, in the order of its lines, though they become ready in any order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.broker.results import failure
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import Offset
from holdfast.wire.text import error_line

# What a place costs besides the request: a flood of tiny lines behind a slow disk must stop somewhere, too.
_PLACE_BYTES = 512


def _to_nobody(data: bytes) -> None:
    pass


class Reply:
    """A place in the row; `data` is set once it is known what to say."""

    __slots__ = ("data", "size")

    def __init__(self, size: int) -> None:
        self.data: bytes | None = None
        self.size = size


class Replies:
    """Sends what is ready, up to the first that is not."""

    def __init__(self, write: Callable[[bytes], None], on_error: Callable[[HoldfastError], None]) -> None:
        self._write = write
        self.on_error = on_error
        self._row: deque[Reply] = deque()
        self.waiting_bytes = 0

    def end(self) -> None:
        """Nobody listens any more: the connection is not held by what is still to be answered."""
        self._write = _to_nobody

    def __len__(self) -> int:
        """Replies that wait, either for what they answer or for one before them."""
        return len(self._row)

    @property
    def is_empty(self) -> bool:
        return not self._row

    def say(self, data: bytes) -> None:
        """A reply that is known at once."""
        if self._row:
            self.set(self.place(0), data)
        elif data:
            self._write(data)

    def place(self, size: int) -> Reply:
        """Keep a place for a reply to `size` bytes of request."""
        reply = Reply(size + _PLACE_BYTES)
        self._row.append(reply)
        self.waiting_bytes += reply.size
        return reply

    def set(self, reply: Reply, data: bytes) -> None:
        """Fill a place; send it and what is ready behind it, if its turn has come."""
        reply.data = data
        if self._row[0] is not reply:
            return
        ready = []
        while self._row and (data_ready := self._row[0].data) is not None:
            ready.append(data_ready)
            self.waiting_bytes -= self._row.popleft().size
        self._write(b"".join(ready))

    def fail(self, reply: Reply, error: BaseException, count: int = 1) -> None:
        """Fill a place with an error for each line; a bug of ours is raised, not told."""
        if not isinstance(error, HoldfastError):
            raise error
        self.on_error(error)
        self.set(reply, error_line(error) * count)

    def after(self, stored: asyncio.Future[Any], line: bytes, *, count: int, size: int) -> None:
        """Answer `count` lines with `line` each once `stored` is done, or with its error."""
        if stored.done() and not self._row and not stored.cancelled() and stored.exception() is None:
            self._write(line * count)
            return
        reply = self.place(size)

        def settle(done: asyncio.Future[Any]) -> None:
            error = failure(done)
            if error is None:
                self.set(reply, line * count)
            else:
                self.fail(reply, error, count)

        if stored.done():
            settle(stored)
        else:
            stored.add_done_callback(settle)

    def after_bytes(self, answered: asyncio.Future[bytes], size: int) -> None:
        """Say what a future gives, once it does; nothing if it is given up on."""
        reply = self.place(size)
        answered.add_done_callback(lambda done: self.set(reply, b"" if done.cancelled() else done.result()))


class PublishReply:
    """The reply to publishes to several topics: a line for each, in order, once all appends are settled."""

    def __init__(self, replies: Replies, published: bytes, order: list[bytes], topics: int, size: int) -> None:
        self._replies = replies
        self._published = published
        self._order = order
        self._open = topics
        self._reply = replies.place(size)
        self._errors: dict[bytes, HoldfastError] = {}

    def refused(self, topic: bytes, error: HoldfastError) -> None:
        self._errors[topic] = error
        self._settled()

    def wait_for(self, topic: bytes, appended: asyncio.Future[Offset]) -> None:
        def settle(done: asyncio.Future[Offset]) -> None:
            error = failure(done)
            if isinstance(error, HoldfastError):
                self._errors[topic] = error
            elif error is not None:
                raise error
            self._settled()

        if appended.done():
            settle(appended)
        else:
            appended.add_done_callback(settle)

    def _settled(self) -> None:
        self._open -= 1
        if self._open:
            return
        for error in self._errors.values():
            self._replies.on_error(error)
        lines = {topic: error_line(error) for topic, error in self._errors.items()}
        self._replies.set(self._reply, b"".join(lines.get(topic, self._published) for topic in self._order))

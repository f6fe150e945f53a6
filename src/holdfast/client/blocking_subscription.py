"""Subscriptions without `await`: messages cross from the loop's thread many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType

from holdfast.client.errors import ClientClosed
from holdfast.client.loop_thread import LoopThread
from holdfast.client.message import Message, MessageFields
from holdfast.client.subscription import Subscription

# Crossing from thread to thread costs far more than a message does.
_TAKE_MESSAGES_MAX = 1000


class BlockingMessage(MessageFields):
    """A message whose `ack` blocks until the broker has stored it."""

    __slots__ = ("_message", "_thread")

    def __init__(self, message: Message, thread: LoopThread) -> None:
        super().__init__(message.topic, message.partition, message.stored)
        self._message = message
        self._thread = thread

    def ack(self) -> bool:
        """As `Message.ack`: `True` once stored, `False` while an earlier message is open."""
        return self._thread.run(self._message.ack())

    def ack_soon(self) -> bool:
        """As `Message.ack_soon`: stored in the background; closing the subscription waits for it."""
        return self._thread.run(self._ack_soon())

    async def _ack_soon(self) -> bool:
        return self._message.ack_soon()


class BlockingSubscription:
    """Messages of one topic. Iterate over it; leaving `with`, or closing it or its client, ends it."""

    def __init__(self, subscription: Subscription, thread: LoopThread) -> None:
        self._subscription = subscription
        self._thread = thread
        self._ready: deque[Message] = deque()
        self._handed_out: dict[int, int] = {}
        self._opened = False
        self._closed = False

    def __enter__(self) -> BlockingSubscription:
        self._open_once()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._thread.run(self._subscription.close(quietly=error is not None))

    def __iter__(self) -> Iterator[BlockingMessage]:
        while True:
            try:
                message = self.get()
            except ClientClosed:
                return
            if message is not None:
                yield message

    def get(self, timeout_s: float | None = None) -> BlockingMessage | None:
        """The next message, or `None` if there is none within `timeout_s`."""
        messages = self.take(1, timeout_s)
        return messages[0] if messages else None

    def take(self, messages_max: int = 1000, timeout_s: float | None = None) -> list[BlockingMessage]:
        """The next messages, at least one, at most `messages_max`; none if none came within `timeout_s`."""
        if self._closed:
            raise ClientClosed("the subscription is closed")
        self._open_once()
        if not self._ready:
            self._ready.extend(self._thread.run(self._subscription.take(_TAKE_MESSAGES_MAX, timeout_s)))
        return [self._hand_out() for _ in range(min(messages_max, len(self._ready)))]

    def ack_all(self) -> None:
        """Say that everything handed out so far is done; returns once the broker has stored that."""
        self._thread.run(self._subscription.ack_below(self._handed_out))

    def close(self) -> None:
        """Send what was acknowledged and stop."""
        self._closed = True
        self._thread.run(self._subscription.close())

    def _open_once(self) -> None:
        if not self._opened:
            self._thread.run(self._subscription.open())
            self._opened = True

    def _hand_out(self) -> BlockingMessage:
        message = self._ready.popleft()
        self._handed_out[message.partition] = message.offset + 1
        return BlockingMessage(message, self._thread)

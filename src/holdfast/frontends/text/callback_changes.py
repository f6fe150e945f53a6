"""Callbacks that a text connection makes and removes: a matter of the cluster, and not of this connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from holdfast.broker.callbacks import Callbacks
from holdfast.frontends.text.replies import Replies, Reply
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import TEXT_UNACKNOWLEDGED_BYTES_MAX
from holdfast.wire.text import Command, Dialect

# As such a line is counted until it is answered: each is a task, and so there are a thousand of them at most.
_CHANGE_BYTES: Final = TEXT_UNACKNOWLEDGED_BYTES_MAX // 1024


def _nothing() -> None:
    pass


class CallbackChanges:
    """Each begins when the one before it is done; those that were begun are finished whoever hangs up."""

    def __init__(self, callbacks: Callbacks, dialect: Dialect, replies: Replies, on_done: Callable[[], None]) -> None:
        self._callbacks = callbacks
        self._dialect = dialect
        self._replies = replies
        self._on_done = on_done
        self._under_way: deque[asyncio.Task[None]] = deque()

    def end(self) -> None:
        """What was begun is finished; the connection is not held until then."""
        self._on_done = _nothing

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    def take(self, item: Command) -> None:
        topic, address, *rest = (field.decode("utf-8", "replace") for field in item.fields)
        change: Callable[[], Coroutine[Any, Any, object]]
        if item.name == b"SUBSCRIBE_CALLBACK":
            name = rest[0] if rest and rest[0] else None
            change, answer = partial(self._callbacks.subscribe, topic, address, name=name), self._dialect.subscribed
        else:
            change, answer = partial(self._callbacks.unsubscribe_address, topic, address), self._dialect.unsubscribed
        before = self._under_way[-1] if self._under_way else None
        reply = self._replies.place(_CHANGE_BYTES)
        task = asyncio.get_running_loop().create_task(self._answer(before, change, answer, reply))
        self._under_way.append(task)
        task.add_done_callback(self._changed)

    def _changed(self, task: asyncio.Task[None]) -> None:
        self._under_way.remove(task)
        self._on_done()

    async def _answer(
        self,
        before: asyncio.Task[None] | None,
        change: Callable[[], Coroutine[Any, Any, object]],
        answer: bytes,
        reply: Reply,
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            await change()
        except HoldfastError as error:
            self._replies.fail(reply, error)
        else:
            self._replies.set(reply, answer)

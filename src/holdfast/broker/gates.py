"""Publishes that must wait for something to be made ready, without losing their order.

A topic that is being created, or whose dedupe windows are being read from the log, has a closed gate. What
is published meanwhile queues behind it and runs, in order and in one go, when it opens; nothing that comes
later can overtake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.broker.results import then
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.ids import TopicName

T = TypeVar("T")
Step = Callable[[HoldfastError | None], None]


class Gates:
    """At most one closed gate for a topic."""

    def __init__(self) -> None:
        self._queued: dict[TopicName, list[Step]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_closed(self, topic: TopicName) -> bool:
        return topic in self._queued

    def close_while(self, topic: TopicName, prepare: Callable[[], Awaitable[object]]) -> None:
        """Close the gate of `topic`, run `prepare`, and open it again."""
        assert topic not in self._queued, f"the gate of {topic} is closed already"
        self._queued[topic] = []
        task = asyncio.get_running_loop().create_task(self._open_after(topic, prepare))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def behind(self, topic: TopicName, start: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Run `start` when the gate opens; the future gives what its future gives."""
        promise: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def step(error: HoldfastError | None) -> None:
            if promise.done():
                return
            if error is not None:
                promise.set_exception(error)
                return
            try:
                then(start(), promise, lambda result: result)
            except HoldfastError as refused:
                promise.set_exception(refused)

        self._queued[topic].append(step)
        return promise

    async def _open_after(self, topic: TopicName, prepare: Callable[[], Awaitable[object]]) -> None:
        error: HoldfastError | None = Unavailable(f"the broker stopped before topic {topic} was ready")
        try:
            await prepare()
            error = None
        except HoldfastError as caught:
            error = caught
        finally:
            # One turn of the loop runs all steps: whatever is published next finds the gate open.
            for step in self._queued.pop(topic):
                step(error)

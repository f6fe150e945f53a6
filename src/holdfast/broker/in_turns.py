"""Large requests, worked on in turns with everybody else on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.broker.turns import Turns
from holdfast.model.pauses import Paused

T = TypeVar("T")


class InTurns:
    """What is under way is finished, also where nobody waits for it any more."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._under_way: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return asyncio.shield(task)

    async def run(self, work: Paused[T]) -> T:
        """The result of work; at each of its pauses others go on."""
        try:
            while True:
                await self._turns.take_for_request()
                next(work)
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            work.close()

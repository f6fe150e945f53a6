"""Who waits for what a replica shows: publishers for their appends, readers for more, some for one entry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.broker.backend import Unwatch
from holdfast.broker.results import refuse
from holdfast.model.errors import HoldfastError, LeaderChanged, NotStored, OutcomeUnknown
from holdfast.model.ids import LogIndex, Offset


class Audience:
    """Of one replica."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._appends: deque[tuple[LogIndex, Offset, asyncio.Future[Offset]]] = deque()
        self._entries: list[tuple[LogIndex, asyncio.Future[None]]] = []
        self._watchers: dict[object, Callable[[], None]] = {}

    def wait_for(self, base_offset: Offset, index: LogIndex) -> asyncio.Future[Offset]:
        """Gives `base_offset` once `index` is shown; asked for in the order of the entries."""
        appended: asyncio.Future[Offset] = self._loop.create_future()
        self._appends.append((index, base_offset, appended))
        return appended

    async def until_shown(self, index: LogIndex) -> None:
        shown: asyncio.Future[None] = self._loop.create_future()
        self._entries.append((index, shown))
        await shown

    def watch(self, on_commit: Callable[[], None]) -> Unwatch:
        token = object()
        self._watchers[token] = on_commit
        return lambda: self._forget(token)

    def _forget(self, token: object) -> None:
        self._watchers.pop(token, None)

    def shown(self, index: LogIndex) -> None:
        """Everything up to `index` is: the one place where appends are acknowledged."""
        appends = self._appends
        while appends and appends[0][0] <= index:
            _, base_offset, appended = appends.popleft()
            if not appended.done():
                appended.set_result(base_offset)
        if self._entries:
            for awaited, shown in self._entries:
                if awaited <= index and not shown.done():
                    shown.set_result(None)
            self._entries = [waiter for waiter in self._entries if not waiter[1].done()]

    def notify(self) -> None:
        """There is more to read, or there will be nothing any more."""
        for on_commit in list(self._watchers.values()):
            on_commit()

    def refuse_appends(self, error: OutcomeUnknown) -> None:
        """Nothing that waits will be acknowledged. It is in the log, so nobody knows what becomes of it."""
        self._refuse_appends(error)

    def _refuse_appends(self, error: HoldfastError) -> None:
        while self._appends:
            refuse(self._appends.popleft()[2], error)

    def close(self, error: HoldfastError) -> None:
        """Nobody is answered any more. What was appended is in the log, unless the log is gone with its topic."""
        self._refuse_appends(LeaderChanged(error.message) if isinstance(error, NotStored) else error)
        for _, shown in self._entries:
            refuse(shown, error)
        self._entries.clear()
        self.notify()

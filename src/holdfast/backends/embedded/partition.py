"""One partition of the embedded backend: its log, who waits for a sync, and who watches its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.broker.backend import Unwatch
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import Offset, PartitionId, Term
from holdfast.model.topics import PartitionDescription
from holdfast.storage.log import PartitionLog

# A single broker never changes its leader.
_TERM = Term(1)


class Partition:
    """Commits what is durable: `end` is the commit mark that readers may read up to."""

    def __init__(self, partition_id: PartitionId, log: PartitionLog) -> None:
        self.id = partition_id
        self.log = log
        self.end = log.synced_end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Offset, Offset, asyncio.Future[Offset]]] = deque()
        self._watchers: dict[object, Callable[[], None]] = {}

    def append(self, batch: bytearray) -> asyncio.Future[Offset]:
        """Write a batch; the future is done once `commit` has passed it."""
        base_offset = self.log.append(batch, _TERM)
        appended: asyncio.Future[Offset] = self._loop.create_future()
        self._waiting.append((self.log.written_end, base_offset, appended))
        return appended

    def commit(self, end: Offset) -> None:
        """Everything below `end` is as durable as promised: acknowledge it and show it to readers."""
        if end <= self.end:
            return
        self.end = end
        waiting = self._waiting
        while waiting and waiting[0][0] <= end:
            _, base_offset, appended = waiting.popleft()
            if not appended.done():
                appended.set_result(base_offset)
        if self._watchers:
            self.notify()

    def fail(self, error: HoldfastError) -> None:
        """Nothing that waits will be acknowledged."""
        while self._waiting:
            appended = self._waiting.popleft()[2]
            if not appended.done():
                appended.set_exception(error)
                # Its publisher may be gone already; then nobody asks for the reason, and that is fine.
                appended.exception()

    def watch(self, on_commit: Callable[[], None]) -> Unwatch:
        token = object()
        self._watchers[token] = on_commit
        return lambda: self._forget(token)

    def notify(self) -> None:
        for on_commit in list(self._watchers.values()):
            on_commit()

    def _forget(self, token: object) -> None:
        self._watchers.pop(token, None)

    def describe(self, leader: str) -> PartitionDescription:
        return PartitionDescription(
            partition=self.id.number,
            leader=leader,
            start_offset=self.log.start_offset,
            end_offset=self.end,
            size_bytes=self.log.size_bytes,
            segments=len(self.log.segments),
            damaged_batches=len(self.log.holes()),
        )

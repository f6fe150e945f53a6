"""Putting lines on the disk: durable before whoever pushed them is answered, and counted as waiting from then on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from holdfast.backends.spill.appending import Appender
from holdfast.backends.spill.pacing import Pacing
from holdfast.backends.spill.stats import SpillStats
from holdfast.backends.spill.waiting import Waiting
from holdfast.broker import results
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import PartitionId, TimestampMs


class Keeping:
    """`on_first` is told the time of the first message that waits."""

    def __init__(
        self,
        appender: Appender,
        waiting: Waiting,
        pacing: Pacing,
        stats: SpillStats,
        *,
        now_ms: Callable[[], TimestampMs],
        on_first: Callable[[int], None],
    ) -> None:
        self._appender = appender
        self._waiting = waiting
        self._pacing = pacing
        self._stats = stats
        self._now_ms = now_ms
        self._on_first = on_first
        self._at_ms = 0

    def at_ms(self) -> int:
        """The time of what is kept now: it rises within a file."""
        self._at_ms = max(self._at_ms, self._now_ms())
        return self._at_ms

    def keep(
        self, lines: bytes, counts: Mapping[PartitionId, int], since_s: float | None = None
    ) -> asyncio.Future[int]:
        """Have lines on the disk, so many of each partition; done once they are, with their bytes.

        `since_s` is since when somebody waits for that, where it is not only now.
        """
        total, size_bytes = sum(counts.values()), len(lines)
        began_s = time.monotonic() if since_s is None else since_s
        try:
            written = self._appender.append(lines, total)
        except HoldfastError:
            self._stats.refused_pushes += 1
            raise
        if not self._waiting.total:
            self._on_first(self._at_ms)
        for partition, count in counts.items():
            self._waiting.add(partition, count)
        promise: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def settle(done: asyncio.Future[None]) -> None:
            error = results.failure(done)
            if error is not None:
                for partition, count in counts.items():
                    self._waiting.remove(partition, count)
                self._stats.refused_pushes += 1
                results.refuse(promise, error)
                return
            self._stats.spilled_events += total
            self._stats.spilled_bytes += size_bytes
            self._pacing.answer(total, began_s, answer)

        def answer() -> None:
            if not promise.done():
                promise.set_result(size_bytes)

        written.add_done_callback(settle)
        return promise

"""Pushes that may be lost (qos 0): acknowledged from memory, handed on a moment later, together.

They are gone if the broker is killed within that moment. Where the store is away they are written to `qos0_*` files,
which are not synced: a power failure takes those of the last seconds, a kill does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from holdfast.backends.spill import events
from holdfast.backends.spill.appending import Appender
from holdfast.backends.spill.stats import SpillStats
from holdfast.broker import results
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.ids import NO_OFFSET, PartitionId, TimestampMs
from holdfast.model.limits import MIB
from holdfast.model.messages import BatchPublished
from holdfast.wire import record_batch

log = structlog.get_logger("holdfast.spill")

# What may be in memory; more is refused until the next flush.
_BYTES_MAX: Final = 16 * MIB

Forward = Callable[[PartitionId, bytearray], asyncio.Future[BatchPublished]]


class Losable:
    """Batches in memory, until the next flush."""

    def __init__(
        self, appender: Appender, stats: SpillStats, forward: Forward, now_ms: Callable[[], TimestampMs]
    ) -> None:
        self._appender = appender
        self._stats = stats
        self._forward = forward
        self._now_ms = now_ms
        self._batches: list[tuple[PartitionId, bytearray, bool]] = []
        self._size_bytes = 0

    def push(self, partition: PartitionId, batch: bytearray, *, is_chosen: bool) -> BatchPublished:
        """Acknowledged at once. Raises `Unavailable` where too much waits."""
        if self._batches and self._size_bytes + len(batch) > _BYTES_MAX:
            raise Unavailable(f"{self._size_bytes} bytes of qos 0 wait already; try again in a moment")
        self._batches.append((partition, batch, is_chosen))
        self._size_bytes += len(batch)
        count = record_batch.header(batch).record_count
        return BatchPublished(partition=partition.number, base_offset=NO_OFFSET, count=count, duplicates=0)

    def flush(self, *, is_healthy: bool) -> None:
        """Hand on what is in memory: to the store, or to a file where that is away."""
        batches, self._batches, self._size_bytes = self._batches, [], 0
        for partition, batch, is_chosen in batches:
            count = record_batch.header(batch).record_count
            done: asyncio.Future[Any]
            try:
                if is_healthy:
                    done = self._forward(partition, batch)
                else:
                    lines, _ = events.lines_of(partition, batch, self._now_ms(), is_chosen=is_chosen)
                    done = self._appender.append(lines, count)
            except HoldfastError as error:
                self._lost(count, error)
                continue
            done.add_done_callback(lambda done, count=count: self._on_done(done, count))  # type: ignore[misc]

    def _on_done(self, done: asyncio.Future[Any], count: int) -> None:
        error = results.failure(done)
        if error is not None:
            self._lost(count, error)

    def _lost(self, count: int, error: BaseException) -> None:
        self._stats.qos0_lost_events += count
        log.warning("qos0_lost", messages=count, problem=str(error))

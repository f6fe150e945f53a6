"""What the node itself measures: the process, the text front end, syncing and processing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.metrics import Metric, MetricType

if TYPE_CHECKING:
    from holdfast.node.node import Node


def measured(node: Node) -> list[Metric]:
    return [*_of_process(node), *_of_storage(node), *_of_processing(node)]


def _metric(kind: MetricType, name: str, text: str, value: float) -> Metric:
    return Metric(name=f"holdfast_{name}", help=text, type=kind, value=value)


def _of_process(node: Node) -> Iterator[Metric]:
    times = os.times()
    yield _metric("gauge", "uptime_seconds", "Seconds since this broker started.", node.uptime_s)
    yield _metric("counter", "cpu_seconds_total", "Processor seconds used, user and system.", times.user + times.system)
    yield _metric("gauge", "resident_memory_bytes", "Memory this process holds.", resident_bytes())
    yield _metric("gauge", "text_connections", "Open text connections.", node.text.connections)
    ready = node.broker.ready_problem() is None
    yield _metric("gauge", "ready", "1 while publishes are taken, else 0.", int(ready))


def _of_storage(node: Node) -> Iterator[Metric]:
    rounds, seconds = node.backend.sync_rounds
    yield _metric("counter", "sync_rounds_total", "Rounds of syncing to disk; each serves all that wait.", rounds)
    yield _metric("counter", "sync_seconds_total", "Seconds those rounds took.", seconds)
    yield _metric(
        "gauge",
        "acknowledges_after_sync",
        "1 with sync=group. 0: a power loss may take acknowledged messages.",
        int(node.backend.sync_policy.acknowledges_after_sync),
    )
    yield _metric("counter", "expired_segments_total", "Segments deleted by retention.", node.expired_segments)


def _of_processing(node: Node) -> Iterator[Metric]:
    if node.pool is None or node.stage is None:
        return
    pool, stage = node.pool.stats, node.stage.stats
    yield _metric("gauge", "processor_workers_busy", "Workers that have a message.", pool.busy)
    yield _metric("counter", "processor_timeouts_total", "Attempts that took too long.", pool.timeouts)
    yield _metric("counter", "processor_restarts_total", "Workers that were replaced.", pool.restarts)
    yield _metric("counter", "processor_processed_total", "Processed messages that were stored.", stage.stored)
    yield _metric("counter", "processor_retried_total", "Attempts that failed and were repeated.", pool.retried)
    yield _metric("counter", "processor_dead_total", "Messages that went to the dead letters.", stage.dead)


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")

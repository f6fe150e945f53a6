"""What the node itself measures: the process, the text front end and processing; its store adds its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from holdfast.model.callbacks import DeliveryState
from holdfast.model.metrics import Metric, metric

if TYPE_CHECKING:
    from holdfast.node.node import Node


def measured(node: Node) -> list[Metric]:
    return [
        *_of_process(node),
        *node.store.measured(),
        *_of_processing(node),
        *_of_transactions(node),
        *_of_callbacks(node),
    ]


def _of_process(node: Node) -> Iterator[Metric]:
    times = os.times()
    yield metric("gauge", "uptime_seconds", "Seconds since this broker started.", node.uptime_s)
    yield metric("counter", "cpu_seconds_total", "Processor seconds used, user and system.", times.user + times.system)
    yield metric("gauge", "resident_memory_bytes", "Memory this process holds.", resident_bytes())
    yield metric("gauge", "text_connections", "Open text connections.", node.text.connections)
    ready = node.broker.ready_problem() is None
    yield metric("gauge", "ready", "1 while publishes are taken, else 0.", int(ready))


def _of_processing(node: Node) -> Iterator[Metric]:
    if node.pool is None or node.stage is None:
        return
    pool, stage = node.pool.stats, node.stage.stats
    yield metric("gauge", "processor_workers_busy", "Workers that have a message.", pool.busy)
    yield metric("counter", "processor_timeouts_total", "Attempts that took too long.", pool.timeouts)
    yield metric("counter", "processor_restarts_total", "Workers that were replaced.", pool.restarts)
    yield metric("counter", "processor_processed_total", "Processed messages that were stored.", stage.stored)
    yield metric("counter", "processor_retried_total", "Attempts that failed and were repeated.", pool.retried)
    yield metric("counter", "processor_dead_total", "Messages that went to the dead letters.", stage.dead)


def _of_transactions(node: Node) -> Iterator[Metric]:
    stats = node.transactions.stats
    yield metric("counter", "transactions_staged_messages_total", "Messages staged here.", stats.staged_messages)
    yield metric("counter", "transactions_staged_bytes_total", "Bytes of their batches.", stats.staged_bytes)
    yield metric("counter", "transactions_committed_total", "Transactions made visible by this node.", stats.committed)
    yield metric("counter", "transactions_committed_bytes_total", "Bytes it copied for them.", stats.committed_bytes)
    yield metric("counter", "transactions_repeated_total", "Commits of a number that its writer had.", stats.repeated)
    yield metric("counter", "transactions_refused_total", "Commits of what had been dropped.", stats.refused)
    yield metric("counter", "transactions_aborted_total", "Aborts that were done.", stats.aborted)
    yield metric("counter", "transactions_expired_pieces_total", "Staged pieces that expired.", stats.expired_pieces)
    yield metric("counter", "transactions_lost_pieces_total", "Staged pieces found damaged.", stats.lost_pieces)
    yield metric("counter", "transactions_restarts_total", "Coordinators that began again.", stats.restarts)
    waiting = node.transactions.waiting()
    yield metric("gauge", "transactions_waiting", "Commits that are decided and not visible yet.", waiting)


def _of_callbacks(node: Node) -> Iterator[Metric]:
    if node.deliveries is None:
        return
    states = node.deliveries.states()
    text = "Receivers that this node delivers to, by how it gets along with them."
    for state in get_args(DeliveryState):
        yield metric("gauge", "callbacks", text, states[state], state=state)
    acknowledged = node.deliveries.stats.acknowledged
    yield metric("counter", "callback_acknowledged_total", "Messages that receivers acknowledged here.", acknowledged)


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")

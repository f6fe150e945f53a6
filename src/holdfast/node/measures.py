"""What the node itself measures: the process, the text front end, syncing, the cluster and processing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from heapq import nsmallest
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.backends.cluster import status
from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.model.metrics import SERIES_MAX, Metric, MetricType

if TYPE_CHECKING:
    from holdfast.node.node import Node


def measured(node: Node) -> list[Metric]:
    return [
        *_of_process(node),
        *_of_storage(node),
        *_of_control_group(node.backend),
        *_of_cluster(node.backend),
        *_of_pair(node.backend),
        *_of_partitions(node.backend),
        *_of_processing(node),
    ]


def _metric(kind: MetricType, name: str, text: str, value: float, **labels: str) -> Metric:
    return Metric(name=f"holdfast_{name}", help=text, type=kind, value=value, labels=labels)


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


def _of_control_group(backend: ClusterBackend) -> Iterator[Metric]:
    control, groups = backend.control, backend.groups
    raft = control.replica.raft
    yield _metric(
        "gauge", "control_leader", "1 while this node leads the control group.", int(raft.leading is not None)
    )
    yield _metric("gauge", "control_term", "The control group's term: grows with each election.", raft.term)
    yield _metric("gauge", "control_commit_index", "The last decided entry of the control log.", raft.commit)
    yield _metric("gauge", "control_applied_index", "The last entry that is true on this node.", control.applied)
    yield _metric(
        "counter", "leaderless_seconds_total", "Seconds in which this node heard of no leader.", groups.leaderless_s
    )
    yield _metric(
        "gauge",
        "leaderless_seconds",
        "Seconds for which it hears of none now; 0 while it does.",
        0.0 if raft.hears_leader else groups.leaderless_now_s,
    )


def _of_cluster(backend: ClusterBackend) -> Iterator[Metric]:
    groups, neighbours = backend.groups, backend.neighbours
    names = neighbours.names
    up = sum(map(neighbours.is_up, names))
    yield _metric("gauge", "nodes", "Nodes of the cluster, this one included.", len(names))
    yield _metric("gauge", "nodes_up", "Nodes that this one reaches, itself included.", up)
    yield _metric("gauge", "nodes_missing", "Nodes that this one does not reach.", len(names) - up)
    partitions = backend.topics_here.replicas.values()
    led = sum(replica.raft.leading is not None for replica in partitions)
    yield _metric("gauge", "partitions", "Partitions that this node keeps.", len(partitions))
    yield _metric("gauge", "partitions_led", "Partitions that this node leads.", led)
    elections = sum(replica.raft.elections for replica in groups.replicas.values()) + groups.elections_of_removed
    yield _metric("counter", "elections_total", "Elections this node began, over all groups.", elections)
    yield _metric("gauge", "longest_tick_gap_seconds", "The longest time between two ticks.", groups.longest_tick_gap_s)
    yield _metric(
        "counter", "forwarded_batches_total", "Batches sent to the node that leads.", backend.forwarded_batches
    )
    yield _metric(
        "counter", "dropped_peer_messages_total", "Messages to nodes that were not sent.", neighbours.dropped_messages
    )
    lags = status.lags(groups.replicas.values())
    for name in names:
        if name != backend.node_id:
            text = "Entries a node is behind in the groups that this one leads."
            yield _metric("gauge", "follower_lag_entries", text, lags.get(name, 0), node=name)
    serving = backend.serving
    yield _metric("gauge", "state_fetched_bytes", "Bytes fetched of another node's state.", serving.fetched_bytes)
    yield _metric("gauge", "state_fetch_size_bytes", "Bytes of that state.", serving.fetch_size_bytes)


def _of_pair(backend: ClusterBackend) -> Iterator[Metric]:
    pair = status.of_pair(backend)
    if pair is None:
        return
    yield _metric("gauge", "pair_primary", "1 while this node is the primary of its pair.", int(pair.role == "primary"))
    yield _metric("gauge", "pair_epoch", "Rises with every change of primary.", pair.epoch)
    yield _metric("gauge", "pair_alone", "1 while messages are acknowledged without a backup.", int(pair.is_alone))
    yield _metric("gauge", "pair_replicas_held", "Messages that are not known to be delivered.", pair.replicas_held)
    yield _metric("gauge", "pair_lag", "Entries the backup is behind, as the primary knows.", pair.lag or 0)
    yield _metric("counter", "pair_failovers_total", "How often this node took over.", pair.failovers)
    gap_s = (pair.last_gap_ms or 0) / 1000
    yield _metric("gauge", "pair_last_gap_seconds", "From the other one's last word until this took over.", gap_s)


def _of_partitions(backend: ClusterBackend) -> Iterator[Metric]:
    """Four series for each of the first partitions; those beyond are counted in the sums only."""
    for partition, replica in nsmallest(SERIES_MAX, backend.topics_here.replicas.items(), key=itemgetter(0)):
        raft = replica.raft
        labels = {"topic": str(partition.topic), "partition": str(partition.number)}
        yield _metric(
            "gauge", "partition_leader", "1 while this node leads it.", int(raft.leading is not None), **labels
        )
        yield _metric("gauge", "partition_term", "Its term: grows with each election.", raft.term, **labels)
        yield _metric("gauge", "partition_commit_index", "Its last decided entry.", raft.commit, **labels)
        text = "Entries its slowest follower is behind, where this node leads it."
        yield _metric("gauge", "partition_lag_entries", text, status.lag_of_slowest(replica), **labels)


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

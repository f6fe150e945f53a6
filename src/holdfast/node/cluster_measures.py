"""What a node of a cluster measures of its store: syncing, the groups and the other nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from heapq import nsmallest
from operator import itemgetter

from holdfast.backends.cluster import status
from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.model.cluster import PairDescription
from holdfast.model.metrics import SERIES_MAX, Metric, metric


def measured(backend: ClusterBackend) -> Iterator[Metric]:
    yield from _of_storage(backend)
    yield from _of_control_group(backend)
    yield from _of_cluster(backend)
    if (pair := status.of_pair(backend)) is not None:
        yield from of_pair(pair)
    yield from _of_partitions(backend)


def _of_storage(backend: ClusterBackend) -> Iterator[Metric]:
    rounds, seconds = backend.sync_rounds
    yield metric("counter", "sync_rounds_total", "Rounds of syncing to disk; each serves all that wait.", rounds)
    yield metric("counter", "sync_seconds_total", "Seconds those rounds took.", seconds)
    yield metric(
        "gauge",
        "acknowledges_after_sync",
        "1 with sync=group. 0: a power loss may take acknowledged messages.",
        int(backend.sync_policy.acknowledges_after_sync),
    )
    yield metric(
        "counter", "expired_segments_total", "Segments deleted by retention.", backend.retention.deleted_segments
    )


def _of_control_group(backend: ClusterBackend) -> Iterator[Metric]:
    control, groups = backend.control, backend.groups
    raft = control.replica.raft
    yield metric("gauge", "control_leader", "1 while this node leads the control group.", int(raft.leading is not None))
    yield metric("gauge", "control_term", "The control group's term: grows with each election.", raft.term)
    yield metric("gauge", "control_commit_index", "The last decided entry of the control log.", raft.commit)
    yield metric("gauge", "control_applied_index", "The last entry that is true on this node.", control.applied)
    yield metric(
        "counter",
        "leaderless_seconds_total",
        "Seconds in which this node heard of no leader.",
        groups.elections.leaderless_s,
    )
    yield metric(
        "gauge",
        "leaderless_seconds",
        "Seconds for which it hears of none now; 0 while it does.",
        0.0 if raft.hears_leader else groups.elections.leaderless_now_s,
    )


def _of_cluster(backend: ClusterBackend) -> Iterator[Metric]:
    groups, neighbours = backend.groups, backend.neighbours
    names = neighbours.names
    up = sum(map(neighbours.is_up, names))
    yield metric("gauge", "nodes", "Nodes of the cluster, this one included.", len(names))
    yield metric("gauge", "nodes_up", "Nodes that this one reaches, itself included.", up)
    yield metric("gauge", "nodes_missing", "Nodes that this one does not reach.", len(names) - up)
    partitions = backend.topics_here.replicas.values()
    led = sum(replica.raft.leading is not None for replica in partitions)
    yield metric("gauge", "partitions", "Partitions that this node keeps.", len(partitions))
    yield metric("gauge", "partitions_led", "Partitions that this node leads.", led)
    elections = sum(replica.raft.elections for replica in groups.replicas.values()) + groups.elections_of_removed
    yield metric("counter", "elections_total", "Elections this node began, over all groups.", elections)
    yield metric("gauge", "longest_tick_gap_seconds", "The longest time between two ticks.", groups.longest_tick_gap_s)
    yield metric(
        "counter", "forwarded_batches_total", "Batches sent to the node that leads.", backend.forwarded_batches
    )
    yield metric(
        "counter", "dropped_peer_messages_total", "Messages to nodes that were not sent.", neighbours.dropped_messages
    )
    lags = status.lags(groups.replicas.values())
    for name in names:
        if name != backend.node_id:
            text = "Entries a node is behind in the groups that this one leads."
            yield metric("gauge", "follower_lag_entries", text, lags.get(name, 0), node=name)
            text = "Seconds for which nothing was heard of a node; 0 while it is reached."
            silent_ms = neighbours.known.silent_since_ms(name)
            silent_s = 0.0 if silent_ms is None else max(0.0, time.time() - silent_ms / 1000)
            yield metric("gauge", "node_silent_seconds", text, silent_s, node=name)
    changing = backend.state.membership.under_way is not None
    yield metric("gauge", "members_changing", "1 while a node is joining or leaving.", int(changing))
    serving = backend.serving
    yield metric("gauge", "state_fetched_bytes", "Bytes fetched of another node's state.", serving.fetched_bytes)
    yield metric("gauge", "state_fetch_size_bytes", "Bytes of that state.", serving.fetch_size_bytes)


def of_pair(pair: PairDescription) -> Iterator[Metric]:
    yield metric("gauge", "pair_primary", "1 while this node is the primary of its pair.", int(pair.role == "primary"))
    yield metric("gauge", "pair_epoch", "Rises with every change of primary.", pair.epoch)
    yield metric("gauge", "pair_alone", "1 while messages are acknowledged without a backup.", int(pair.is_alone))
    yield metric("gauge", "pair_replicas_held", "Messages that are not known to be delivered.", pair.replicas_held)
    yield metric("gauge", "pair_lag", "Entries the backup is behind, as the primary knows.", pair.lag or 0)
    yield metric("counter", "pair_failovers_total", "How often this node took over.", pair.failovers)
    gap_s = (pair.last_gap_ms or 0) / 1000
    yield metric("gauge", "pair_last_gap_seconds", "From the other one's last word until this took over.", gap_s)


def _of_partitions(backend: ClusterBackend) -> Iterator[Metric]:
    """Four series for each of the first partitions; those beyond are counted in the sums only."""
    for partition, replica in nsmallest(SERIES_MAX, backend.topics_here.replicas.items(), key=itemgetter(0)):
        raft = replica.raft
        labels = {"topic": str(partition.topic), "partition": str(partition.number)}
        yield metric(
            "gauge", "partition_leader", "1 while this node leads it.", int(raft.leading is not None), **labels
        )
        yield metric("gauge", "partition_term", "Its term: grows with each election.", raft.term, **labels)
        yield metric("gauge", "partition_commit_index", "Its last decided entry.", raft.commit, **labels)
        text = "Entries its slowest follower is behind, where this node leads it."
        yield metric("gauge", "partition_lag_entries", text, status.lag_of_slowest(replica), **labels)

"""The state of groups and nodes in words and numbers: for people, for metrics, for other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.backends.cluster import levels
from holdfast.backends.cluster.control import CONTROL
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import Method
from holdfast.broker.delivery_marks import DELIVERED
from holdfast.consensus.progress import Progress
from holdfast.consensus.replica_names import node_of
from holdfast.model.cluster import (
    ClusterDescription,
    FollowerDescription,
    GroupDescription,
    NodeDescription,
    PairDescription,
)
from holdfast.model.errors import HoldfastError, NoQuorum
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.member_errors import NodeRemoved
from holdfast.model.topics import PartitionDescription
from holdfast.wire.peer import PROTOCOL_VERSION

if TYPE_CHECKING:
    from holdfast.backends.cluster.backend import ClusterBackend

# A node that does not answer this soon is shown as one that does not.
_ANSWER_S: Final = 1.0


class NodeReport(msgspec.Struct, frozen=True):
    """What a node tells of itself: its description, the lag of the nodes that follow it, and whose it cannot know.

    `unheard` have not answered since this node leads one of its groups, so that nothing is known of what they have.
    """

    described: NodeDescription
    lag_of: dict[str, int]
    unheard: frozenset[str] = frozenset()


_decode = msgspec.json.Decoder(NodeReport).decode


def of_partition(number: int, replica: Replica | None) -> PartitionDescription:
    """One that is being opened, or cannot be, is described as empty: the log says why."""
    log = replica.log if replica is not None else None
    return PartitionDescription(
        partition=number,
        leader=replica.leader_node if replica is not None else None,
        start_offset=log.start_offset if log is not None else Offset(0),
        end_offset=replica.end if replica is not None else Offset(0),
        size_bytes=log.size_bytes if log is not None else 0,
        segments=len(log.segments) if log is not None else 0,
        damaged_batches=len(log.holes()) if log is not None else 0,
    )


def of_group(replica: Replica) -> GroupDescription:
    raft = replica.raft
    followers = []
    if raft.leading is not None:
        for member, progress in sorted(raft.leading.progress.items()):
            followers.append(
                FollowerDescription(
                    node=node_of(member),
                    is_voter=member in raft.members.voters,
                    lag=_lag(replica, progress),
                )
            )
    return GroupDescription(
        name=replica.name,
        role=raft.role.value if raft.is_voter else "learner",
        term=raft.term,
        leader=_heard_leader(replica),
        commit_index=raft.commit,
        shown_index=replica.shown_index,
        last_index=raft.shape.last_index,
        terms=list(replica.log.term_runs()),
        is_asleep=raft.is_asleep,
        elections=raft.elections,
        followers=followers,
    )


def _heard_leader(replica: Replica) -> str | None:
    """The node that leads; one that has fallen silent is not named any more."""
    return replica.leader_node if replica.raft.hears_leader else None


def of_groups(backend: ClusterBackend, topic: TopicName | None) -> list[GroupDescription]:
    """The groups of a topic; without one the control group, and those of all partitions."""
    found = [] if topic is not None else [of_group(backend.control.replica)]
    for partition, replica in sorted(backend.topics_here.replicas.items()):
        if topic in (None, partition.topic):
            described = of_group(replica)
            found.append(msgspec.structs.replace(described, topic=str(partition.topic), partition=partition.number))
    return found


def of_node(backend: ClusterBackend) -> NodeReport:
    """This node as it sees itself."""
    control = backend.control
    raft = control.replica.raft
    partitions = backend.topics_here.replicas.values()
    described = NodeDescription(
        node=backend.node_id,
        is_up=True,
        life=backend.neighbours.life_of(backend.node_id),
        addresses=backend.neighbours.addresses,
        role=raft.role.value if raft.is_voter else "learner",
        term=raft.term,
        commit_index=raft.commit,
        applied_index=control.applied,
        partitions_led=sum(replica.raft.leading is not None for replica in partitions),
        partitions=len(partitions),
        version=levels.BUILD,
        protocol=PROTOCOL_VERSION,
        level=levels.LEVEL,
    )
    replicas = backend.groups.replicas.values()
    return NodeReport(described, lags(replicas), _unheard(replicas))


def _unheard(replicas: Iterable[Replica]) -> frozenset[str]:
    led = (replica.raft.leading for replica in replicas)
    return frozenset(
        node_of(member)
        for leading in led
        if leading is not None
        for member, progress in leading.progress.items()
        if progress.match < 0
    )


def lags(replicas: Iterable[Replica]) -> dict[str, int]:
    """By node, the entries it is behind this one in the groups that this one leads.

    Asked for often, and there may be a hundred thousand groups: nothing is made for each of them.
    """
    found: dict[str, int] = {}
    for replica in replicas:
        leading = replica.raft.leading
        if leading is not None:
            for member, progress in leading.progress.items():
                lag = _lag(replica, progress)
                if lag:
                    node = node_of(member)
                    found[node] = found.get(node, 0) + lag
    return found


def _lag(replica: Replica, progress: Progress) -> int:
    shape = replica.raft.shape
    return max(0, shape.last_index - max(progress.match, shape.base_index))


def lag_of_slowest(replica: Replica) -> int:
    """Of the followers of a group that this node leads; 0 where it has none, or another leads."""
    leading = replica.raft.leading
    return 0 if leading is None else max((_lag(replica, each) for each in leading.progress.values()), default=0)


async def of_cluster(backend: ClusterBackend) -> ClusterDescription:
    """The whole cluster: every node that can be reached is asked."""
    names = backend.neighbours.names
    reports = await asyncio.gather(*(_report(backend, node) for node in names))
    told = [report for report in reports if report is not None]
    # A lag is what leaders know: it is known where every group's leader has told.
    led = sum(report.described.partitions_led or 0 for report in told)
    are_leaders_here = led >= len(backend.topics_here.replicas) and backend.control.replica.raft.hears_leader
    nodes = []
    for node, report in zip(names, reports, strict=True):
        lag = sum(other.lag_of.get(node, 0) for other in told) if are_leaders_here else None
        if report is None:
            row = backend.state.nodes.get(node)
            silent = backend.neighbours.known.silent_since_ms(node)
            # As last known; a leader that was elected since then has not heard how far it was.
            lag = None if any(node in other.unheard for other in told) else lag
            away = NodeDescription(node=node, is_up=False, life=None, addresses={}, lag=lag, silent_since_ms=silent)
            if row is not None:
                away = msgspec.structs.replace(
                    away, addresses=row.addresses, version=row.version or None, level=row.level
                )
            nodes.append(away)
        else:
            nodes.append(msgspec.structs.replace(report.described, lag=lag))
    control = backend.control.replica
    voters = {node_of(voter) for voter in control.raft.members.voters}
    missing = sorted(voter for voter in voters if not backend.neighbours.is_up(voter))
    return ClusterDescription(
        cluster=backend.neighbours.cluster,
        asked=backend.node_id,
        leader=_heard_leader(control),
        term=control.raft.term,
        has_quorum=control.raft.hears_leader,
        missing=missing,
        nodes=nodes,
        level=backend.state.level.number,
        pair=of_pair(backend),
        voters=sorted(voters),
        shrink_after_ms=backend.neighbours.elections.shrink_after_ms,
    )


def no_quorum(backend: ClusterBackend, replica: Replica) -> NoQuorum | NodeRemoved:
    """Why a group cannot decide anything, with who is missing; or why this node would not hear of it."""
    if replica.group != CONTROL and backend.leaves() and not replica.raft.hears_leader:
        return NodeRemoved(f"{backend.node_id} is being taken out of its cluster; go to another node")
    neighbours = backend.neighbours
    if neighbours.is_outvoted and neighbours.disagreement is not None:
        return NoQuorum(f"{backend.node_id} takes part in nothing: {neighbours.disagreement}; go to another node")
    voters = replica.raft.members.voters
    nodes = {node_of(voter) for voter in voters} - {backend.node_id}
    missing = sorted(node for node in nodes if not (backend.neighbours.is_up(node) and backend.groups.is_heard(node)))
    who = f"{', '.join(missing)} cannot be reached" if missing else "no leader is elected yet"
    what = "the cluster" if replica.group == CONTROL else replica.name
    return NoQuorum(f"{what} has no majority of its {len(voters)} nodes now: {who}")


def of_pair(backend: ClusterBackend) -> PairDescription | None:
    """How one of a pair stands; `None` for any other node."""
    pairing = backend.pairing
    if pairing is None:
        return None
    control = backend.control.replica
    standing = pairing.standing
    leading = control.raft.leading
    role = "primary" if leading is not None else "backup" if control.raft.is_voter else "joining"
    return PairDescription(
        role=role,
        epoch=standing.term,
        is_alone=leading is not None and any(map(_is_without_backup, backend.groups.replicas.values())),
        partner=pairing.partner,
        partner_is_up=backend.neighbours.is_up(pairing.partner) and not pairing.is_away,
        replicas_held=sum(_undelivered(backend, partition) for partition in backend.topics_here.replicas),
        lag=None if leading is None else sum(_backup_lag(replica) for replica in backend.groups.replicas.values()),
        failovers=pairing.failovers,
        last_gap_ms=None if not pairing.failovers else int(pairing.last_gap_s * 1000),
    )


def _is_without_backup(replica: Replica) -> bool:
    return replica.raft.members.voters == {replica.raft.replica}


def _undelivered(backend: ClusterBackend, partition: PartitionId) -> int:
    noted = backend.cursor(partition.topic, DELIVERED) or {}
    delivered = noted.get(partition.number, backend.start_offset(partition))
    return max(0, backend.end_offset(partition) - delivered)


def _backup_lag(replica: Replica) -> int:
    leading = replica.raft.leading
    if leading is None or not leading.progress:
        return 0
    return replica.raft.shape.last_index - max(0, min(progress.match for progress in leading.progress.values()))


async def _report(backend: ClusterBackend, node: str) -> NodeReport | None:
    if node == backend.node_id:
        return of_node(backend)
    try:
        return _decode(await backend.neighbours.request(node, Method.STATUS, b"", _ANSWER_S))
    except HoldfastError:
        return None  # shown as one that is not there

"""The nodes of a cluster as people see them: who votes, who learns, who is silent, and how far a change has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.backends.cluster import status
from holdfast.consensus.members import Members
from holdfast.consensus.membership import Membership, Place
from holdfast.consensus.replica_names import node_of, replica_id
from holdfast.model.cluster import MemberDescription, MembersDescription, NodeDescription

if TYPE_CHECKING:
    from holdfast.backends.cluster.backend import ClusterBackend

# A hello has so much room for those that have left; whoever came back and left again since is told all the same.
_REMOVED_MAX: Final = 300


def present(membership: Membership, members: Members) -> set[str]:
    """The nodes that belong to the cluster, or are about to, or not to any more."""
    rows = membership.rows.values()
    left = {row.node for row in rows if row.place is Place.REMOVED}
    return ({node_of(member) for member in members.everybody} | {row.node for row in rows}) - left


def removed_replicas(membership: Membership) -> list[str]:
    """The newest of those that have left for good, by the name they had."""
    rows = sorted(membership.rows.values(), key=lambda row: row.number, reverse=True)
    gone = [
        replica_id(row.node, life) for row in rows if row.place is not Place.LEAVING for life in reversed(row.lives)
    ]
    return list(gone[:_REMOVED_MAX])


async def described(backend: ClusterBackend) -> MembersDescription:
    """All nodes that have a place, those that have left included; every node that can be reached is asked."""
    seen = await status.of_cluster(backend)
    membership = backend.state.membership
    voting, learning = _groups_of_nodes(backend)
    total = len(backend.groups.replicas)
    members = []
    for node in seen.nodes:
        members.append(_described(membership, node, voting.get(node.node, 0), learning.get(node.node, 0), total))
    for row in membership.rows.values():
        if row.place is Place.REMOVED:
            members.append(
                MemberDescription(
                    node=row.node, state="removed", is_up=False, since_ms=row.since_ms, votes_in=0, groups=total
                )
            )
    changing = membership.under_way
    return MembersDescription(
        cluster=seen.cluster,
        asked=seen.asked,
        has_quorum=seen.has_quorum,
        changing=None if changing is None else changing.node,
        members=sorted(members, key=lambda member: member.node),
    )


def _groups_of_nodes(backend: ClusterBackend) -> tuple[dict[str, int], dict[str, int]]:
    """In how many groups each node votes, and in how many it learns, as far as the asked node knows."""
    voting: dict[str, int] = {}
    learning: dict[str, int] = {}
    for replica in backend.groups.replicas.values():
        members = replica.raft.members
        for counts, nodes in ((voting, members.voters), (learning, members.learners)):
            for node in set(map(node_of, nodes)):
                counts[node] = counts.get(node, 0) + 1
    return voting, learning


def _described(membership: Membership, node: NodeDescription, votes: int, learns: int, total: int) -> MemberDescription:
    row = membership.rows.get(node.node)
    place = Place.VOTER if row is None else row.place
    is_drained = row is not None and row.is_drained
    if not node.is_up:
        state = "silent"
    elif place is Place.JOINING:
        state = "learner" if learns or votes else "joining"
    elif place is Place.LEAVING or is_drained:
        state = "draining" if node.partitions_led else "leaving" if place is Place.LEAVING else "drained"
    else:
        state = "voter" if votes else "learner"
    return MemberDescription(
        node=node.node,
        state=state,
        is_up=node.is_up,
        is_drained=is_drained,
        is_joining=place is Place.JOINING,
        is_leaving=place is Place.LEAVING,
        replaces=row.replaces or None if row is not None else None,
        since_ms=row.since_ms if row is not None and row.since_ms else None,
        silent_since_ms=node.silent_since_ms,
        lag=node.lag,
        partitions_led=node.partitions_led,
        is_control_leader=node.role == "leader",
        votes_in=votes,
        groups=total,
        address=node.addresses.get("peer"),
    )

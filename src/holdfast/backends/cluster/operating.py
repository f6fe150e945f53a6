"""What people do with a cluster: look at it, say who leads, and have nodes come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import structlog

from holdfast.backends.cluster import members_shown, removal, status
from holdfast.backends.cluster.commands import PreferLeader
from holdfast.backends.cluster.membership_calls import MembershipCalls
from holdfast.backends.cluster.requests import Method
from holdfast.consensus.membership import Place
from holdfast.model.cluster import ClusterDescription, GroupDescription, MembersDescription
from holdfast.model.errors import BadValue, LeaderChanged
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.member_errors import NodeRemoved

if TYPE_CHECKING:
    from holdfast.backends.cluster.backend import ClusterBackend

log = structlog.get_logger("holdfast.cluster")


class Operating:
    """The part of `ClusterBackend` that has nothing to do with messages."""

    membership_calls: MembershipCalls
    # Told that this node is to be started again, for it was removed before this start and is to join again.
    on_begin_again: Callable[[], None] = staticmethod(lambda: None)

    @property
    def _whole(self) -> ClusterBackend:
        return cast("ClusterBackend", self)

    async def cluster(self) -> ClusterDescription:
        self.check_belongs()
        return await status.of_cluster(self._whole)

    def describe_groups(self, topic: TopicName | None) -> list[GroupDescription]:
        return status.of_groups(self._whole, topic)

    async def transfer(self, partition: PartitionId | None, node: str) -> None:
        replica = self._whole.control.replica if partition is None else self._whole.topics_here.found(partition)
        self._whole.neighbours.check_can_lead(node)
        if not self._whole.state.membership.may_lead(node):
            raise BadValue(f"{node} is drained or leaving, and shall lead nothing")
        if partition is not None:
            # Decided first: else whoever spreads the leaders would take it back.
            token = self._whole.topics_here.token_of(partition.topic)
            await self._whole._proposals.propose(PreferLeader(partition.topic, token, partition.number, node))
        await self._whole._confirming.confirm(replica)
        await self._whole.serving.transfer_anywhere(replica, node)

    def check_belongs(self) -> None:
        """What a node has that was taken out of its cluster is old, and nobody can say how old."""
        if isinstance(self._whole._failure, NodeRemoved):
            raise self._whole._failure

    def leaves(self) -> bool:
        """Whether this node is being taken out, and is perhaps out of some groups already."""
        row = self._whole.state.membership.rows.get(self._whole.node_id)
        return row is not None and row.place in (Place.LEAVING, Place.REMOVED)

    # --- nodes come and go ------------------------------------------------------------------------

    async def members(self) -> MembersDescription:
        self.check_belongs()
        return await members_shown.described(self._whole)

    async def remove_member(self, node: str, *, undo: bool = False) -> None:
        await self._whole.membership_calls.remove(node, undo=undo)

    async def drain_member(self, node: str, *, undo: bool = False) -> None:
        await self._whole.membership_calls.drain(node, undo=undo)

    async def replace_member(self, old: str, new: str) -> None:
        await self._whole.membership_calls.replace(old, new)

    def take_calls(self) -> None:
        """From now on nodes may ask to be let in, and links go to the nodes that the control state knows."""
        whole = self._whole
        whole.membership_calls = calls = MembershipCalls(
            whole.groups,
            whole.control,
            whole.state,
            whole.neighbours,
            whole.upkeep,
            whole._proposals.propose,
            whole.catch_up_cursors,
            whole._now_ms,
            self._why_no_members(),
        )
        whole.serving.add_handlers({Method.JOIN: calls.join, Method.MAY_LEAVE: calls.may_leave})
        state, control = self._whole.state, self._whole.control.replica
        whole.neighbours.known.follow(
            lambda: members_shown.present(state.membership, control.raft.members),
            lambda replica: state.membership.is_removed(replica),
            lambda: members_shown.removed_replicas(state.membership),
        )
        whole.neighbours.known.tell_of_removal(self._leave)
        state.on_nodes = self._note_nodes
        self._note_nodes()

    def _why_no_members(self) -> str | None:
        """Why nodes cannot come and go here."""
        if self._whole._pair is not None:
            return "one of a pair has one partner, and no other nodes"
        if not self._whole.neighbours.listens:
            return f"{self._whole.node_id} has no address for other nodes; start it with --peer HOST:PORT"
        if not self._whole.sync_policy.acknowledges_after_sync:
            return "nodes of a cluster vote for what their disks have; start this one with --sync group"
        return None

    def _note_nodes(self) -> None:
        known = members_shown.present(self._whole.state.membership, self._whole.control.replica.raft.members)
        rows = [row for row in self._whole.state.nodes.values() if row.node in known]
        gone = {row.node for row in self._whole.state.membership.rows.values() if row.place is Place.REMOVED}
        self._whole.neighbours.known.note({row.node: row.addresses.get("peer", "") for row in rows}, gone)

    def _leave(self, told_by: str) -> None:
        """This node was taken out: it takes part in nothing any more, and refuses whoever comes."""
        try:
            removal.note(self._whole._directory, told_by)
        except OSError as error:
            log.error("removal_not_noted", problem=str(error), hint="this node is told again when it is started")
        removed = NodeRemoved(
            f"{self._whole.node_id} was taken out of its cluster; go to another node, or start it with --join "
            "to have it back"
        )
        self._whole.groups.has_failed = True
        self._whole._failure = removed
        lost = LeaderChanged(f"{self._whole.node_id} was taken out of its cluster before this was known to be stored")
        self._whole._lanes.end(removed)
        for replica in self._whole.groups.replicas.values():
            replica.audience.refuse_appends(lost)
            # Whoever waits for more learns that none will come.
            replica.audience.notify()
        known = self._whole.neighbours.known
        if known.join is not None and not self._whole.joining.has_belonged:
            # Whoever has started it with that wish has had it since then.
            log.warning("removed_before", told_by=told_by, hint="it was started to join, so it begins anew")
            self._whole.on_begin_again()
        else:
            log.error("removed", told_by=told_by, hint="start this node with --join if it shall come back")

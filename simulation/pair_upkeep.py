"""What one of a pair does about its groups ten times a second: let its partner in, spread leaders. As `upkeep`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.consensus.leading import Leading
from holdfast.consensus.members import Members, ReplicaId
from holdfast.model.ids import LogIndex
from simulation.node import node_of
from simulation.pair_replica import CONTROL, PairReplica

if TYPE_CHECKING:
    from simulation.pair_node import PairNode

# A node that has just come back may be about to go again.
_STEADY_MS: Final = 600.0


class Upkeep:
    """Runs on each of the two; each leader looks after its own groups."""

    def __init__(self, node: PairNode) -> None:
        self._node = node
        # How many topics there shall be; more may be wanted later.
        self.topics_wanted = 1
        # What was committed when groups were looked at last.
        self._decided: dict[PairReplica, LogIndex] = {}

    def look_after_everything(self) -> None:
        self._make_topics()
        self._look_after_members()
        self._spread_leaders()

    def _make_topics(self) -> None:
        control = self._node.replicas[CONTROL]
        leading = control.raft.leading
        if leading is not None and leading.is_settled and control.knows_topic < self.topics_wanted:
            control.create_topic(control.knows_topic + 1)

    def _look_after_members(self) -> None:
        for replica in list(self._node.replicas.values()):
            leading = replica.raft.leading
            if leading is None or not leading.is_settled:
                continue
            wanted = self._next_members(replica, leading)
            if wanted is not None and leading.refusal(wanted) is None:
                replica.change_members(wanted)
                self._node.reached("let in")
        self._decided = {replica: replica.raft.commit for replica in self._node.replicas.values()}
        self._node.checker.looked_after(self._node.replicas.values())

    def _decided_before(self, replica: PairReplica) -> LogIndex:
        return max(LogIndex(0), self._decided.get(replica, replica.raft.commit))

    def _life_of(self, number: int) -> int | None:
        return self._node.life if number == self._node.number else self._node.life_of_partner()

    def _next_members(self, replica: PairReplica, leading: Leading) -> Members | None:
        """The next step of letting in who came back as somebody else; `None` if nobody did."""
        members = replica.raft.members
        for old in sorted(members.voters):
            life = self._life_of(node_of(old))
            new = ReplicaId(f"n{node_of(old)}.{life}") if life is not None else old
            if new == old or new in members.voters:
                continue
            if new not in members.learners:
                return Members(members.voters, members.learners | {new})
            if leading.progress[new].match >= self._decided_before(replica):
                return Members(members.voters - {old}, members.learners)
        for member in sorted(self._node.replicas[CONTROL].raft.members.everybody):
            is_there = any(node_of(other) == node_of(member) for other in members.everybody)
            if not is_there and member == f"n{node_of(member)}.{self._life_of(node_of(member))}":
                return Members(members.voters, members.learners | {member})
        partner = self._partner_to_let_in(members)
        if partner is not None and replica.group == CONTROL:
            return Members(members.voters, members.learners | {partner})
        for learner in sorted(members.learners):
            progress = leading.progress.get(learner)
            others = {node_of(voter) for voter in members.voters}
            life = self._life_of(node_of(learner))
            if node_of(learner) in others and life is not None and learner != f"n{node_of(learner)}.{life}":
                return Members(members.voters, members.learners - {learner})
            has_all = progress is not None and progress.match >= self._decided_before(replica)
            if has_all and node_of(learner) not in others and self._may_vote(replica, learner):
                return Members(members.voters | {learner}, members.learners - {learner})
        return None

    def _may_vote(self, replica: PairReplica, learner: ReplicaId) -> bool:
        """In the control group last: who votes there may take over, and must be able to do so everywhere."""
        others = [other.raft for other in self._node.replicas.values() if other is not replica]
        return replica.group != CONTROL or all(
            learner in raft.members.voters and raft.members_index <= raft.commit for raft in others
        )

    def _partner_to_let_in(self, members: Members) -> ReplicaId | None:
        node = self._node
        if node.links is None or not node.links.is_up:
            return None
        life = node.life_of_partner()
        is_member = any(node_of(member) == node.partner for member in members.everybody)
        return None if life is None or is_member else ReplicaId(f"n{node.partner}.{life}")

    def _spread_leaders(self) -> None:
        """Who leads the control group shall lead everything."""
        wanted = self._node.replicas[CONTROL].raft.leader
        for replica in list(self._node.replicas.values()):
            leading = replica.raft.leading
            if leading is None or not leading.takes_proposals or not leading.is_settled or replica.group == CONTROL:
                continue
            if not wanted or node_of(wanted) == self._node.number or wanted not in replica.raft.members.voters:
                continue
            is_steady = self.seconds_up_ms > _STEADY_MS
            if is_steady and leading.progress[wanted].match >= replica.raft.commit:
                leading.transfer(wanted)
                replica.pump()

    @property
    def seconds_up_ms(self) -> float:
        node = self._node
        is_up = node.links is not None and node.links.is_up
        return node.world.now_ms - node.up_since_ms if is_up else 0.0

"""Who of a group is let in next: one step at a time, each only when the one before is committed.

- *A disk that was lost*: a node that comes back with another life is somebody else. It is first let in as a learner,
  then, when it has everything, the old one is taken out and the new one votes.
- *A node that is missing* in a group learns, and then votes.
- *Of a pair, the control group is the last*: who votes there may take over, and must have everything then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from holdfast.consensus.leading import Leading
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import life_of, node_of, replica_id
from holdfast.model.ids import LogIndex


class LettingIn:
    """What the leaders of one node's groups do about their members, from one look to the next."""

    def __init__(self, current_life_of: Callable[[str], str | None]) -> None:
        # Of which of its disks a node last spoke; `None` while it has not been heard.
        self._current_life_of = current_life_of
        # What was committed when groups were looked at last.
        self._decided: dict[Raft, LogIndex] = {}

    def looked(self, rafts: Iterable[Raft]) -> None:
        """A look at all groups is over."""
        self._decided = {raft: raft.commit for raft in rafts}

    def next_members(
        self,
        leading: Leading,
        raft: Raft,
        *,
        wanted: Iterable[ReplicaId],
        partner: ReplicaId | None,
        before: Collection[Raft],
    ) -> Members | None:
        """The next step of a group that is led here; `None` if everybody has the place it should have.

        `wanted` are those who belong to every group, `partner` is the other of a pair while it belongs to none. Nobody
        votes here who does not vote in the groups of `before`, for good.
        """
        members = raft.members
        for old in sorted(members.voters):
            new = self._now(old)
            if new == old or new in members.voters:
                continue
            if new not in members.learners:
                return Members(members.voters, members.learners | {new})
            if self._has_everything(leading, raft, new):
                return Members(members.voters - {old}, members.learners)
        nodes = {node_of(member) for member in members.everybody}
        for replica in sorted(wanted):
            # A topic that was made while a node was being let in began without it.
            if node_of(replica) not in nodes and self._current_life_of(node_of(replica)) == life_of(replica):
                return Members(members.voters, members.learners | {replica})
        if partner is not None and node_of(partner) not in nodes:
            return Members(members.voters, members.learners | {partner})
        return self._next_step_of_a_learner(leading, raft, before)

    def _next_step_of_a_learner(self, leading: Leading, raft: Raft, before: Collection[Raft]) -> Members | None:
        members = raft.members
        voting_nodes = {node_of(voter) for voter in members.voters}
        for learner in sorted(members.learners):
            if node_of(learner) in voting_nodes:
                if self._now(learner) != learner:
                    return Members(members.voters, members.learners - {learner})  # it was somebody else's disk
            elif self._has_everything(leading, raft, learner) and _votes_for_good(learner, before):
                return Members(members.voters | {learner}, members.learners - {learner})
        return None

    def _now(self, replica: ReplicaId) -> ReplicaId:
        """As what its node goes by now."""
        node = node_of(replica)
        life = self._current_life_of(node)
        return replica if life is None else replica_id(node, life)

    def _has_everything(self, leading: Leading, raft: Raft, replica: ReplicaId) -> bool:
        """Whether it has what was committed at the last look: under load nobody ever has the very newest.

        One that votes a little early cannot act on what it lacks: that it votes stands in the log, behind all that. But
        it has to have something: one that has not heard of the group yet would keep it from deciding anything.
        """
        progress = leading.progress.get(replica)
        return progress is not None and progress.match >= max(LogIndex(0), self._decided.get(raft, raft.commit))


def _votes_for_good(replica: ReplicaId, groups: Iterable[Raft]) -> bool:
    return all(replica in raft.members.voters and raft.members_index <= raft.commit for raft in groups)

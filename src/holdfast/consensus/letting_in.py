"""Who of a group is let in next: one step at a time, each only when the one before is committed.

- *A disk that was lost*: a node that comes back with another life is somebody else. It is first let in as a learner,
  then, when it has everything, the old one is taken out and the new one votes.
- *A node that is missing* in a group learns, and then votes (`membership` says which nodes belong to all groups).
- *A node that goes* is taken out while those who stay are a majority that is there and has everything. Where it leads,
  it hands over first. In the control group it listens on until it is out of all others.
- *A node that is gone* may lose its vote, where the cluster is set to shrink: it listens, and votes again when it is
  back. The group that `leaves_last` waits until it votes in no other.
- *Nobody's voters change on old evidence*: those who vote then are asked anew first (`evidence`).
- *Of a pair, the control group is the last*: who votes there may take over, and must have everything then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from holdfast.consensus.evidence import Evidence
from holdfast.consensus.leading import Leading
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of, replica_id
from holdfast.model.ids import LogIndex


class LettingIn:
    """What the leaders of one node's groups do about their members, from one look to the next."""

    def __init__(
        self, current_life_of: Callable[[str], str | None], is_gone: Callable[[str], bool] = lambda node: False
    ) -> None:
        # Of which of its disks a node last spoke; `None` while it has not been heard.
        self._current_life_of = current_life_of
        # Whether a node was silent for so long that it shall not vote any more.
        self._is_gone = is_gone
        # What was committed when groups were looked at last.
        self._decided: dict[Raft, LogIndex] = {}
        # Of those who would be the second voter: whether they have everything in all groups. Found once in a look.
        self._complete: dict[ReplicaId, bool] = {}
        self.evidence = Evidence()

    def looked(self, rafts: Iterable[Raft]) -> None:
        """A look at all groups is over."""
        self._decided = {raft: raft.commit for raft in rafts}
        self._complete = {}
        self.evidence.looked()

    def next_members(
        self,
        leading: Leading,
        raft: Raft,
        *,
        wanted: Collection[str],
        goes: Callable[[ReplicaId], bool] = lambda replica: False,
        listens: Callable[[ReplicaId], bool] = lambda replica: False,
        beside: Collection[Raft] = (),
        is_informed: Callable[[], bool] = lambda: True,
        leaves_last: bool = False,
        partner: ReplicaId | None = None,
        before: Collection[Raft] = (),
    ) -> Members | None:
        """The next step of a group that is led here; `None` if everybody has the place it should have.

        `None` also while those who shall vote are asked whether they are there: `evidence.asks` tells.

        `wanted` are the nodes that belong to every group. Who `goes` is taken out, but for those who are to listen on;
        `beside` are all groups of this node. A reign that is not informed of what was decided about nodes before it
        began lets nobody in and takes nobody out: one could have left meanwhile, or have come back. Where two become
        one, or a node is gone, a group that `leaves_last` waits for all others. `partner` is the other of a pair while
        it belongs to no group. Nobody votes here who does not vote in the groups of `before`, for good.
        """
        if goes(raft.replica):
            return None  # it hands over first: who leads next takes it out
        step = (
            self._mended(leading, raft, goes)
            or self._by_rows(leading, raft, wanted, goes, listens, beside if leaves_last else (), is_informed)
            or self._without_vote_of_one_gone(leading, raft, beside if leaves_last else ())
            or self._with_partner(raft, partner)
            or self._next_step_of_a_learner(leading, raft, goes, beside, before)
        )
        if step is None or step.voters == raft.members.voters:
            return step
        return step if self.evidence.is_there(leading, raft, step.voters) else None

    def _by_rows(
        self,
        leading: Leading,
        raft: Raft,
        wanted: Collection[str],
        goes: Callable[[ReplicaId], bool],
        listens: Callable[[ReplicaId], bool],
        first: Collection[Raft],
        is_informed: Callable[[], bool],
    ) -> Members | None:
        """Who goes, then who comes, by rows that are not older than this reign."""
        step = self._without_one_that_goes(leading, raft, goes, listens, first) or self._with_one_more(
            raft, wanted, goes
        )
        return step if step is not None and is_informed() else None

    def _with_one_more(self, raft: Raft, wanted: Collection[str], goes: Callable[[ReplicaId], bool]) -> Members | None:
        """It joins, or a topic was made while it was being let in and began without it."""
        members = raft.members
        nodes = {node_of(member) for member in members.everybody}
        for node in sorted(wanted):
            life = self._current_life_of(node)
            if node not in nodes and life is not None and not goes(replica_id(node, life)):
                return Members(members.voters, members.learners | {replica_id(node, life)})
        return None

    def _with_partner(self, raft: Raft, partner: ReplicaId | None) -> Members | None:
        members = raft.members
        if partner is None or node_of(partner) in map(node_of, members.everybody):
            return None
        return Members(members.voters, members.learners | {partner})

    def _mended(self, leading: Leading, raft: Raft, goes: Callable[[ReplicaId], bool]) -> Members | None:
        """In the place of who lost its disk comes whoever its node is now."""
        members = raft.members
        for old in sorted(members.voters):
            new = self._now(old)
            if new == old or new in members.voters or goes(old) or goes(new):
                continue
            if new not in members.learners:
                return Members(members.voters, members.learners | {new})
            if self._has_everything(leading, raft, new):
                return Members(members.voters - {old}, members.learners)
        return None

    def _without_one_that_goes(
        self,
        leading: Leading,
        raft: Raft,
        goes: Callable[[ReplicaId], bool],
        listens: Callable[[ReplicaId], bool],
        first: Collection[Raft],
    ) -> Members | None:
        voters, learners = raft.members
        for leaver in sorted(filter(goes, voters)):
            if len(voters) == 2 and not all(each is raft or _is_out_for_good(leaver, each) for each in first):
                continue
            if self.is_enough(leading, raft, voters - {leaver}):
                return Members(voters - {leaver}, learners | {leaver} if listens(leaver) else learners)
        for leaver in sorted(filter(goes, learners)):
            if not listens(leaver):
                return Members(voters, learners - {leaver})
        return None

    def _without_vote_of_one_gone(self, leading: Leading, raft: Raft, first: Collection[Raft]) -> Members | None:
        """Of three at least: of two, the one that is left has no majority to decide it with."""
        voters, learners = raft.members
        for gone in sorted(voter for voter in voters if len(voters) > 2 and self._is_gone(node_of(voter))):
            is_last = all(each is raft or _is_out_for_good(gone, each) for each in first)
            if is_last and self.is_enough(leading, raft, voters - {gone}):
                return Members(voters - {gone}, learners | {gone})
        return None

    def is_enough(self, leading: Leading, raft: Raft, voters: Collection[ReplicaId]) -> bool:
        """Whether those of them that are there and have everything are a majority of them.

        Else nothing could be decided any more, and not even this be undone.
        """
        well = [voter for voter in voters if voter == raft.replica or self._is_well(leading, raft, voter)]
        return len(well) >= len(voters) // 2 + 1

    def is_well_everywhere(self, rafts: Iterable[Raft], replica: ReplicaId) -> bool:
        """Whether it is there and has everything of those groups that are led here."""
        return all(self.is_enough(raft.leading, raft, {replica}) for raft in rafts if raft.leading is not None)

    def _is_well(self, leading: Leading, raft: Raft, voter: ReplicaId) -> bool:
        return self._now(voter) == voter and self._is_there(voter) and self._has_everything(leading, raft, voter)

    def _is_there(self, replica: ReplicaId) -> bool:
        return self._current_life_of(node_of(replica)) is not None

    def _next_step_of_a_learner(
        self,
        leading: Leading,
        raft: Raft,
        goes: Callable[[ReplicaId], bool],
        beside: Collection[Raft],
        before: Collection[Raft],
    ) -> Members | None:
        members = raft.members
        voting_nodes = {node_of(voter) for voter in members.voters}
        for learner in sorted(members.learners):
            if goes(learner):
                continue
            if (now := self._now(learner)) != learner:
                # Its disk was lost again. Without the new one, nothing here says that its node belongs to the group.
                is_missed = node_of(learner) not in voting_nodes and not goes(now)
                return Members(members.voters, members.learners - {learner} | ({now} if is_missed else set()))
            if node_of(learner) in voting_nodes or not self._has_everything(leading, raft, learner):
                continue
            is_wanted = _votes_for_good(learner, before) and self._may_be_second(raft, learner, beside)
            if is_wanted and self._is_there(learner):
                return Members(members.voters | {learner}, members.learners - {learner})
        return None

    def _may_be_second(self, raft: Raft, learner: ReplicaId, beside: Collection[Raft]) -> bool:
        """Of two voters both are needed, so the second one is let in when it has everything everywhere."""
        if len(raft.members.voters) > 1:
            return True
        if learner not in self._complete:
            led = [(each.leading, each) for each in beside if each.leading is not None]
            self._complete[learner] = all(self._has_everything(leading, each, learner) for leading, each in led)
        return self._complete[learner]

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


def _is_out_for_good(replica: ReplicaId, raft: Raft) -> bool:
    return replica not in raft.members.voters and raft.members_index <= raft.commit


def _votes_for_good(replica: ReplicaId, groups: Iterable[Raft]) -> bool:
    return all(replica in raft.members.voters and raft.members_index <= raft.commit for raft in groups)

"""What people are told of the control group's elections, and for how long it had no leader.

It is looked at with every tick, and before a vote is given. An election that is over within a tick is told all the
same: the term, the vote and the leader it left behind say what happened.
"""

from __future__ import annotations

import structlog

from holdfast.consensus.members import NOBODY, ReplicaId
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of
from holdfast.model.ids import Term

log = structlog.get_logger("holdfast.cluster")


class Elections:
    """Of one node: what it saw last, so that each change is told once."""

    def __init__(self) -> None:
        # For how long no leader was heard of: in all, and now.
        self.leaderless_s = self.leaderless_now_s = 0.0
        self._seen: tuple[Term, ReplicaId, ReplicaId] | None = None

    def look(self, raft: Raft, passed_s: float) -> None:
        if raft.hears_leader:
            self.leaderless_now_s = 0.0
        else:
            self.leaderless_now_s += passed_s
            self.leaderless_s += passed_s
        now = (raft.term, raft.vote, raft.leader)
        if now != self._seen:
            # What it voted in an earlier life of the process was told then.
            before, self._seen = self._seen or (raft.term, raft.vote, NOBODY), now
            self._tell(raft, *before)

    def _tell(self, raft: Raft, term: Term, vote: ReplicaId, leader: ReplicaId) -> None:
        # Where nobody else votes it is no news.
        tell = log.debug if raft.members.voters == {raft.replica} else log.info
        if raft.vote != NOBODY and (raft.term, raft.vote) != (term, vote):
            if raft.vote == raft.replica:
                tell("asks_for_votes", term=raft.term)
            else:
                tell("voted", candidate=node_of(raft.vote), term=raft.term)
        if raft.leader != NOBODY and (raft.term, raft.leader) != (term, leader):
            tell("new_leader", leader=node_of(raft.leader), term=raft.term)

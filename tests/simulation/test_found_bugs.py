"""What the simulator has found, kept as the seeds that find it again should it come back, and as plain cases."""

from __future__ import annotations

import pytest
from simulation.run import run_seed
from simulation.simulators import CLUSTER, PAIR

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId, members_in_log
from holdfast.consensus.messages import HardState
from holdfast.consensus.raft import Raft
from holdfast.model.ids import LogIndex, Term

# Each of these seeds broke something when the bug was there. `test_mutants` plants these bugs again.
NAMED_SEEDS = {
    1: "match-before-term: a heartbeat's answer promised a match before its term was on the disk",
    5: "newcomer-not-asked: a learner heard nothing until the next message was published",
    52: "answers-nobody: a candidate still owed an answer to the leader it had given up, and sent it to nobody",
    128: "never-installs: a log that ended before the leader's began was probed again and again, without end",
    168: "removed-voter-does-not-stand: of two voters the leader removed itself and crashed; nobody could be elected",
}

FIRST = MembersAt(LogIndex(-1), Term(0), Members.of(["n0.0", "n1.0", "n2.0"]))
NEVER_WRITTEN = MembersAt(LogIndex(5), Term(2), Members.of(["n0.0", "n1.0"]))


@pytest.mark.parametrize("seed", NAMED_SEEDS)
def test_bug_has_not_come_back(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.is_clean, CLUSTER.described(outcome)


def test_sleeping_group_whose_messages_were_dropped_lets_its_partner_vote() -> None:
    outcome = PAIR.run_seed(59, profile="network")
    assert outcome.is_clean, PAIR.described(outcome)


def test_members_that_were_saved_but_never_written_leave_the_disk_before_the_log_grows() -> None:
    shape = LogShape.of_runs(LogIndex(-1), Term(0), [(LogIndex(0), Term(1))], LogIndex(4))
    hard_state = HardState(Term(2), NOBODY, (FIRST, NEVER_WRITTEN))
    ready = Raft(ReplicaId("n0.0"), shape=shape, hard_state=hard_state, dice=lambda _: 0).ready()
    assert ready.hard_state is not None and ready.hard_state.members == (FIRST,)
    assert ready.is_hard_state_first


def test_members_that_were_cut_off_do_not_come_back_when_the_log_has_passed_them() -> None:
    shape = LogShape(LogIndex(30), Term(3), LogIndex(30))
    assert members_in_log((NEVER_WRITTEN, FIRST), shape) == (FIRST,)

"""Changes of members, handing over and reads, rule by rule. Sections are those of Ongaro's dissertation."""

from __future__ import annotations

import pytest

from holdfast.consensus.leading import Leading
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import HardState, HeartbeatReply, TimeoutNow
from holdfast.consensus.raft import Raft
from holdfast.consensus.roles import Role
from holdfast.model.ids import LogIndex, Term
from tests.consensus.alone import (
    N1,
    N2,
    N3,
    THREE,
    a_raft,
    answers,
    append_of,
    entries_of,
    history_of,
    lead,
    members_entry,
    reply_of,
    request_of,
    role_of,
    settle,
    tick,
)
from tests.consensus.disk import Log

_TWO = Members.of(["n1", "n2"])


def _settled_leader(members: Members = THREE) -> tuple[Raft, Leading]:
    """Its reign's first entry is decided."""
    raft = a_raft(N1, members=members)
    lead(raft)
    settle(raft)
    for voter in sorted(members.voters - {N1}):
        raft.step(voter, reply_of(1, 1))
    settle(raft)
    assert raft.leading is not None and raft.commit == 1
    return raft, raft.leading


def test_members_count_as_soon_as_they_are_in_the_log_4_1() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(1, (1, 1), [members_entry(1, _TWO)]))
    assert raft.members == _TWO
    ready = raft.ready()
    assert ready.is_hard_state_first
    assert ready.hard_state is not None
    assert [at.members for at in ready.hard_state.members] == [THREE, _TWO]


def test_members_that_are_cut_count_no_longer_4_1() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(1, (1, 1), [members_entry(1, _TWO)]))
    settle(raft)
    raft.step(N3, append_of(2, (1, 1), entries_of(2)))
    assert (raft.members, raft.members_index) == (THREE, 0)


def test_older_members_are_kept_until_the_next_start_for_a_crash_may_bring_their_log_back_4_1() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(1, (1, 1), [members_entry(1, _TWO)]))
    settle(raft)
    raft.step(N1, append_of(1, (2, 1), commit=2))
    settle(raft)
    raft.compacted_to(LogIndex(2))
    assert [at.members for at in raft.members_history] == [THREE, _TWO]
    assert raft.first_members == MembersAt(LogIndex(2), Term(1), _TWO)


@pytest.mark.parametrize("is_written", [True, False])
def test_saved_members_count_if_their_entry_is_in_the_log_4_1(is_written: bool) -> None:
    entries = [*entries_of(1), members_entry(1, _TWO)] if is_written else entries_of(1)
    saved = (*history_of(THREE), MembersAt(LogIndex(2), Term(1), _TWO))
    shape = Log(entries=entries).shape()
    raft = Raft(N1, shape=shape, hard_state=HardState(Term(1), NOBODY, saved), dice=lambda sides: 0)
    assert raft.members == (_TWO if is_written else THREE)


def test_saved_members_do_not_count_if_another_entry_is_in_their_place_4_1() -> None:
    saved = (*history_of(THREE), MembersAt(LogIndex(2), Term(1), _TWO))
    shape = Log(entries=entries_of(1, 2)).shape()
    raft = Raft(N1, shape=shape, hard_state=HardState(Term(2), NOBODY, saved), dice=lambda sides: 0)
    assert raft.members == THREE


@pytest.mark.parametrize(
    ("members", "is_refused"),
    [
        (THREE, False),
        (_TWO, False),
        (Members.of(["n1", "n2", "n3", "n4"]), False),
        (Members.of(["n1", "n2", "n3"], ["n4", "n5"]), False),
        (Members.of(["n1", "n2"], ["n3"]), False),
        (Members.of(["n2", "n3"]), False),
        (Members.of(["n1"]), True),
        (Members.of(["n1", "n2", "n4"]), True),
        (Members.of(["n1", "n2", "n3", "n4", "n5"]), True),
        (Members.of([]), True),
        (Members.of(["n1", "n2", "n3"], ["n3"]), True),
    ],
    ids=str,
)
def test_one_voter_comes_or_goes_at_a_time_4_1(members: Members, is_refused: bool) -> None:
    _, leading = _settled_leader()
    assert (leading.refusal(members) is not None) is is_refused


def test_a_change_waits_for_the_one_before_4_1() -> None:
    raft, leading = _settled_leader()
    raft.appended_members(Members.of(["n1", "n2", "n3"], ["n4"]))
    settle(raft)
    assert leading.refusal(THREE) is not None
    raft.step(N2, reply_of(1, 2))
    assert leading.refusal(THREE) is None


def test_a_change_waits_for_the_reigns_first_decision_4_1() -> None:
    raft = a_raft(N1, terms=[1])
    lead(raft)
    settle(raft)
    assert raft.leading is not None
    assert raft.leading.refusal(_TWO) is not None
    raft.step(N2, reply_of(2, 1))
    assert raft.leading.refusal(_TWO) is not None
    raft.step(N2, reply_of(2, 2))
    assert raft.leading.refusal(_TWO) is None


def test_what_is_saved_before_a_change_names_it_at_its_place_4_1() -> None:
    raft, _ = _settled_leader()
    saved = raft.hard_state_with(_TWO)
    assert saved.members == (*history_of(THREE), MembersAt(LogIndex(2), Term(1), _TWO))
    raft.appended_members(_TWO)
    ready = raft.ready()
    assert (ready.hard_state, ready.is_hard_state_first) == (saved, False)


def test_a_learners_disk_does_not_count_4_2_1() -> None:
    raft = a_raft(N1, members=Members.of(["n1", "n2", "n3"], ["n4"]))
    lead(raft)
    settle(raft)
    raft.step(ReplicaId("n4"), reply_of(1, 1))
    assert raft.commit == 0
    raft.step(N2, reply_of(1, 1))
    assert raft.commit == 1


def test_a_promoted_learners_disk_counts_with_what_it_has_4_2_1() -> None:
    raft, _ = _settled_leader(Members.of(["n1", "n2"], ["n3"]))
    raft.step(N3, reply_of(1, 1))
    raft.appended_members(THREE)
    settle(raft)
    assert raft.commit == 1
    raft.step(N3, reply_of(1, 2))
    assert raft.commit == 2


def test_a_leader_that_leaves_does_not_count_itself_and_then_gives_up_4_2_2() -> None:
    raft, _ = _settled_leader()
    raft.appended_members(Members.of(["n2", "n3"]))
    settle(raft)
    raft.step(N2, reply_of(1, 2))
    assert raft.leading is not None
    raft.step(N3, reply_of(1, 2))
    assert (role_of(raft), raft.commit, raft.term) == (Role.FOLLOWER, 2, 1)
    tick(raft, 100)
    assert raft.ready().messages == []


def test_who_has_left_is_sent_nothing_and_counts_for_nothing_4_2() -> None:
    raft, leading = _settled_leader()
    raft.appended_members(_TWO)
    assert raft.ready().replicate == [N2]
    assert set(leading.progress) == {N2}
    raft.step(N3, reply_of(1, 2))
    raft.log_durable(LogIndex(2))
    assert raft.commit == 1


def test_the_last_voter_decides_alone_4_2() -> None:
    raft, _ = _settled_leader(_TWO)
    raft.appended_members(Members.of(["n1"]))
    raft.ready()
    assert raft.commit == 1
    raft.log_durable(LogIndex(2))
    assert raft.commit == 2


def test_the_only_voter_decides_what_its_disk_has_whatever_the_term() -> None:
    raft = a_raft(N1, terms=[1, 2, 2], members=Members.of(["n1"], ["n2"]))
    raft.campaign()
    settle(raft)
    assert (raft.term, raft.commit) == (3, 3)
    raft.appended()
    assert raft.commit == 3
    raft.log_durable(LogIndex(4))
    assert raft.commit == 4


def test_a_handover_waits_until_the_other_has_everything_3_10() -> None:
    raft, leading = _settled_leader()
    raft.appended()
    settle(raft)
    leading.transfer(N3)
    assert not leading.takes_proposals
    assert answers(raft.ready(), N3) == []
    raft.step(N2, reply_of(1, 2))
    assert TimeoutNow(Term(1)) not in answers(raft.ready(), N2)
    raft.step(N3, reply_of(1, 2))
    assert TimeoutNow(Term(1)) in answers(raft.ready(), N3)


def test_a_handover_that_fails_is_given_up_3_10() -> None:
    raft, leading = _settled_leader()
    leading.transfer(N3)
    for _ in range(11):
        assert not leading.takes_proposals
        tick(raft, 1)
        raft.step(N2, HeartbeatReply(Term(1), 0, LogIndex(1)))
    assert leading.takes_proposals
    assert raft.leading is leading


def test_a_handover_that_is_asked_for_again_is_said_again_and_given_up_as_soon_3_10() -> None:
    raft, leading = _settled_leader()
    leading.transfer(N3)
    assert TimeoutNow(Term(1)) in answers(raft.ready(), N3)
    for _ in range(11):
        assert not leading.takes_proposals
        leading.transfer(N3)
        assert TimeoutNow(Term(1)) in answers(raft.ready(), N3)
        tick(raft, 1)
        raft.step(N2, HeartbeatReply(Term(1), 0, LogIndex(1)))
    assert leading.takes_proposals


def test_a_handover_ends_when_the_other_leaves_3_10() -> None:
    raft, leading = _settled_leader()
    raft.appended()
    leading.transfer(N3)
    raft.appended_members(_TWO)
    assert leading.takes_proposals


def test_the_old_leader_follows_the_one_it_wished_for_3_10() -> None:
    raft, leading = _settled_leader()
    leading.transfer(N3)
    raft.step(N3, request_of(2, (1, 1), is_transfer=True))
    assert (raft.leading, raft.term, raft.vote) == (None, 2, N3)


def test_a_read_needs_answers_to_a_later_question_6_4() -> None:
    raft, leading = _settled_leader()
    tick(raft, 2)
    raft.ready()
    leading.read(7)
    raft.ready()
    raft.step(N2, HeartbeatReply(Term(1), 1, LogIndex(1)))
    raft.step(N3, HeartbeatReply(Term(1), 1, LogIndex(1)))
    assert raft.ready().reads == []
    raft.step(N3, HeartbeatReply(Term(1), 2, LogIndex(1)))
    assert raft.ready().reads == [(7, 1)]


def test_a_read_needs_voters_6_4() -> None:
    raft, leading = _settled_leader(Members.of(["n1", "n2", "n3"], ["n4"]))
    leading.read(7)
    raft.ready()
    raft.step(ReplicaId("n4"), HeartbeatReply(Term(1), 1, LogIndex(1)))
    assert raft.ready().reads == []
    raft.step(N2, HeartbeatReply(Term(1), 1, LogIndex(1)))
    assert raft.ready().reads == [(7, 1)]


def test_a_read_sees_what_was_decided_when_it_was_asked_for_6_4() -> None:
    raft, leading = _settled_leader()
    leading.read(7)
    raft.appended()
    settle(raft)
    raft.step(N2, reply_of(1, 2))
    raft.step(N2, HeartbeatReply(Term(1), 1, LogIndex(2)))
    assert raft.ready().reads == [(7, 1)]


def test_reads_are_given_up_with_the_reign_6_4() -> None:
    raft, leading = _settled_leader()
    leading.read(7)
    raft.step(N2, append_of(2, (1, 1)))
    ready = raft.ready()
    assert (ready.reads, ready.reads_failed) == ([], [7])
    assert raft.ready().reads_failed == []


def test_early_reads_wait_for_the_reigns_first_decision_6_4() -> None:
    raft = a_raft(N1, terms=[1])
    lead(raft)
    settle(raft)
    assert raft.leading is not None
    raft.leading.read(7)
    tick(raft, 2)
    raft.ready()
    raft.step(N2, HeartbeatReply(Term(2), 1, LogIndex(1)))
    assert raft.ready().reads == []
    raft.step(N2, reply_of(2, 2))
    assert raft.ready().reads == []
    raft.step(N2, HeartbeatReply(Term(2), 2, LogIndex(2)))
    assert raft.ready().reads == [(7, 2)]


def test_a_read_is_confirmed_when_everybody_else_has_left_6_4() -> None:
    raft, leading = _settled_leader(_TWO)
    leading.read(7)
    raft.ready()
    raft.appended_members(Members.of(["n1"]))
    confirmed: list[int] = []
    for _ in range(10):
        ready = raft.ready()
        confirmed += [token for token, _ in ready.reads]
        raft.saved(ready.hard_state_number)
        raft.log_durable(raft.shape.last_index)
        tick(raft, 1)
    assert confirmed == [7]

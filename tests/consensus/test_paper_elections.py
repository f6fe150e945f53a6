"""Elections, rule by rule. Sections are those of Ongaro's dissertation."""

from __future__ import annotations

import pytest

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import NOBODY, Members, ReplicaId
from holdfast.consensus.messages import (
    AppendReply,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
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
    history_of,
    lead,
    reply_of,
    request_of,
    role_of,
    settle,
    tick,
)


def _heartbeat(term: int) -> Heartbeat:
    return Heartbeat(Term(term), LogIndex(0), 1, may_sleep=False)


def _candidate(members: Members = THREE) -> Raft:
    raft = a_raft(N1, members=members)
    raft.campaign(is_transfer=True)
    settle(raft)
    return raft


@pytest.mark.parametrize(
    "message",
    [
        append_of(9, (0, 0)),
        _heartbeat(9),
        reply_of(9, 0),
        HeartbeatReply(Term(9), 1, LogIndex(0)),
        VoteReply(Term(9), is_granted=False, is_trial=False),
        VoteReply(Term(9), is_granted=False, is_trial=True),
        TimeoutNow(Term(9)),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("role", [Role.TRIAL, Role.CANDIDATE, Role.LEADER])
def test_whoever_hears_of_a_later_term_follows_3_3(role: Role, message: Message) -> None:
    raft = a_raft(N1)
    if role is Role.LEADER:
        lead(raft)
    else:
        raft.campaign(is_transfer=role is Role.CANDIDATE)
    assert raft.role is role
    raft.step(N2, message)
    # TimeoutNow of the later term's leader makes it a candidate of the one after.
    assert (raft.role, raft.term) == ((Role.CANDIDATE, 10) if isinstance(message, TimeoutNow) else (Role.FOLLOWER, 9))
    assert raft.leading is None
    assert raft.ready().hard_state is not None


@pytest.mark.parametrize("message", [append_of(1, (0, 0)), _heartbeat(1)], ids=["append", "heartbeat"])
def test_leader_of_an_earlier_term_is_told_so_3_3(message: Message) -> None:
    raft = a_raft(N1, term=3)
    raft.step(N2, message)
    (answer,) = answers(raft.ready(), N2)
    assert isinstance(answer, AppendReply)
    assert (answer.term, answer.is_rejected, raft.leader) == (3, True, NOBODY)


def test_answers_of_an_earlier_term_count_for_nothing_3_3() -> None:
    raft = a_raft(N1, term=3)
    lead(raft)
    settle(raft)
    raft.step(N2, reply_of(3, 1))
    raft.step(N3, reply_of(3, 1))
    assert raft.commit == 0
    raft.step(N3, reply_of(4, 1))
    assert raft.commit == 1


@pytest.mark.parametrize(("dice", "patience_ticks"), [(0, 11), (4, 15), (9, 20)])
def test_patience_is_between_one_and_two_election_times_3_4(dice: int, patience_ticks: int) -> None:
    shape = LogShape(LogIndex(0), Term(0), LogIndex(0))
    raft = Raft(N1, shape=shape, hard_state=HardState(Term(0), NOBODY, history_of(THREE)), dice=lambda sides: dice)
    tick(raft, patience_ticks - 1)
    assert raft.role is Role.FOLLOWER
    tick(raft, 1)
    assert role_of(raft) is Role.TRIAL


def test_a_leader_that_is_heard_is_not_challenged_3_4() -> None:
    raft = a_raft(N1, term=1)
    for _ in range(20):
        raft.step(N2, _heartbeat(1))
        tick(raft, 10)
    assert raft.role is Role.FOLLOWER


@pytest.mark.parametrize(
    ("size", "granted", "refused", "role"),
    [
        (1, 0, 0, Role.LEADER),
        (3, 0, 0, Role.CANDIDATE),
        (3, 1, 0, Role.LEADER),
        (3, 1, 1, Role.LEADER),
        (3, 0, 1, Role.CANDIDATE),
        (3, 0, 2, Role.FOLLOWER),
        (4, 1, 2, Role.CANDIDATE),
        (4, 2, 0, Role.LEADER),
        (5, 1, 0, Role.CANDIDATE),
        (5, 2, 2, Role.LEADER),
        (5, 1, 3, Role.FOLLOWER),
    ],
)
def test_a_majority_elects_3_4(size: int, granted: int, refused: int, role: Role) -> None:
    raft = _candidate(Members.of(f"n{number}" for number in range(1, size + 1)))
    others = sorted(raft.members.voters - {N1})
    for place, voter in enumerate(others[: granted + refused]):
        raft.step(voter, VoteReply(Term(1), is_granted=place < granted, is_trial=False))
    assert raft.role is role


def test_a_voter_counts_once_and_a_stranger_never_3_4() -> None:
    raft = _candidate(Members.of(["n1", "n2", "n3", "n4", "n5"], ["n6"]))
    yes = VoteReply(Term(1), is_granted=True, is_trial=False)
    for sender in ("n2", "n2", "n2", "n6", "n7"):
        raft.step(ReplicaId(sender), yes)
    assert raft.role is Role.CANDIDATE
    raft.step(N3, yes)
    assert role_of(raft) is Role.LEADER


def test_a_granted_trial_is_no_vote_9_6() -> None:
    raft = _candidate()
    raft.step(N2, VoteReply(Term(1), is_granted=True, is_trial=True))
    raft.step(N3, VoteReply(Term(2), is_granted=True, is_trial=True))
    assert raft.role is Role.CANDIDATE


def test_first_come_first_served_3_4() -> None:
    raft = a_raft(N1)
    raft.step(N2, request_of(1, (0, 0)))
    raft.step(N3, request_of(1, (0, 0)))
    said = settle(raft)
    assert (N2, VoteReply(Term(1), is_granted=True, is_trial=False)) in said
    assert (N3, VoteReply(Term(1), is_granted=False, is_trial=False)) in said


def test_candidate_that_hears_the_winner_follows_3_4() -> None:
    raft = _candidate()
    raft.step(N2, append_of(1, (0, 0)))
    assert (raft.role, raft.leader, raft.term, raft.vote) == (Role.FOLLOWER, N2, 1, N1)


@pytest.mark.parametrize(
    ("own", "theirs", "is_granted"),
    [
        ([1], (1, 1), True),
        ([1], (2, 1), True),
        ([1, 1], (1, 1), False),
        ([1], (1, 2), True),
        ([1, 1], (1, 2), True),
        ([2], (1, 1), False),
        ([2], (9, 1), False),
        ([1, 2], (3, 1), False),
    ],
)
@pytest.mark.parametrize("is_trial", [True, False], ids=["trial", "earnest"])
def test_only_a_log_as_current_as_ones_own_gets_a_vote_3_6_1(
    own: list[int], theirs: tuple[int, int], is_granted: bool, is_trial: bool
) -> None:
    raft = a_raft(N1, terms=own, term=4)
    raft.step(N2, request_of(5, theirs, is_trial=is_trial))
    (reply,) = [message for to, message in settle(raft) if to == N2]
    assert isinstance(reply, VoteReply)
    assert (reply.is_granted, reply.is_trial) == (is_granted, is_trial)


def test_nothing_is_promised_before_the_disk_has_it_3_8() -> None:
    voter = a_raft(N1)
    voter.step(N2, request_of(1, (0, 0)))
    ready = voter.ready()
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote, ready.messages) == (1, N2, [])
    voter.saved(ready.hard_state_number - 1)
    assert voter.ready().messages == []
    voter.saved(ready.hard_state_number)
    assert answers(voter.ready(), N2) == [VoteReply(Term(1), is_granted=True, is_trial=False)]


def test_candidate_asks_and_counts_itself_only_when_saved_3_8() -> None:
    raft = a_raft(N1, members=Members.of(["n1"]))
    raft.campaign()
    ready = raft.ready()
    assert (raft.role, ready.messages) == (Role.CANDIDATE, [])
    raft.saved(ready.hard_state_number)
    assert raft.role is Role.LEADER

    raft = a_raft(N1)
    raft.campaign(is_transfer=True)
    ready = raft.ready()
    assert ready.messages == []
    raft.saved(ready.hard_state_number)
    assert {to for to, message in raft.ready().messages if isinstance(message, VoteRequest)} == {N2, N3}


def test_promises_of_an_earlier_term_are_dropped_3_8() -> None:
    raft = a_raft(N1)
    raft.step(N2, request_of(1, (0, 0)))
    raft.step(N3, _heartbeat(2))
    said = settle(raft)
    assert not any(isinstance(message, VoteReply) for _, message in said)


def test_restart_brings_back_term_and_vote_3_8() -> None:
    raft = a_raft(N1, term=4, vote=N2)
    raft.step(N3, request_of(4, (9, 3)))
    assert answers(raft.ready(), N3) == [VoteReply(Term(4), is_granted=False, is_trial=False)]


def test_trial_changes_nothing_for_the_asked_9_6() -> None:
    raft = a_raft(N1, term=3)
    tick(raft, 10)
    raft.step(N2, request_of(9, (0, 0), is_trial=True))
    assert (raft.term, raft.vote, raft.ready().hard_state) == (3, NOBODY, None)
    tick(raft, 1)
    assert raft.role is Role.TRIAL, "its patience was not prolonged"


def test_trial_changes_nothing_for_the_asking_9_6() -> None:
    raft = a_raft(N1, term=3)
    tick(raft, 11)
    ready = raft.ready()
    assert (raft.term, raft.vote, ready.hard_state) == (3, NOBODY, None)
    assert [message.term for _, message in ready.messages] == [4, 4]


def test_trial_that_a_majority_refuses_is_over_9_6() -> None:
    raft = a_raft(N1, term=3)
    raft.campaign()
    raft.step(N2, VoteReply(Term(3), is_granted=False, is_trial=True))
    assert raft.role is Role.TRIAL
    raft.step(N3, VoteReply(Term(3), is_granted=False, is_trial=True))
    assert (raft.role, raft.term) == (Role.FOLLOWER, 3)


def test_trial_for_a_term_that_has_come_already_is_refused_9_6() -> None:
    raft = a_raft(N1, term=5)
    raft.step(N2, request_of(5, (9, 4), is_trial=True))
    assert answers(raft.ready(), N2) == [VoteReply(Term(5), is_granted=False, is_trial=True)]


@pytest.mark.parametrize("is_leader", [True, False], ids=["the leader", "its follower"])
def test_who_hears_a_leader_does_not_hear_candidates_4_2_3(is_leader: bool) -> None:
    raft = a_raft(N1, term=1)
    if is_leader:
        lead(raft)
        settle(raft)
    else:
        raft.step(N3, _heartbeat(2))
        settle(raft)
    raft.step(N2, request_of(9, (9, 9), is_trial=True))
    assert answers(raft.ready(), N2) == [VoteReply(Term(2), is_granted=False, is_trial=True)]
    raft.step(N2, request_of(9, (9, 9)))
    assert (raft.term, answers(raft.ready(), N2)) == (2, [])


def test_who_has_not_heard_the_leader_for_an_election_time_hears_candidates_4_2_3() -> None:
    raft = a_raft(N1, term=1)
    raft.step(N3, _heartbeat(1))
    tick(raft, 9)
    raft.step(N2, request_of(2, (0, 0)))
    assert raft.term == 1
    tick(raft, 1)
    raft.step(N2, request_of(2, (0, 0)))
    assert (raft.term, raft.vote) == (2, N2)


def test_suspicion_replaces_the_rest_of_the_patience() -> None:
    raft = a_raft(N1, term=1)
    raft.step(N3, _heartbeat(1))
    raft.suspect_leader()
    assert not raft.hears_leader
    tick(raft, 1)
    assert raft.role is Role.TRIAL


def test_the_leaders_wish_is_heard_while_it_leads_3_10() -> None:
    raft = a_raft(N1, term=1)
    raft.step(N3, _heartbeat(1))
    raft.step(N2, request_of(2, (0, 0), is_transfer=True))
    assert (raft.term, raft.vote) == (2, N2)


def test_who_is_told_to_campaign_does_not_ask_first_3_10() -> None:
    raft = a_raft(N1, term=1)
    raft.step(N3, TimeoutNow(Term(1)))
    assert (raft.role, raft.term) == (Role.CANDIDATE, 2)
    requests = [message for _, message in settle(raft) if isinstance(message, VoteRequest)]
    assert requests and all(request.is_transfer and not request.is_trial for request in requests)


def test_learners_and_strangers_never_campaign_4_2_1() -> None:
    raft = a_raft(N1, members=Members.of(["n2", "n3"], ["n1"]))
    tick(raft, 100)
    raft.step(N2, TimeoutNow(Term(0)))
    assert (raft.role, raft.term, raft.ready().messages) == (Role.FOLLOWER, 0, [])

"""When one of two takes the other for gone, who gives way, and in which terms they stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import Append, AppendReply, HardState, Heartbeat
from holdfast.consensus.partner import PairSettings, PartnerWatch, Standing
from holdfast.consensus.raft import Raft
from holdfast.consensus.roles import next_term
from holdfast.consensus.timing import DEFAULT_TIMING
from holdfast.model.entries import KIND_REIGN, Entry
from holdfast.model.ids import LogIndex, Term

SETTINGS = PairSettings(heartbeat_s=1.0, misses=3)


def test_partner_that_was_heard_and_refuses_connections_is_gone_at_once() -> None:
    watch = PartnerWatch(SETTINGS, 0.0)
    assert not watch.linked(0.1)
    assert not watch.refused(), "there still is a connection"
    watch.unlinked()
    assert watch.refused()
    assert watch.is_away
    assert not watch.refused(), "it is told once"


def test_partner_that_was_never_heard_may_be_about_to_start() -> None:
    watch = PartnerWatch(SETTINGS, 0.0)
    assert not watch.refused()
    assert not watch.is_away
    assert [watch.look(at) for at in (1.0, 2.0, 3.0, 3.5)] == [False, False, False, True]


def test_partner_that_is_silent_is_gone_after_its_misses_and_back_with_its_first_word() -> None:
    watch = PartnerWatch(SETTINGS, 0.0)
    watch.linked(0.0)
    looks = [watch.look(at / 2) for at in range(1, 8)]
    assert looks == [False] * 6 + [True]
    assert watch.heard(4.0)
    assert not watch.is_away
    assert not watch.heard(4.1)


@pytest.mark.parametrize("misses", [1, 3])
def test_a_partner_whose_answers_take_longer_now_and_then_is_not_gone(misses: int) -> None:
    watch = PartnerWatch(SETTINGS._replace(misses=misses), 0.0)
    watch.linked(0.0)
    for tenth in range(1, 100):
        beat, part = divmod(tenth, 10)
        if part == 0:
            watch.asked(float(beat))
        assert not watch.look(tenth / 10 + 0.01)
        if part == (4 if beat % 2 else 0):
            watch.heard(tenth / 10 + 0.02)


@pytest.mark.parametrize("misses", [1, 3])
def test_a_partner_that_answers_no_more_is_gone_half_an_interval_after_the_last_heartbeat_it_may_miss(
    misses: int,
) -> None:
    watch = PartnerWatch(SETTINGS._replace(misses=misses), 0.0)
    watch.linked(0.0)
    gone_at = None
    for tenth in range(1, 60):
        if tenth % 10 == 0:
            watch.asked(tenth / 10)
        if watch.look(tenth / 10):
            gone_at = tenth
    assert gone_at == misses * 10 + 6


def test_a_partner_that_cannot_be_reached_to_be_asked_is_gone_after_its_misses() -> None:
    watch = PartnerWatch(SETTINGS, 0.0)
    watch.linked(0.0)
    assert not watch.look(1.0)
    watch.asked(1.0)
    watch.unlinked()
    assert [watch.look(at) for at in (1.5, 2.0, 2.5, 3.0, 3.5)] == [False, False, False, False, True]


def test_one_that_stood_still_itself_does_not_blame_the_other() -> None:
    watch = PartnerWatch(SETTINGS, 0.0)
    watch.linked(0.0)
    assert not watch.look(0.5)
    assert not watch.look(60.0), "nobody has read what it said meanwhile"
    assert [watch.look(60.0 + at) for at in (1.0, 2.0, 3.0, 3.5)] == [False, False, False, True]


def test_of_two_that_went_on_alone_the_later_one_stays() -> None:
    earlier, later = Standing(Term(4), is_alone=True), Standing(Term(5), is_alone=True)
    assert earlier.yields_to(later)
    assert not later.yields_to(earlier)
    assert not earlier.yields_to(later._replace(is_alone=False))
    assert not earlier._replace(is_alone=False).yields_to(later)


@given(st.integers(0, 1 << 40), st.booleans())
def test_standing_survives_the_wire(term: int, is_alone: bool) -> None:
    standing = Standing(Term(term), is_alone)
    assert Standing.decode(standing.encode()) == standing


@pytest.mark.parametrize("text", ["", "4", "alone", "4 alone ", "-4 alone", "4 both", "٤ alone", "4  together"])
def test_anything_else_is_no_standing(text: str) -> None:
    with pytest.raises(ValueError, match="standing"):
        Standing.decode(text)


@given(st.integers(0, 1 << 40))
def test_two_never_stand_in_the_same_term(term: int) -> None:
    first, second = next_term(Term(term), 0), next_term(Term(term), 1)
    assert first % 2 == 0
    assert second % 2 == 1
    assert {first, second} == {term + 1, term + 2}
    assert next_term(Term(term), None) == term + 1


def lone(seat: int = 0) -> Raft:
    """A follower of a pair whose leader is gone."""
    founders = MembersAt(LogIndex(-1), Term(0), Members.of(["a.1", "b.1"]))
    return Raft(
        ReplicaId("a.1"),
        shape=LogShape.of_runs(LogIndex(0), Term(0), [], LogIndex(0)),
        hard_state=HardState(Term(3), NOBODY, (founders,)),
        dice=lambda sides: 0,
        seat=seat,
    )


def test_taking_over_needs_nobody_but_its_own_disk() -> None:
    raft = lone()
    raft.take_over()
    ready = raft.ready()
    assert raft.leading is None, "its vote is not on the disk yet"
    raft.saved(ready.hard_state_number)
    assert raft.leading is not None
    assert raft.term == 4
    raft.appended()
    raft.log_durable(LogIndex(1))
    assert raft.commit == 0, "together with the other one it decides nothing"


def test_taking_over_waits_for_a_disk_that_is_slower_than_an_election() -> None:
    raft = lone(seat=1)
    raft.take_over()
    ready = raft.ready()
    for _ in range(100):
        raft.tick()
        raft.take_over()
    raft.saved(ready.hard_state_number)
    assert raft.leading is not None
    assert raft.term == 5


def test_one_that_is_no_voter_takes_nothing_over() -> None:
    raft = lone()
    raft.members_history = (MembersAt(LogIndex(-1), Term(0), Members.of(["b.1"], ["a.1"])),)
    raft.take_over()
    assert raft.ready().hard_state is None
    assert raft.term == 3


@pytest.mark.parametrize("at_once", [True, False])
def test_a_commit_is_told_at_once_or_with_the_next_heartbeat(at_once: bool) -> None:
    founders = MembersAt(LogIndex(-1), Term(0), Members.of(["a.1", "b.1"]))
    raft = Raft(
        ReplicaId("a.1"),
        shape=LogShape.of_runs(LogIndex(0), Term(0), [], LogIndex(0)),
        hard_state=HardState(Term(3), NOBODY, (founders,)),
        dice=lambda sides: 0,
        timing=DEFAULT_TIMING._replace(tells_commits_at_once=at_once),
        seat=0,
    )
    other = ReplicaId("b.1")
    raft.take_over()
    raft.saved(raft.ready().hard_state_number)
    assert raft.leading is not None
    raft.appended()
    raft.log_durable(LogIndex(1))
    raft.ready()
    raft.leading.append_message(other, [Entry(raft.term, KIND_REIGN, b"")])
    raft.step(
        other,
        AppendReply(
            raft.term,
            LogIndex(1),
            is_rejected=False,
            rejected_index=LogIndex(0),
            hint_index=LogIndex(0),
            hint_term=Term(0),
        ),
    )
    assert raft.commit == 1
    told = [message for _, message in raft.ready().messages]
    assert [message.commit for message in told if isinstance(message, Append)] == ([1] if at_once else [])
    for _ in range(DEFAULT_TIMING.heartbeat_ticks):
        raft.tick()
    told = [message for _, message in raft.ready().messages]
    assert [message.commit for message in told if isinstance(message, Heartbeat)] == [1]

"""Whoever asks is answered, whoever is behind catches up, and who may not lead still votes."""

from __future__ import annotations

import pytest

from holdfast.consensus.members import Members
from holdfast.consensus.messages import Heartbeat, VoteReply
from holdfast.model.ids import LogIndex, Term
from tests.consensus.alone import N1, N2, N3, a_raft, answers, request_of, settle, tick
from tests.consensus.script import Script


def play(text: str) -> tuple[Script, list[str]]:
    script = Script()
    said = []
    for command in text.strip().splitlines():
        said += script.run(command)
    return script, said


def test_far_behind_follower_of_a_new_leader_gets_an_installation_at_once() -> None:
    play("""cluster n1 n2 n3
elect n1
isolate n3
propose n1 a b c d e
deliver
compact n2 4
heal
transfer n1 n2
deliver""")


def test_restarted_follower_of_an_idle_group_learns_what_is_decided() -> None:
    script, _ = play("""cluster n1 n2 n3
elect n1
propose n1 a
deliver
crash n3
restart n3
run 60""")
    assert script.cluster.nodes[N3].raft.commit == 2


def test_group_with_a_restarted_follower_goes_to_sleep_for_good() -> None:
    script, _ = play("""cluster n1 n2 n3
elect n1
run 40
crash n3
restart n3
run 200""")
    script.cluster.events = []
    script.do_run("100")
    assert script.cluster.events == []


def test_repeated_vote_request_is_answered_when_the_vote_is_on_the_disk() -> None:
    raft = a_raft(N2, term=1, vote=N1)  # restarted after it had voted
    settle(raft)
    raft.step(N1, request_of(1, (0, 0)))
    assert answers(raft.ready(), N1) == [VoteReply(Term(1), True, False)]


def test_voter_that_must_not_campaign_still_votes_when_the_leader_is_gone() -> None:
    raft = a_raft(N2, term=1)
    raft.may_campaign = False
    raft.step(N1, Heartbeat(Term(1), LogIndex(0), 1, False))
    tick(raft, 11)
    assert not raft.hears_leader


@pytest.mark.parametrize("body", [b"a,,b|", b"b,a|", b"a,a|", b"a|b|c", b"a|b,,c", b"a|a", b",|", b"a|,"])
def test_members_that_encode_does_not_make_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        Members.decode(body)


def test_campaign_wakes() -> None:
    raft = a_raft(N2, term=1)
    raft.step(N1, Heartbeat(Term(1), LogIndex(0), 1, True))
    assert raft.is_asleep
    raft.campaign()
    assert not raft.is_asleep

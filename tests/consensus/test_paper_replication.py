"""Replication of the log, rule by rule. Sections are those of Ongaro's dissertation."""

from __future__ import annotations

import pytest

from holdfast.consensus.members import NOBODY
from holdfast.consensus.messages import Append, AppendReply, HardState, Heartbeat, HeartbeatReply, Install
from holdfast.consensus.progress import Mode
from holdfast.consensus.roles import Role
from holdfast.model.ids import LogIndex, Term
from tests.consensus.alone import (
    FIVE,
    N1,
    N2,
    N3,
    N4,
    THREE,
    a_raft,
    answers,
    append_of,
    entries_of,
    history_of,
    lead,
    reply_of,
    role_of,
    settle,
    tick,
)
from tests.consensus.disk import Disk, Log
from tests.consensus.driver import Cluster

_FIGURE_3_6_LEADER = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
_FIGURE_3_6_FOLLOWERS = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("case", sorted(_FIGURE_3_6_FOLLOWERS))
@pytest.mark.parametrize("batch", [1, 100])
def test_leader_makes_every_log_its_own_figure_3_6(case: str, batch: int) -> None:
    cluster = Cluster()
    cluster.batch = batch
    cluster.first_members = THREE
    hard_state = HardState(Term(7), NOBODY, history_of(THREE))
    for name, terms in (
        (N1, _FIGURE_3_6_LEADER),
        (N2, _FIGURE_3_6_LEADER),
        (N3, _FIGURE_3_6_FOLLOWERS[case]),
    ):
        cluster.add(name, Disk(hard_state, Log(entries=entries_of(*terms))))
    for _ in range(11):
        cluster.nodes[N1].do(lambda raft: raft.tick())
    cluster.deliver()
    logs = {name: [entry.term for entry in node.disk.log.entries] for name, node in cluster.nodes.items()}
    assert logs == {name: [*_FIGURE_3_6_LEADER, 8] for name in (N1, N2, N3)}
    questions = [line for line in cluster.events if line.startswith("n3 → n1 AppendReply") and "rejected" in line]
    assert len(questions) <= len(set(_FIGURE_3_6_FOLLOWERS[case])), "one question per term at most"


@pytest.mark.parametrize(
    ("after", "hint"),
    [
        ((0, 0), None),
        ((1, 1), None),
        ((2, 2), None),
        ((2, 1), (1, 1)),
        ((2, 3), (1, 1)),
        ((3, 2), (2, 2)),
        ((9, 2), (2, 2)),
        ((9, 1), (1, 1)),
    ],
)
def test_an_append_needs_the_entry_before_it_3_5(after: tuple[int, int], hint: tuple[int, int] | None) -> None:
    raft = a_raft(N2, terms=[1, 2])
    raft.step(N1, append_of(3, after, entries_of(3)))
    ready = raft.ready()
    assert bool(ready.entries) is (hint is None)
    if hint is not None:
        (reply,) = answers(ready, N1)
        assert isinstance(reply, AppendReply)
        assert reply.is_rejected
        assert (reply.rejected_index, (reply.hint_index, reply.hint_term)) == (after[0], hint)


@pytest.mark.parametrize(
    ("own", "after", "entries", "cut_from", "written", "result"),
    [
        ([1, 1], (2, 1), [3], None, [3], [1, 1, 3]),
        ([1, 1], (1, 1), [3], 2, [3], [1, 3]),
        ([1, 2, 2], (1, 1), [3], 2, [3], [1, 3]),
        ([1, 2, 2], (1, 1), [2, 3], 3, [3], [1, 2, 3]),
        ([1, 2, 2], (1, 1), [2], None, [], [1, 2, 2]),
        ([1, 2, 2], (1, 1), [2, 2], None, [], [1, 2, 2]),
        ([1, 2, 2], (1, 1), [2, 2, 3, 3], None, [3, 3], [1, 2, 2, 3, 3]),
        ([1, 2, 2], (0, 0), [1, 2], None, [], [1, 2, 2]),
        ([1, 2, 2], (1, 1), [], None, [], [1, 2, 2]),
        ([], (0, 0), [1, 2], None, [1, 2], [1, 2]),
    ],
)
def test_only_a_conflict_cuts_the_log_3_5(
    own: list[int],
    after: tuple[int, int],
    entries: list[int],
    cut_from: int | None,
    written: list[int],
    result: list[int],
) -> None:
    raft = a_raft(N2, terms=own)
    raft.step(N1, append_of(3, after, entries_of(*entries)))
    ready = raft.ready()
    assert (ready.truncate_from, [entry.term for entry in ready.entries]) == (cut_from, written)
    assert [raft.shape.term_at(LogIndex(index)) for index in range(1, raft.shape.last_index + 1)] == result


def test_what_was_not_written_yet_is_cut_before_it_is_3_5() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(2, (1, 1), entries_of(2, 2, 2)))
    raft.step(N3, append_of(3, (2, 2), entries_of(3)))
    ready = raft.ready()
    assert (ready.truncate_from, [entry.term for entry in ready.entries]) == (None, [2, 3])


@pytest.mark.parametrize(
    ("after", "count", "leader_commit", "commit"),
    [((2, 1), 1, 3, 3), ((2, 1), 1, 9, 3), ((2, 1), 2, 3, 3), ((1, 1), 0, 9, 1), ((0, 0), 0, 9, 0), ((2, 1), 0, 1, 1)],
)
def test_follower_takes_as_decided_only_what_is_known_to_match_3_5(
    after: tuple[int, int], count: int, leader_commit: int, commit: int
) -> None:
    raft = a_raft(N2, terms=[1, 1])
    raft.step(N1, append_of(2, after, entries_of(*[2] * count), commit=leader_commit))
    assert raft.commit == commit


def test_late_news_take_nothing_back_3_5() -> None:
    raft = a_raft(N2, terms=[1, 1])
    raft.step(N1, append_of(2, (2, 1), entries_of(2), commit=3))
    raft.step(N1, append_of(2, (1, 1), commit=1))
    raft.step(N1, Heartbeat(Term(2), LogIndex(0), 1, may_sleep=False))
    assert raft.commit == 3


def test_match_is_told_when_it_is_durable_3_8() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(1, (1, 1), entries_of(1, 1), commit=3))
    ready = raft.ready()
    assert ready.commit == 1, "nothing is shown that a crash could take back"
    assert answers(ready, N1) in ([], [reply_of(1, 1)])
    raft.log_durable(LogIndex(2))
    ready = raft.ready()
    assert (answers(ready, N1), ready.commit) == ([reply_of(1, 2)], 2)
    raft.log_durable(LogIndex(3))
    ready = raft.ready()
    assert (answers(ready, N1), ready.commit) == ([reply_of(1, 3)], 3)


def test_match_is_told_when_its_term_is_durable_3_8() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(2, (1, 1), entries_of(2)))
    ready = raft.ready()
    raft.log_durable(LogIndex(2))
    assert raft.ready().messages == []
    raft.saved(ready.hard_state_number)
    assert answers(raft.ready(), N1) == [reply_of(2, 2)]


def test_entry_is_shown_when_its_term_is_durable_3_8() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(1, (1, 1), commit=1))
    assert raft.ready().commit == 1
    raft.step(N3, append_of(2, (1, 1), entries_of(2), commit=2))
    ready = raft.ready()
    raft.log_durable(LogIndex(2))
    assert raft.ready().commit == 1, "a crash would bring it back to term 1, where an older leader could cut the entry"
    raft.saved(ready.hard_state_number)
    assert raft.ready().commit == 2


def test_a_heartbeats_answer_promises_no_more_than_an_appends_3_8() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(2, (1, 1), entries_of(2)))
    ready = raft.ready()
    raft.log_durable(LogIndex(2))
    raft.step(N1, Heartbeat(Term(2), LogIndex(0), 1, may_sleep=False))
    (answer,) = answers(raft.ready(), N1)
    assert isinstance(answer, HeartbeatReply)
    assert answer.match < 2, "a crash would bring it back to term 1, where an older leader could cut the entry"
    raft.saved(ready.hard_state_number)
    assert answers(raft.ready(), N1) == [reply_of(2, 2)]


def test_the_disk_cannot_speak_for_entries_that_are_about_to_be_cut_3_8() -> None:
    raft = a_raft(N2, terms=[1, 1, 1])
    raft.step(N1, append_of(2, (1, 1), entries_of(2, 2)))
    raft.log_durable(LogIndex(3))
    assert raft.durable == 1
    raft.ready()
    raft.log_durable(LogIndex(3))
    assert raft.durable == 3


def test_entries_of_earlier_terms_are_decided_with_one_of_this_term_only_3_6_2() -> None:
    raft = a_raft(N1, terms=[1, 2], members=FIVE)
    lead(raft)
    settle(raft)
    for member in (N2, N3, N4):
        raft.step(member, reply_of(3, 2))
    assert raft.commit == 0
    raft.step(N2, reply_of(3, 3))
    assert raft.commit == 0
    raft.step(N3, reply_of(3, 3))
    assert raft.commit == 3


def test_leader_counts_itself_for_what_its_disk_has_10_2_1() -> None:
    raft = a_raft(N1)
    lead(raft)
    raft.ready()
    raft.step(N2, reply_of(1, 1))
    assert raft.commit == 0
    raft.log_durable(LogIndex(1))
    assert raft.commit == 1


def test_leader_decides_without_its_own_disk_but_shows_nothing_10_2_1() -> None:
    raft = a_raft(N1)
    lead(raft)
    raft.ready()
    raft.step(N2, reply_of(1, 1))
    raft.step(N3, reply_of(1, 1))
    assert (raft.commit, raft.ready().commit) == (1, 0)


def test_a_follower_is_asked_with_one_message_and_then_streamed_to_10_2_1() -> None:
    raft = a_raft(N1)
    lead(raft)
    leading = raft.leading
    assert leading is not None
    assert raft.ready().replicate == [N2, N3]
    leading.append_message(N2, entries_of(1))
    raft.appended(2)
    assert raft.ready().replicate == [N3]
    raft.step(N2, reply_of(1, 1))
    assert raft.ready().replicate == [N2, N3]
    leading.append_message(N2, entries_of(1))
    assert raft.ready().replicate == [N2, N3], "no answer is waited for"
    leading.append_message(N2, entries_of(1))
    assert raft.ready().replicate == [N3], "there is nothing more"


def test_what_is_lost_is_sent_again_3_5() -> None:
    raft = a_raft(N1)
    lead(raft)
    settle(raft)
    raft.step(N2, reply_of(1, 1))
    leading = raft.leading
    assert leading is not None
    raft.appended()
    leading.append_message(N2, entries_of(1))
    assert N2 not in raft.ready().replicate
    leading.lost_link(N2)
    assert N2 in raft.ready().replicate
    message = leading.append_message(N2, entries_of(1))
    assert message.previous_index == 1
    assert leading.progress[N2].match < 0, "who comes back may have lost what it had"


def test_old_refusals_move_nothing_3_5() -> None:
    raft = a_raft(N1, terms=[1, 1, 1])
    lead(raft)
    settle(raft)
    leading = raft.leading
    assert leading is not None
    raft.step(N2, reply_of(2, 3))
    for rejected in (0, 2, 3, 4, 99):
        raft.step(N2, AppendReply(Term(2), LogIndex(-1), True, LogIndex(rejected), LogIndex(0), Term(0)))
    progress = leading.progress[N2]
    assert (progress.match, progress.next, progress.mode) == (3, 4, Mode.STREAM)


def test_installation_of_what_is_decided_already_changes_nothing_5() -> None:
    raft = a_raft(N2, terms=[1, 1, 1])
    raft.step(N1, append_of(1, (3, 1), commit=3))
    raft.step(N1, Install(Term(1), LogIndex(2), Term(1), history_of(THREE), b""))
    ready = raft.ready()
    assert (ready.install, raft.shape.last_index) == (None, 3)
    assert answers(ready, N1)[-1] == reply_of(1, 3)


def test_installation_keeps_a_log_that_goes_on_behind_it_5() -> None:
    raft = a_raft(N2, terms=[1, 1, 1])
    raft.step(N1, Install(Term(1), LogIndex(2), Term(1), history_of(THREE), b""))
    ready = raft.ready()
    assert (ready.install, raft.shape.last_index) == (None, 3)
    assert answers(ready, N1) == [reply_of(1, 2)]


@pytest.mark.parametrize("own", [[], [1], [1, 1, 1, 1]])
def test_installation_replaces_any_other_log_5(own: list[int]) -> None:
    raft = a_raft(N2, terms=own)
    install = Install(Term(3), LogIndex(3), Term(2), history_of(THREE), b"")
    raft.step(N1, install)
    raft.step(N1, append_of(3, (3, 2), entries_of(3)))
    raft.log_durable(LogIndex(4))
    ready = raft.ready()
    assert ready.is_hard_state_first
    assert (ready.install, ready.truncate_from, len(ready.entries)) == (install, None, 1)
    assert answers(ready, N1) == []
    raft.saved(ready.hard_state_number)
    raft.log_durable(LogIndex(3))
    assert answers(raft.ready(), N1) == [reply_of(3, 3)]
    raft.log_durable(LogIndex(4))
    assert answers(raft.ready(), N1) == [reply_of(3, 4)]


def test_an_append_that_begins_in_what_was_dropped_is_taken_from_there_5() -> None:
    raft = a_raft(N2, terms=[2], base=(5, 1), term=2)
    raft.step(N1, append_of(2, (3, 1), entries_of(1, 1, 2, 2), commit=7))
    ready = raft.ready()
    assert (ready.truncate_from, [entry.term for entry in ready.entries]) == (None, [2])
    assert (raft.shape.last_index, raft.commit) == (7, 7)


def test_leader_stops_leading_when_a_majority_is_silent_6_2() -> None:
    raft = a_raft(N1)
    lead(raft)
    settle(raft)
    tick(raft, 9)
    raft.step(N2, reply_of(1, 1))
    tick(raft, 10)
    assert raft.leading is not None
    tick(raft, 1)
    assert (role_of(raft), raft.term, raft.leader) == (Role.FOLLOWER, 1, NOBODY)


@pytest.mark.parametrize("match", [1, 2])
def test_nobody_sleeps_while_somebody_lacks_something(match: int) -> None:
    raft = a_raft(N1)
    lead(raft)
    raft.appended()
    settle(raft)
    raft.step(N2, reply_of(1, 2))
    settle(raft)
    for _ in range(40):
        raft.step(N2, reply_of(1, 2))
        raft.step(N3, reply_of(1, match))
        tick(raft, 1)
        raft.ready()
    assert raft.is_asleep is (match == 2)


def test_commit_reaches_followers_that_have_everything_3_5() -> None:
    raft = a_raft(N1)
    lead(raft)
    settle(raft)
    raft.step(N2, reply_of(1, 1))
    (news,) = answers(raft.ready(), N2)
    assert isinstance(news, Append)
    assert (news.commit, list(news.entries)) == (1, [])


def test_who_campaigns_owes_nobody_an_answer_3_4() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(1, (1, 1), entries_of(1)))
    raft.ready()
    tick(raft, 11)
    raft.ready()
    raft.log_durable(LogIndex(2))
    assert not [message for _, message in raft.ready().messages if isinstance(message, AppendReply)]

"""Who the members are after a crash: hard state and log are two files, and each may be older than the other.

A node that came back with members of a log it no longer has could elect a leader nobody else knows of (4.1).
"""

from __future__ import annotations

from holdfast.consensus.members import Members
from holdfast.consensus.messages import HardState, Install
from holdfast.consensus.raft import Raft
from holdfast.model.ids import LogIndex, Term
from tests.consensus.alone import (
    N1,
    N2,
    N3,
    N4,
    THREE,
    a_raft,
    append_of,
    entries_of,
    history_of,
    members_entry,
    request_of,
    settle,
    tick,
)
from tests.consensus.disk import Log

_TWO = Members.of(["n1", "n2"])
_WITH_LEARNER = Members.of(["n1", "n2", "n3"], ["n4"])


def _restarted(raft: Raft, hard_state: HardState | None, log: Log) -> Raft:
    assert hard_state is not None
    return Raft(raft.replica, shape=log.shape(), hard_state=hard_state, dice=lambda sides: 0)


def _with_undecided_members() -> Raft:
    """Its log is an entry and the members n1 and n2, of which nothing is decided."""
    raft = a_raft(N3, terms=[1])
    raft.step(N1, append_of(1, (1, 1), [members_entry(1, _TWO)]))
    settle(raft)
    assert raft.members == _TWO
    return raft


def test_members_that_were_cut_do_not_come_back_when_the_log_is_compacted() -> None:
    raft = _with_undecided_members()
    raft.step(N2, append_of(2, (1, 1), entries_of(2, 2), commit=3))
    saved = None
    for _ in range(5):
        ready = raft.ready()
        saved = ready.hard_state or saved
        raft.saved(ready.hard_state_number)
        raft.log_durable(raft.shape.last_index)
    assert (raft.members, raft.shown) == (THREE, 3)
    raft.compacted_to(LogIndex(3))
    saved = raft.ready().hard_state or saved
    assert _restarted(raft, saved, Log(LogIndex(3), Term(2))).members == THREE


def test_members_of_a_log_that_was_replaced_do_not_come_back() -> None:
    raft = _with_undecided_members()
    raft.step(N2, Install(Term(2), LogIndex(10), Term(2), history_of(THREE), b""))
    ready = raft.ready()
    assert ready.is_hard_state_first
    assert ready.install is not None
    assert _restarted(raft, ready.hard_state, Log(LogIndex(10), Term(2))).members == THREE


def test_members_that_were_cut_are_remembered_until_the_cut_is_durable() -> None:
    raft = _with_undecided_members()
    raft.step(N2, append_of(2, (1, 1), entries_of(2)))
    ready = raft.ready()
    assert ready.truncate_from == 2
    raft.saved(ready.hard_state_number)
    # The hard state is saved once more before the log is: the power goes, and the old entry is there again.
    tick(raft, 10)
    raft.step(N1, request_of(3, (5, 2)))
    ready = raft.ready()
    log = Log(entries=[*entries_of(1), members_entry(1, _TWO)])
    assert _restarted(raft, ready.hard_state, log).members == _TWO


def test_newcomer_that_crashes_before_its_log_is_durable_starts_again() -> None:
    raft = a_raft(N4)
    raft.step(N1, append_of(1, (0, 0), [*entries_of(1), members_entry(1, _WITH_LEARNER)], commit=2))
    ready = raft.ready()
    assert ready.is_hard_state_first
    assert _restarted(raft, ready.hard_state, Log()).members == THREE


def test_older_members_are_remembered_until_the_newer_are_durable_here() -> None:
    raft = a_raft(N2, terms=[1])
    raft.step(N1, append_of(1, (1, 1), [members_entry(1, _WITH_LEARNER)]))
    ready = raft.ready()
    saved = ready.hard_state
    raft.saved(ready.hard_state_number)
    raft.step(N1, append_of(1, (2, 1), commit=2))  # decided by the disks of others
    saved = raft.ready().hard_state or saved
    assert _restarted(raft, saved, Log(entries=entries_of(1))).members == THREE

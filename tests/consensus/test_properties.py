"""The parts of Raft that are plain arithmetic, against simpler ones that are obviously right."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.progress import INFLIGHT_BYTES_MAX, INFLIGHT_MESSAGES_MAX, Mode, Progress
from holdfast.model.ids import LogIndex, Term

_NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_", min_size=1, max_size=8)
_SMALL_GROUPS = st.frozensets(st.sampled_from("abcdefg"), min_size=1, max_size=6)


class _LogShapeIsAListOfTerms(RuleBasedStateMachine):
    """`terms[0]` is the base's."""

    @initialize(base_index=st.integers(0, 5), base_term=st.integers(0, 3))
    def begin(self, base_index: int, base_term: int) -> None:
        self.shape = LogShape(LogIndex(base_index), Term(base_term), LogIndex(base_index))
        self.base_index, self.terms = base_index, [base_term]

    @rule(step=st.integers(0, 2), count=st.integers(1, 4))
    def append(self, step: int, count: int) -> None:
        term = Term(self.terms[-1] + step)
        self.shape.append(term, count)
        self.terms += [term] * count

    @precondition(lambda self: len(self.terms) > 1)
    @rule(data=st.data())
    def truncate_from(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(1, len(self.terms) - 1))
        self.shape.truncate_from(LogIndex(self.base_index + place))
        del self.terms[place:]

    @rule(data=st.data())
    def compact_to(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.terms) - 1))
        self.shape.compact_to(LogIndex(self.base_index + place))
        self.base_index += place
        del self.terms[:place]

    @rule(gap=st.integers(0, 3), step=st.integers(0, 2))
    def reset(self, gap: int, step: int) -> None:
        base_index = self.base_index + len(self.terms) - 1 + gap
        base_term = self.terms[-1] + step
        self.shape.reset(LogIndex(base_index), Term(base_term))
        self.base_index, self.terms = base_index, [base_term]

    @rule(data=st.data())
    def place_at_or_below(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.base_index, self.base_index + len(self.terms) + 2))
        term = data.draw(st.integers(self.terms[0], self.terms[-1] + 1))
        place = min(index - self.base_index, len(self.terms) - 1)
        while self.terms[place] > term:
            place -= 1
        found = self.shape.place_at_or_below(LogIndex(index), Term(term))
        assert found == (self.base_index + place, self.terms[place])

    @rule()
    def come_back_from_runs(self) -> None:
        runs = [
            (LogIndex(self.base_index + place), Term(term))
            for place, term in enumerate(self.terms)
            if place and (place == 1 or self.terms[place - 1] != term)
        ]
        shape = self.shape
        self.shape = LogShape.of_runs(shape.base_index, shape.base_term, runs, shape.last_index)

    @invariant()
    def is_the_list(self) -> None:
        if not hasattr(self, "terms"):
            return
        last_index = self.base_index + len(self.terms) - 1
        assert (self.shape.base_index, self.shape.base_term) == (self.base_index, self.terms[0])
        assert (self.shape.last_index, self.shape.last_term) == (last_index, self.terms[-1])
        assert self.shape.first_index == self.base_index + 1
        known = [self.shape.term_at(LogIndex(index)) for index in range(self.base_index, last_index + 1)]
        assert known == self.terms
        assert self.shape.term_at(LogIndex(self.base_index - 1)) is None
        assert self.shape.term_at(LogIndex(last_index + 1)) is None


TestLogShape = _LogShapeIsAListOfTerms.TestCase


def test_terms_never_fall_along_a_log() -> None:
    shape = LogShape(LogIndex(0), Term(2), LogIndex(0))
    with pytest.raises(AssertionError):
        shape.append(Term(1))


@given(st.dictionaries(_NAMES.map(ReplicaId), st.integers(-1, 20).map(LogIndex), min_size=1, max_size=7), st.data())
def test_quorum_index_is_what_a_majority_has(match: dict[ReplicaId, LogIndex], data: st.DataObject) -> None:
    voters = data.draw(st.frozensets(st.sampled_from(sorted(match)), min_size=1))
    members = Members(voters, frozenset(match) - voters)
    having = {index: sum(match[voter] >= index for voter in voters) for index in range(-1, 21)}
    assert members.quorum_index(match) == max(index for index, count in having.items() if 2 * count > len(voters))


@given(st.frozensets(_NAMES, min_size=1, max_size=7), st.frozensets(_NAMES, max_size=4))
def test_members_come_back_from_their_bytes(voters: frozenset[str], learners: frozenset[str]) -> None:
    members = Members.of(voters, learners - voters)
    assert Members.decode(members.encode()) == members
    assert Members.decode(memoryview(members.encode())) == members


@given(st.binary(max_size=40))
def test_garbage_is_refused_as_garbage(body: bytes) -> None:
    try:
        members = Members.decode(body)
    except ValueError:
        return
    assert members.voters


@pytest.mark.parametrize("body", [b"", b"|", b"a", b"a,b", b"|a", "ä|".encode(), b"\xff|"])
def test_what_is_not_members_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        Members.decode(body)


def _majorities(voters: frozenset[str]) -> list[frozenset[str]]:
    size = len(voters) // 2 + 1
    return [frozenset(chosen) for chosen in combinations(sorted(voters), size)]


@given(_SMALL_GROUPS, _SMALL_GROUPS)
def test_majorities_of_one_step_always_meet(one: frozenset[str], other: frozenset[str]) -> None:
    if Members.of(one).is_one_step_from(Members.of(other)):
        assert all(mine & theirs for mine in _majorities(one) for theirs in _majorities(other))


@given(_SMALL_GROUPS, st.sampled_from("abcdefg"))
def test_every_single_change_is_one_step(voters: frozenset[str], name: str) -> None:
    changed = voters ^ {name}
    assert Members.of(changed).is_one_step_from(Members.of(voters)) is bool(changed)


class _ProgressIsBounded(RuleBasedStateMachine):
    """A leader that sends whenever it may, and a follower that answers now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress(LogIndex(10))
        self.under_way: list[tuple[int, int]] = []

    @precondition(lambda self: self.progress.has_room)
    @rule(count=st.integers(1, 5), size=st.sampled_from([0, 1, 1000, 5 * 1024 * 1024]))
    def send(self, count: int, size: int) -> None:
        first = self.progress.next
        is_streaming = self.progress.mode is Mode.STREAM
        self.progress.sent(LogIndex(first + count - 1), size)
        assert self.progress.next == (first + count if is_streaming else first)
        if is_streaming:
            self.under_way.append((first + count - 1, size))
        else:
            assert not self.progress.has_room

    @precondition(lambda self: self.progress.mode is Mode.STREAM)
    @rule()
    def send_many(self) -> None:
        while self.progress.has_room:
            self.send(1, 100)
        assert len(self.under_way) <= INFLIGHT_MESSAGES_MAX

    @rule(index=st.integers(-1, 400))
    def match(self, index: int) -> None:
        before = self.progress.match
        was_streaming = self.progress.mode is Mode.STREAM
        is_answer = index >= self.progress.next - 1
        assert self.progress.matched(LogIndex(index)) is (index > before)
        assert self.progress.match == max(index, before)
        if is_answer:
            assert self.progress.mode is Mode.STREAM
        if is_answer or was_streaming:
            self.under_way = [sent for sent in self.under_way if sent[0] > index] if was_streaming else []

    @rule(index=st.integers(0, 400))
    def probe(self, index: int) -> None:
        self.progress.probe(LogIndex(index))
        self._has_forgotten(Mode.PROBE)

    @rule()
    def install(self) -> None:
        self.progress.install()
        self._has_forgotten(Mode.INSTALL)

    def _has_forgotten(self, mode: Mode) -> None:
        self.under_way = []
        assert self.progress.mode is mode
        assert self.progress.has_room
        assert not self.progress.has_unanswered

    @invariant()
    def is_bounded(self) -> None:
        sizes = [size for _, size in self.under_way]
        assert len(sizes) <= INFLIGHT_MESSAGES_MAX
        assert sum(sizes[:-1]) < INFLIGHT_BYTES_MAX, "only the last one may pass the bound"
        if self.progress.mode is Mode.STREAM:
            is_full = len(sizes) == INFLIGHT_MESSAGES_MAX or sum(sizes) >= INFLIGHT_BYTES_MAX
            assert self.progress.has_room is not is_full
            assert self.progress.has_unanswered is (bool(sizes) or self.progress.match < self.progress.next - 1)

    @invariant()
    def next_is_behind_match(self) -> None:
        if self.progress.mode is not Mode.INSTALL:
            assert self.progress.next > self.progress.match


TestProgress = _ProgressIsBounded.TestCase

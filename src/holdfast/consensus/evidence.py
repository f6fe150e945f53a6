"""Whether those who shall vote are there now: what they said before a change was wanted proves nothing.

A disk may be lost a moment before its node is counted on, and the silence of that node is noticed later. A group whose
configuration needs it would never decide anything again. So whoever wants to change voters asks everybody anew, with a
round of heartbeats, and writes the configuration only when a majority of those who vote then has answered that round
and has what was committed when it began. Of a name whose disk was lost nobody answers.

What is left is a disk that is lost between that answer and the next look.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.consensus.leading import Leading
from holdfast.consensus.members import ReplicaId
from holdfast.consensus.raft import Raft
from holdfast.model.ids import LogIndex

# An answer is not waited for longer than so many looks: by then, what others answered is old.
_LOOKS_MAX: Final = 5


class _Question(NamedTuple):
    leading: Leading
    voters: frozenset[ReplicaId]
    round: int
    decided: LogIndex
    looks: int


class Evidence:
    """What was asked by the leaders of one node's groups, from one look to the next."""

    def __init__(self) -> None:
        self._asked: dict[Raft, _Question] = {}
        self._asked_before: dict[Raft, _Question] = {}

    def looked(self) -> None:
        """A look at all groups is over: what nobody wanted to know any more is forgotten."""
        self._asked_before, self._asked = self._asked, {}

    def is_there(self, leading: Leading, raft: Raft, voters: frozenset[ReplicaId]) -> bool:
        """Whether a majority of them answered after this was first asked; if not, they are asked."""
        if voters == {raft.replica}:
            return True
        question = self._asked_before.get(raft)
        if question is None or question.leading is not leading or question.voters != voters:
            question = _asked_now(leading, raft, voters)
        elif leading.has_majority(voters, question.round, question.decided):
            return True
        elif question.looks >= _LOOKS_MAX:
            question = _asked_now(leading, raft, voters)
        self._asked[raft] = question._replace(looks=question.looks + 1)
        return False

    def asks(self, raft: Raft) -> bool:
        """Whether this group has something to send for that reason."""
        return raft in self._asked

    def counted_on(self, raft: Raft) -> Iterator[frozenset[ReplicaId]]:
        """The voters that may be written at the next look, because of what they have answered by now."""
        for question in (self._asked.get(raft), self._asked_before.get(raft)):
            if question is not None and question.leading is raft.leading:
                yield question.voters


def _asked_now(leading: Leading, raft: Raft, voters: frozenset[ReplicaId]) -> _Question:
    return _Question(leading, voters, leading.ask_everybody(), raft.commit, 0)

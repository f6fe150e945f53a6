"""Who belongs to a group, who of them votes, and which changes of that are allowed.

A replica is named after its node and the life of its disk (`n3.6f2a…`): a node that lost its disk is somebody
else, whose votes do not count until it was let in as what it is, a newcomer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, NewType

from holdfast.consensus.log_shape import LogShape
from holdfast.model.ids import LogIndex, Term

ReplicaId = NewType("ReplicaId", str)
NOBODY = ReplicaId("")


class Members(NamedTuple):
    """Voters count, learners only listen (4.2.1)."""

    voters: frozenset[ReplicaId]
    learners: frozenset[ReplicaId] = frozenset()

    @classmethod
    def of(cls, voters: Iterable[str], learners: Iterable[str] = ()) -> Members:
        return cls(frozenset(map(ReplicaId, voters)), frozenset(map(ReplicaId, learners)))

    @property
    def everybody(self) -> frozenset[ReplicaId]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    def quorum_index(self, match: Mapping[ReplicaId, LogIndex]) -> LogIndex:
        """The highest index that a majority of the voters has."""
        ordered = sorted((match[voter] for voter in self.voters), reverse=True)
        return ordered[self.quorum - 1]

    def is_one_step_from(self, other: Members) -> bool:
        """Any majority of the one meets any majority of the other, since they differ in one voter at most (4.1)."""
        return bool(self.voters) and len(self.voters ^ other.voters) <= 1 and not self.voters & self.learners

    def encode(self) -> bytes:
        """`voter,voter|learner`; names hold neither of these characters."""
        return f"{','.join(sorted(self.voters))}|{','.join(sorted(self.learners))}".encode()

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> Members:
        """Raises `ValueError` for anything `encode` does not make."""
        voters, _, learners = bytes(body).decode("ascii").partition("|")
        members = cls.of(voters.split(","), learners.split(",") if learners else ())
        is_odd = any(not name or "|" in name for name in members.everybody)
        if is_odd or members.encode() != bytes(body) or members.voters & members.learners:
            raise ValueError("not the members of a group")
        return members

    def __str__(self) -> str:
        return self.encode().decode()

    def __repr__(self) -> str:
        """The same for the same members, unlike that of a set: runs are compared by what they print."""
        return f"Members({self})"


class MembersAt(NamedTuple):
    """The members from the entry at `since` on; `term` is that entry's, so that it can be told from another there."""

    since: LogIndex
    term: Term
    members: Members


def members_at(history: tuple[MembersAt, ...], index: LogIndex) -> MembersAt:
    """The configuration that holds where an entry stands."""
    return [at for at in history if at.since <= index][-1]


def members_in_log(saved: tuple[MembersAt, ...], shape: LogShape) -> tuple[MembersAt, ...]:
    """Those configurations whose entry is in the log, behind the one that holds where it begins.

    They are saved in the order in which they were taken, so of those that the log has dropped the last one counts:
    one that stands before it was cut off.
    """
    before = [at for at in saved if at.since <= shape.base_index]
    behind = {at for at in saved if at.since > shape.base_index and shape.term_at(at.since) == at.term}
    # A log that was lost begins before anything that was saved: the oldest that is known has to do until it is back.
    first = before[-1] if before else saved[0]._replace(since=LogIndex(-1))
    return (first, *sorted(behind, key=lambda at: at.since))

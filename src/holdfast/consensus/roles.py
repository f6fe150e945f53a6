"""What a member of a group may be, and in which term it may stand."""

from __future__ import annotations

from enum import Enum

from holdfast.model.ids import Term

# Which of two a member is, 0 or 1, where there is no third to ask: see `Raft.take_over`.
Seat = int


class Role(Enum):
    FOLLOWER = "follower"
    # Asks whether it would be elected, without troubling anybody (9.6).
    TRIAL = "trial"
    CANDIDATE = "candidate"
    LEADER = "leader"


def next_term(term: Term, seat: Seat | None) -> Term:
    """The term in which a member would stand: each of two has terms of its own, so that they never lead in the same."""
    if seat is None:
        return Term(term + 1)
    return Term(term + 1 + (term + 1 + seat) % 2)

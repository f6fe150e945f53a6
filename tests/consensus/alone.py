"""One `Raft` without a driver, for tests that say themselves what the disk has and who speaks."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import Append, AppendReply, HardState, Message, Ready, VoteReply, VoteRequest
from holdfast.consensus.raft import Raft
from holdfast.consensus.roles import Role
from holdfast.model.entries import KIND_BATCH, KIND_MEMBERS, NOTE_HEAD_BYTES, Entry
from holdfast.model.ids import LogIndex, Term
from tests.consensus.disk import Log

N1, N2, N3, N4, N5 = (ReplicaId(f"n{number}") for number in range(1, 6))
THREE = Members.of(["n1", "n2", "n3"])
FIVE = Members.of(["n1", "n2", "n3", "n4", "n5"])


def history_of(members: Members) -> tuple[MembersAt, ...]:
    return (MembersAt(LogIndex(0), Term(0), members),)


def a_raft(
    name: ReplicaId = N1,
    *,
    terms: Sequence[int] = (),
    members: Members = THREE,
    term: int | None = None,
    vote: ReplicaId = NOBODY,
    base: tuple[int, int] = (0, 0),
) -> Raft:
    """With a log whose entries have these terms, all of it durable."""
    log = Log(LogIndex(base[0]), Term(base[1]), entries_of(*terms))
    own_term = Term(max([base[1], *terms]) if term is None else term)
    hard_state = HardState(own_term, vote, history_of(members))
    return Raft(name, shape=log.shape(), hard_state=hard_state, dice=lambda sides: 0)


def entries_of(*terms: int) -> list[Entry]:
    return [Entry(Term(term), KIND_BATCH, b"x") for term in terms]


def members_entry(term: int, members: Members) -> Entry:
    return Entry(Term(term), KIND_MEMBERS, bytes(NOTE_HEAD_BYTES) + members.encode())


def append_of(term: int, after: tuple[int, int], entries: Sequence[Entry] = (), commit: int = 0) -> Append:
    return Append(Term(term), LogIndex(after[0]), Term(after[1]), LogIndex(commit), entries)


def request_of(term: int, last: tuple[int, int], *, is_trial: bool = False, is_transfer: bool = False) -> VoteRequest:
    return VoteRequest(Term(term), LogIndex(last[0]), Term(last[1]), is_trial, is_transfer)


def reply_of(term: int, match: int) -> AppendReply:
    return AppendReply(Term(term), LogIndex(match), False, LogIndex(-1), LogIndex(-1), Term(0))


def settle(raft: Raft) -> list[tuple[ReplicaId, Message]]:
    """Let the disk have everything; returns what was said meanwhile."""
    said: list[tuple[ReplicaId, Message]] = []
    for _ in range(10):
        ready = raft.ready()
        said += ready.messages
        raft.saved(ready.hard_state_number)
        raft.log_durable(raft.shape.last_index)
    return said


def answers(ready: Ready, receiver: ReplicaId) -> list[Message]:
    return [message for to, message in ready.messages if to == receiver]


def role_of(raft: Raft) -> Role:
    """As `raft.role`, which mypy takes for constant between two lines."""
    return raft.role


def tick(raft: Raft, count: int) -> None:
    for _ in range(count):
        raft.tick()


def lead(raft: Raft) -> None:
    """Elect it with the votes of all others; it writes an entry for its reign."""
    raft.campaign()
    for is_trial in (True, False):
        settle(raft)
        for voter in sorted(raft.members.voters - {raft.replica}):
            asked_for = Term(raft.term + 1) if is_trial and raft.role.value == "trial" else raft.term
            raft.step(voter, VoteReply(asked_for, is_granted=True, is_trial=is_trial))
    assert raft.leading is not None
    if len(raft.members.voters) > 1:
        raft.appended()

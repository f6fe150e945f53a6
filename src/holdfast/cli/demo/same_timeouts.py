"""The scene of the same election timeout: two members with the same timeout, and two with different ones.

Real processes with the same timeout never stay in step for long, so this scene drives the brokers' own consensus
(`consensus/raft.py`) in virtual time. A message arrives with the next tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId
from holdfast.consensus.messages import HardState, Message, VoteReply, VoteRequest
from holdfast.consensus.raft import Raft
from holdfast.consensus.roles import Role
from holdfast.consensus.timing import ElectionSettings
from holdfast.model.ids import LogIndex, Term

# As long as the brokers' own.
TICK_MS: Final = 50
# Enough for four elections of two who never come to an end.
TICKS_MAX: Final = 60


class Said(NamedTuple):
    """A line of one member: when, who, as what, and its words."""

    tick: int
    member: str
    role: str
    text: str

    @property
    def seconds(self) -> float:
        return self.tick * TICK_MS / 1000


class Duel:
    """Members without a leader, each with its own election timeout in milliseconds."""

    def __init__(self, timeouts_ms: Mapping[str, int]) -> None:
        members = Members.of(timeouts_ms)
        first = HardState(Term(0), NOBODY, (MembersAt(LogIndex(-1), Term(0), members),))
        self.members = {
            name: Raft(
                ReplicaId(name),
                shape=_empty(),
                hard_state=first,
                dice=lambda sides: 0,
                timing=ElectionSettings(timeout_ms_min=timeout_ms, timeout_ms_max=timeout_ms).timing(TICK_MS),
            )
            for name, timeout_ms in timeouts_ms.items()
        }
        self._under_way: list[tuple[ReplicaId, ReplicaId, Message]] = []

    @property
    def leader(self) -> str | None:
        return next((name for name, raft in self.members.items() if raft.leading is not None), None)

    @property
    def term(self) -> int:
        return max(raft.term for raft in self.members.values())

    def play(self, ticks: int) -> Iterator[Said]:
        """Until somebody leads, or so many ticks have passed."""
        for tick in range(1, ticks + 1):
            arriving, self._under_way = self._under_way, []
            for raft in self.members.values():
                raft.tick()
            for sender, receiver, message in arriving:
                if isinstance(message, VoteReply) and not message.is_trial and message.is_granted:
                    yield Said(tick, receiver, self.members[receiver].role.value, f"Be voted by {sender}")
                self.members[receiver].step(sender, message)
            for name, raft in self.members.items():
                yield from self._act(tick, name, raft)
            if self.leader is not None:
                yield Said(tick, self.leader, Role.LEADER.value, f"New leader {self.leader}, term: {self.term}")
                return

    def _act(self, tick: int, name: str, raft: Raft) -> Iterator[Said]:
        """Do what a driver does; the disk of this scene is always fast enough."""
        ready = raft.ready()
        while ready.hard_state is not None:
            if ready.hard_state.vote == raft.replica:
                yield Said(tick, name, raft.role.value, f"Timeout, sending REQUEST_TO_VOTE, term: {raft.term}")
            elif ready.hard_state.vote != NOBODY:
                yield Said(tick, name, raft.role.value, f"Vote to leader {ready.hard_state.vote}, term: {raft.term}")
            raft.saved(ready.hard_state_number)
            yield from self._send(tick, name, raft, ready.messages)
            ready = raft.ready()
        yield from self._send(tick, name, raft, ready.messages)

    def _send(self, tick: int, name: str, raft: Raft, messages: list[tuple[ReplicaId, Message]]) -> Iterator[Said]:
        for receiver, message in messages:
            self._under_way.append((raft.replica, receiver, message))
            if isinstance(message, VoteRequest) and not message.is_trial:
                yield Said(tick, name, raft.role.value, f"Send REQUEST_TO_VOTE to {receiver}")
            elif isinstance(message, VoteReply) and not message.is_trial and not message.is_granted:
                yield Said(tick, name, raft.role.value, f"No vote for {receiver}: it was given in term {message.term}")


def _empty() -> LogShape:
    return LogShape.of_runs(LogIndex(-1), Term(0), [], LogIndex(-1))

"""Terms, votes and members of all groups of a node, in one journal, and who waits for it to be on the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from holdfast.backends.cluster.configurations import Known
from holdfast.consensus.members import Members, MembersAt, ReplicaId
from holdfast.consensus.messages import HardState
from holdfast.model.ids import GroupId, LogIndex, Term
from holdfast.storage.votes import VoteJournal


class _Members(msgspec.Struct, array_like=True, frozen=True):
    since: int
    term: int
    members: bytes


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    term: int
    vote: str
    members: tuple[_Members, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


class HardStates:
    """What is in the journal, decoded; and callbacks in the order of what was put into it."""

    def __init__(self, journal: VoteJournal, found: dict[int, bytes]) -> None:
        self.journal = journal
        self._found = {GroupId(group): decode(state) for group, state in found.items()}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        # Configurations at entries that logs have not reached yet.
        self._expected: dict[GroupId, Known] = {}

    def of(self, group: GroupId) -> HardState | None:
        return self._found.get(group)

    def expect(self, group: GroupId, known: Known) -> None:
        """Save this configuration behind those of the group's log, until there is a later one in the log.

        It counts for a log that begins behind `known.entry`, as it does after a crash (`snapshots.py`).
        """
        self._expected[group] = known

    def put(self, group: GroupId, state: HardState, on_saved: Callable[[], None]) -> None:
        expected = self._expected.get(group)
        if expected is not None:
            if state.members[-1].since > expected.entry:
                del self._expected[group]
            else:
                state = state._replace(members=(*state.members, expected.at))
        self._found[group] = state
        self._waiting.append((self.journal.put(group, encode(state)), on_saved))

    def forget(self, group: GroupId) -> None:
        self._expected.pop(group, None)
        if self._found.pop(group, None) is not None:
            self.journal.forget(group)

    def sync_now(self) -> None:
        """Wait for the disk; rare, and what follows must not come before it."""
        self.journal.sync_now()
        self.synced()

    def when_saved(self, on_saved: Callable[[], None]) -> None:
        """Call back when everything that was put until now is on the disk."""
        if self.journal.synced_number >= self.journal.written_number:
            on_saved()
        else:
            self._waiting.append((self.journal.written_number, on_saved))

    def synced(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.journal.synced_number:
            self._waiting.popleft()[1]()


def encode(state: HardState) -> bytes:
    members = tuple(_Members(at.since, at.term, at.members.encode()) for at in state.members)
    return _encode(_Stored(state.term, state.vote, members))


def decode(stored: bytes) -> HardState:
    found = _decode(stored)
    members = tuple(MembersAt(LogIndex(at.since), Term(at.term), Members.decode(at.members)) for at in found.members)
    return HardState(Term(found.term), ReplicaId(found.vote), members)

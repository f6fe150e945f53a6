"""Who belongs to the cluster at one entry of the control log, as nodes tell it to each other.

A node's state may be ahead of its control log: after it took another node's state over, until its log has caught up.
The configuration there is part of what it is given (`snapshots.py`), or a crash would leave it with the one where its
own log ends. Nodes compare what they know whenever they connect. If they disagree, one of them goes by members that
were replaced long ago; it could acknowledge with too few disks, so they do not talk to each other (`neighbours.py`).

That alone would not stop the node with the old members: with them, it and others like it may be a majority. So a node
that hears of a disagreement takes part in nothing while `is_outvoted` says so: it does not lead, vote or acknowledge.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import Members, MembersAt, members_at, members_in_log
from holdfast.consensus.messages import HardState
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of
from holdfast.model.ids import LogIndex, Term


class Known(NamedTuple):
    """The configuration that holds at a committed entry of the control log."""

    entry: LogIndex
    at: MembersAt

    def encode(self) -> str:
        return f"{self.entry} {self.at.since} {self.at.term} {self.at.members}"

    @classmethod
    def decode(cls, text: str) -> Known:
        """Raises `ValueError` for anything `encode` does not make."""
        entry, since, term, members = text.split(" ")
        found = cls(
            LogIndex(int(entry)), MembersAt(LogIndex(int(since)), Term(int(term)), Members.decode(members.encode()))
        )
        if found.encode() != text or found.at.since > found.entry:
            raise ValueError("not a configuration at an entry of the control log")
        return found

    def contradicts(self, other: Known) -> bool:
        """Whether the two cannot both be true. Changes behind the earlier of the two entries do not count."""
        earlier, later = sorted((self, other), key=lambda known: known.entry)
        return later.at.since <= earlier.entry and later.at != earlier.at

    def __str__(self) -> str:
        return f"{self.at.members} since entry {self.at.since}"


def is_outvoted(own: Known, agreeing: Collection[str], contradicting: Collection[Known]) -> bool:
    """Whether a node must not decide anything, given what nodes that disagree with it know.

    `agreeing` are this node and those it is linked to. A configuration that began earlier than the own one has been
    replaced, so it stops nobody. Against others, the nodes that agree have to be a majority of all nodes that vote
    in any of them: no two groups of nodes that disagree with each other can both be that.
    """
    not_older = [known for known in contradicting if known.at.since >= own.at.since]
    named = {node_of(voter) for known in (own, *not_older) for voter in known.at.members.voters}
    return bool(not_older) and 2 * len(named & set(agreeing)) <= len(named)


def known_at_start(state: HardState | None, shape: LogShape) -> Known | None:
    """What a node knows when it was just opened: the configuration where its control log begins."""
    if state is None:
        return None
    return _if_certain(Known(shape.base_index, members_in_log(state.members, shape)[0]))


def known_by(raft: Raft) -> Known | None:
    """What a running node knows: the configuration at its last committed entry."""
    return known_at(raft, raft.commit)


def known_at(raft: Raft, entry: LogIndex) -> Known | None:
    return _if_certain(Known(entry, members_at(raft.members_history, entry)))


def _if_certain(known: Known) -> Known | None:
    """The founders hold from before any term. With a term, they stand in for what a lost log or lost votes had."""
    return None if known.at.since < 0 and known.at.term > 0 else known

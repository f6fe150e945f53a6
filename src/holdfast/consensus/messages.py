"""What the members of a group say to each other, and what one of them must not forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.consensus.members import Members, MembersAt, ReplicaId
from holdfast.model.entries import Entry
from holdfast.model.ids import LogIndex, Term


class VoteRequest(NamedTuple):
    """`is_trial` asks whether a vote would be given (pre-vote, 9.6); `is_transfer` that the leader wants it (3.10)."""

    term: Term
    last_index: LogIndex
    last_term: Term
    is_trial: bool
    is_transfer: bool


class VoteReply(NamedTuple):
    """For a trial `term` is the one that was asked for if granted, else the voter's own."""

    term: Term
    is_granted: bool
    is_trial: bool


class Append(NamedTuple):
    """`entries` follow the one at `previous_index`; without entries it only tells how far is committed."""

    term: Term
    previous_index: LogIndex
    previous_term: Term
    commit: LogIndex
    entries: Sequence[Entry]


class AppendReply(NamedTuple):
    """`match`: durable here and equal to the leader's log. If rejected: a place where the logs may agree."""

    term: Term
    match: LogIndex
    is_rejected: bool
    rejected_index: LogIndex
    hint_index: LogIndex
    hint_term: Term


class Heartbeat(NamedTuple):
    """`round` comes back in the reply; `may_sleep`: all is quiet, watch the leader's node instead."""

    term: Term
    commit: LogIndex
    round: int
    may_sleep: bool


class HeartbeatReply(NamedTuple):
    term: Term
    round: int
    match: LogIndex


class Install(NamedTuple):
    """Forget your log and begin behind `last_index`; `position` says what that means to the store."""

    term: Term
    last_index: LogIndex
    last_term: Term
    members: tuple[MembersAt, ...]
    position: bytes


class TimeoutNow(NamedTuple):
    """The leader hands over: campaign at once (3.10)."""

    term: Term


Message = VoteRequest | VoteReply | Append | AppendReply | Heartbeat | HeartbeatReply | Install | TimeoutNow


class HardState(NamedTuple):
    """What must survive a crash: the term, the vote in it, and who the members are.

    `members` holds the configuration that holds where the log begins and those behind it, behind others that
    were cut off but may still be on the disk. It may name more than the log has, since it is saved first: those
    whose entry is not in the log do not count.
    """

    term: Term
    vote: ReplicaId
    members: tuple[MembersAt, ...]


class Ready(NamedTuple):
    """What is to be done, in the order of the fields; see the package's text."""

    hard_state: HardState | None
    hard_state_number: int
    # Whether the hard state must be on the disk before the log is touched: it names new members.
    is_hard_state_first: bool
    install: Install | None
    truncate_from: LogIndex | None
    entries: Sequence[Entry]
    messages: list[tuple[ReplicaId, Message]]
    replicate: list[ReplicaId]
    commit: LogIndex
    # Reads that are confirmed: they may be served once the index is applied.
    reads: list[tuple[int, LogIndex]]
    # Reads that will not be: this node leads no longer.
    reads_failed: list[int]


__all__ = [
    "Append",
    "AppendReply",
    "HardState",
    "Heartbeat",
    "HeartbeatReply",
    "Install",
    "Members",
    "Message",
    "Ready",
    "TimeoutNow",
    "VoteReply",
    "VoteRequest",
]

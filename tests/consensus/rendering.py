"""Everything of Raft as a short line of text. A place in a log is written `index/term`, an entry `index/term:what`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.consensus.members import NOBODY, Members, MembersAt
from holdfast.consensus.messages import (
    Append,
    AppendReply,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Install,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from holdfast.consensus.raft import Raft
from holdfast.consensus.roles import Role
from holdfast.model.entries import KIND_BATCH, KIND_MEMBERS, KIND_REIGN, NOTE_HEAD_BYTES, Entry

_MIB = 1024 * 1024


def entry_text(entry: Entry) -> str:
    if entry.kind == KIND_REIGN:
        return "reign"
    if entry.kind == KIND_MEMBERS:
        return f"({Members.decode(entry.payload[NOTE_HEAD_BYTES:])})"
    assert entry.kind == KIND_BATCH
    if len(entry.payload) >= _MIB:
        return f"{len(entry.payload) // _MIB}MiB"
    return bytes(entry.payload).decode()


def entries_text(first_index: int, entries: Sequence[Entry]) -> str:
    return " ".join(f"{first_index + n}/{entry.term}:{entry_text(entry)}" for n, entry in enumerate(entries))


def message_text(message: Message) -> str:
    match message:
        case VoteRequest(term, index, last_term, is_trial, is_transfer):
            kind = " trial" if is_trial else " transfer" if is_transfer else ""
            return f"VoteRequest{kind} term={term} last={index}/{last_term}"
        case VoteReply(term, is_granted, is_trial):
            return f"VoteReply{' trial' if is_trial else ''} term={term} {'granted' if is_granted else 'refused'}"
        case Append(term, index, previous_term, commit, entries):
            text = f"Append term={term} after={index}/{previous_term} commit={commit}"
            return f"{text} [{entries_text(index + 1, entries)}]" if entries else text
        case AppendReply(term, match, is_rejected, rejected, hint_index, hint_term):
            if not is_rejected:
                return f"AppendReply term={term} match={match}"
            hint = f"={rejected} hint={hint_index}/{hint_term}" if rejected >= 0 else ""
            return f"AppendReply term={term} rejected{hint}"
        case Heartbeat(term, commit, number, may_sleep):
            return f"Heartbeat term={term} commit={commit} round={number}{' may-sleep' if may_sleep else ''}"
        case HeartbeatReply(term, number, match):
            return f"HeartbeatReply term={term} round={number} match={match}"
        case Install(term, index, last_term, members, _):
            return f"Install term={term} last={index}/{last_term} members={history_text(members)}"
        case TimeoutNow(term):
            return f"TimeoutNow term={term}"


def history_text(history: Sequence[MembersAt]) -> str:
    return " ".join(f"{at.since}/{at.term}:({at.members})" for at in history)


def hard_state_text(state: HardState) -> str:
    history = f" members={history_text(state.members)}" if len(state.members) > 1 or state.members[0].since else ""
    return f"term={state.term} vote={state.vote or '-'}{history}"


def standing_text(raft: Raft) -> str:
    """Who it is now, and in which term."""
    leader = f" leader={raft.leader}" if raft.role is Role.FOLLOWER and raft.leader != NOBODY else ""
    return f"{raft.role.value} term={raft.term}{leader}{' asleep' if raft.is_asleep else ''}"


def status_text(raft: Raft) -> str:
    leader = f" leader={raft.leader}" if raft.leader not in (NOBODY, raft.replica) else ""
    asleep = " asleep" if raft.is_asleep else ""
    voice = "" if raft.is_voter else " learner" if raft.replica in raft.members.learners else " no-member"
    role = f"{raft.role.value:<9}"
    return f"{role} term={raft.term} commit={raft.commit} last={raft.shape.last_index}{leader}{voice}{asleep}"

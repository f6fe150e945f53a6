"""What a member does in a term while somebody else leads: take entries, say how far it has them, begin anew.

Made when a term begins and thrown away with it: what was equal to one leader's log says nothing about the next one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.consensus.members import NOBODY, ReplicaId
from holdfast.consensus.messages import Append, AppendReply, Heartbeat, HeartbeatReply, Install
from holdfast.model.ids import LogIndex, Term

if TYPE_CHECKING:
    from holdfast.consensus.raft import Raft

_NOTHING: Final = LogIndex(-1)


class Following:
    """One term (3.5)."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        # Up to here the log is known to be equal to that of this term's leader.
        self._matched = raft.commit
        self._owes_answer = False
        self._answered = _NOTHING

    def on_append(self, sender: ReplicaId, append: Append) -> None:
        raft, shape = self._raft, self._raft.shape
        index, entries = append.previous_index, append.entries
        if index < shape.base_index:
            # What we have dropped was committed, so it is what the leader has.
            dropped = min(len(entries), shape.base_index - index)
            index, entries = LogIndex(index + dropped), entries[dropped:]
        elif shape.term_at(index) != append.previous_term:
            hint = shape.place_at_or_below(LogIndex(index - 1), append.previous_term)
            raft.say(sender, AppendReply(raft.term, _NOTHING, True, index, *hint))
            return
        last = LogIndex(index + len(entries))
        if index != shape.last_index:
            # Messages may come twice or late: only a real conflict is a reason to cut the log.
            known = 0
            for entry in entries:
                term = shape.term_at(LogIndex(index + known + 1))
                if term is None:
                    break
                if term != entry.term:
                    raft.truncate(LogIndex(index + known + 1))
                    break
                known += 1
            entries = entries[known:]
        if entries:
            raft.take(entries)
        # News of a commit alone needs no answer; a question without entries does.
        is_only_news = not append.entries and append.commit > raft.commit and last <= self._answered
        self._matched = max(self._matched, last)
        raft.commit = max(raft.commit, min(append.commit, self._matched))
        self._owes_answer |= not is_only_news

    def on_heartbeat(self, sender: ReplicaId, heartbeat: Heartbeat) -> None:
        raft = self._raft
        # The leader names no more than what this member told it in this term, be it before a restart.
        self._matched = max(self._matched, heartbeat.commit)
        raft.commit = max(raft.commit, heartbeat.commit)
        raft.say(sender, HeartbeatReply(raft.term, heartbeat.round, self._durable_match))
        if heartbeat.may_sleep and heartbeat.commit == raft.shown == raft.shape.last_index:
            raft.is_asleep = True

    def on_install(self, install: Install) -> None:
        raft = self._raft
        self._owes_answer = True
        if install.last_index <= raft.commit:
            self._matched = max(self._matched, raft.commit)
            return
        # Where we have that entry, we have all before it: nothing to throw away.
        if raft.shape.term_at(install.last_index) != install.last_term:
            raft.begin_anew(install)
        self._matched = max(self._matched, install.last_index)

    def pay_answer(self) -> None:
        """Tell the leader how far the log is equal and durable, as soon as the term is on the disk too."""
        raft = self._raft
        if not self._owes_answer or not raft.is_term_saved or raft.leader in (NOBODY, raft.replica):
            return
        match = self._durable_match
        if match > self._answered or match == self._matched:
            self._answered = match
            self._owes_answer = match < self._matched
            raft.say(raft.leader, AppendReply(raft.term, match, False, _NOTHING, _NOTHING, Term(0)))

    def reject_old_leader(self, sender: ReplicaId) -> None:
        """So that it learns that its time is over."""
        self._raft.say(sender, AppendReply(self._raft.term, _NOTHING, True, _NOTHING, _NOTHING, Term(0)))

    @property
    def _durable_match(self) -> LogIndex:
        """What may be promised: nothing before the term is on the disk, or a crash could make room for an older one."""
        if not self._raft.is_term_saved:
            return _NOTHING
        return min(self._matched, self._raft.durable)

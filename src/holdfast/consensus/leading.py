"""What a member does while it leads: replicate, commit, confirm reads, change members, hand over.

Made when an election is won and thrown away when the reign ends, so nothing of it can outlive its term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.consensus.members import NOBODY, Members, ReplicaId
from holdfast.consensus.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Install,
    TimeoutNow,
)
from holdfast.consensus.progress import Mode, Progress
from holdfast.model.ids import LogIndex

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.consensus.raft import Raft
    from holdfast.model.entries import Entry


class Leading:
    """One reign. The driver writes the reign's first entry (`KIND_REIGN`) before any other."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.first_index = LogIndex(raft.shape.last_index + 1)
        self.progress = {member: Progress(self.first_index) for member in self._others()}
        self.idle_ticks = 0
        self.transfer_to = NOBODY
        self._transfer_ticks = 0
        self._round = 0
        self._heartbeat_due = False
        self._heartbeat_ticks = 0
        self._quorum_ticks = 0
        # (token, index, round that must be answered by a majority), in order.
        self._reads: list[tuple[int, LogIndex, int]] = []
        # Reads that came before this reign had committed anything, and so knew what is committed (6.4).
        self._early_reads: list[int] = []
        self._confirmed: list[tuple[int, LogIndex]] = []
        self._count_commit()

    def _others(self) -> list[ReplicaId]:
        return sorted(self._raft.members.everybody - {self._raft.replica})

    @property
    def is_settled(self) -> bool:
        """Whether this reign has committed something: only then it knows what is committed (6.4)."""
        return self._raft.commit >= self.first_index or self._is_alone

    @property
    def _is_alone(self) -> bool:
        """The log of the only voter is what is decided, whatever terms are in it."""
        return self._raft.members.voters == {self._raft.replica}

    @property
    def takes_proposals(self) -> bool:
        """While it hands over, what is proposed would only delay that."""
        return self.transfer_to == NOBODY

    # --- time ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        timing = self._raft.timing
        self._heartbeat_ticks += 1
        self._quorum_ticks += 1
        self.idle_ticks += 1
        for progress in self.progress.values():
            progress.stalled_ticks += 1
        if self.transfer_to != NOBODY:
            self._transfer_ticks += 1
            if self._transfer_ticks > timing.election_ticks:
                self.transfer_to = NOBODY  # it did not work: lead on (3.10)
        if self._quorum_ticks >= timing.election_ticks:
            self._quorum_ticks = 0
            # Of two, the one that leads goes on alone when its driver says so, rather than leave nobody to lead.
            if not self._hears_quorum() and self._raft.seat is None:
                self._raft.follow(self._raft.term, NOBODY)
                return
        if self._heartbeat_ticks >= timing.heartbeat_ticks:
            self._heartbeat_due = True

    def _hears_quorum(self) -> bool:
        """Whether a majority was heard of lately: a leader on the wrong side of a split resigns (6.2)."""
        active = {member for member, progress in self.progress.items() if progress.is_active}
        for progress in self.progress.values():
            progress.is_active = False
        voters = self._raft.members.voters
        return len((active | {self._raft.replica}) & voters) >= self._raft.members.quorum

    def woke(self) -> None:
        self.idle_ticks = self._quorum_ticks = 0
        self._heartbeat_due = True

    # --- answers ------------------------------------------------------------------------------------

    def step(self, sender: ReplicaId, message: AppendReply | HeartbeatReply) -> None:
        progress = self.progress.get(sender)
        if progress is None:
            return  # no member any more
        progress.is_active = True
        if isinstance(message, HeartbeatReply):
            progress.acked_round = max(progress.acked_round, message.round)
            if self._reads:
                self._confirm_reads()
            self._take_match(sender, progress, message.match, is_answer=False)
            if progress.stalled_ticks > self._raft.timing.election_ticks and progress.has_unanswered:
                progress.resume()
        elif message.is_rejected:
            self._on_rejection(progress, message)
        else:
            self._take_match(sender, progress, message.match, is_answer=True)

    def _take_match(self, member: ReplicaId, progress: Progress, match: LogIndex, *, is_answer: bool) -> None:
        if not progress.matched(match, is_answer=is_answer):
            return
        if member in self._raft.members.voters:
            self._count_commit()
        if member == self.transfer_to:
            self._hand_over()

    def _on_rejection(self, progress: Progress, reply: AppendReply) -> None:
        if reply.rejected_index <= progress.match or reply.rejected_index >= progress.next:
            return  # an old message, or about something we never sent in this mode
        agreed, _ = self._raft.shape.place_at_or_below(reply.hint_index, reply.hint_term)
        # Where the hint lies before the log's beginning there is no such place: that one needs an installation.
        progress.probe(LogIndex(min(agreed, reply.hint_index) + 1))

    def lost_link(self, member: ReplicaId) -> None:
        """What was under way to it is lost; begin again when it is back."""
        progress = self.progress.get(member)
        if progress is not None:
            progress.lost_link()

    # --- committing (3.6.2) ---------------------------------------------------------------------------

    def appended(self) -> None:
        self.idle_ticks = 0

    def own_log_grew(self) -> None:
        self._count_commit()

    def _count_commit(self) -> None:
        raft = self._raft
        match = {member: progress.match for member, progress in self.progress.items()}
        match[raft.replica] = raft.durable
        if self._is_alone and raft.durable < raft.members_index:
            return  # of two, alone is who has that on its disk: else a crash could bring the other one back
        index = raft.members.quorum_index(match)
        # Entries of earlier terms are never committed by counting, only with one of this term (3.6.2).
        if index <= raft.commit or not (raft.shape.term_at(index) == raft.term or self._is_alone):
            return
        raft.commit = index
        if self._early_reads and self.is_settled:
            early, self._early_reads = self._early_reads, []
            for token in early:
                self._add_read(token)
        if raft.members_index <= index and not raft.is_voter:
            raft.follow(raft.term, NOBODY)  # it has left the group (4.2.2)

    # --- sending --------------------------------------------------------------------------------------

    def prepare(self) -> list[ReplicaId]:
        """Queue heartbeats and news of commits; returns whom entries should be sent to."""
        raft = self._raft
        if self._heartbeat_due:
            self._send_heartbeats()
        wanting: list[ReplicaId] = []
        tells_commits = raft.timing.tells_commits_at_once
        for member, progress in self.progress.items():
            if progress.mode is not Mode.INSTALL and progress.next <= raft.shape.base_index:
                progress.install()
            if not progress.has_room:
                continue
            # One of whom nothing is known is asked where it stands, even if there is nothing to send.
            is_unknown = progress.mode is Mode.PROBE and progress.match < raft.shape.last_index
            if progress.mode is Mode.INSTALL or progress.next <= raft.shape.last_index or is_unknown:
                wanting.append(member)
            elif tells_commits and progress.mode is Mode.STREAM and progress.told_commit < raft.commit:
                raft.say(member, self._append(progress, ()))
        return wanting

    def needs_install(self, member: ReplicaId) -> bool:
        """Whether the log begins behind what it needs."""
        return self.progress[member].mode is Mode.INSTALL

    def append_message(self, member: ReplicaId, entries: Sequence[Entry]) -> Append:
        """Entries from `progress[member].next` on, ready to be sent: they count as under way."""
        progress = self.progress[member]
        message = self._append(progress, entries)
        size = sum(len(entry.payload) for entry in entries)
        progress.sent(LogIndex(message.previous_index + len(entries)), size)
        return message

    def install_message(self, member: ReplicaId, position: bytes) -> Install:
        """Tell it to begin anew behind what this log has dropped; `position` is the store's."""
        raft = self._raft
        self.progress[member].sent(raft.shape.base_index, len(position))
        return Install(raft.term, raft.shape.base_index, raft.shape.base_term, (raft.first_members,), position)

    def _append(self, progress: Progress, entries: Sequence[Entry]) -> Append:
        raft = self._raft
        previous = LogIndex(progress.next - 1)
        term = raft.shape.term_at(previous)
        assert term is not None
        progress.told_commit = raft.commit
        return Append(raft.term, previous, term, raft.commit, entries)

    def _send_heartbeats(self) -> None:
        raft = self._raft
        self._heartbeat_due = False
        self._heartbeat_ticks = 0
        self._round += 1
        may_sleep = self._may_sleep()
        for member, progress in self.progress.items():
            raft.say(member, Heartbeat(raft.term, min(raft.commit, progress.match), self._round, may_sleep))
        raft.is_asleep = may_sleep
        if self._reads:
            self._confirm_reads()  # the others may have left meanwhile

    def _may_sleep(self) -> bool:
        """Whether everybody has everything and knows it."""
        raft = self._raft
        last = raft.shape.last_index
        return (
            self.idle_ticks >= raft.timing.idle_ticks
            and raft.shown == last
            and not (self._reads or self._early_reads)
            and self.takes_proposals
            and all(progress.match == last and progress.is_active for progress in self.progress.values())
        )

    # --- reads (6.4) ------------------------------------------------------------------------------------

    def read(self, token: int) -> None:
        """Confirm that this is still the leader; `ready.reads` then says what must be applied first."""
        self._raft.wake()
        self.idle_ticks = 0
        if self.is_settled:
            self._add_read(token)
        else:
            self._early_reads.append(token)

    def _add_read(self, token: int) -> None:
        if self._is_alone:
            self._confirmed.append((token, self._raft.commit))
            return
        self._reads.append((token, self._raft.commit, self._round + 1))
        self._heartbeat_due = True

    def _confirm_reads(self) -> None:
        rounds = {member: LogIndex(progress.acked_round) for member, progress in self.progress.items()}
        rounds[self._raft.replica] = LogIndex(self._round)
        confirmed_round = self._raft.members.quorum_index(rounds)
        self._confirmed += [(token, index) for token, index, needed in self._reads if needed <= confirmed_round]
        self._reads = [read for read in self._reads if read[2] > confirmed_round]

    def take_confirmed_reads(self) -> list[tuple[int, LogIndex]]:
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def drop_reads(self) -> list[int]:
        """The reign ends: none of these will be confirmed."""
        return [*self._early_reads, *(read[0] for read in self._reads), *(read[0] for read in self._confirmed)]

    def ask_everybody(self) -> int:
        """Begin a round of heartbeats; its number."""
        self._raft.wake()
        self.idle_ticks = 0
        self._heartbeat_due = True
        return self._round + 1

    def has_majority(self, voters: Collection[ReplicaId], heartbeat_round: int, decided: LogIndex) -> bool:
        """Whether a majority of these has answered that round, and has everything up to `decided`."""
        known = [self.progress[voter] for voter in voters if voter in self.progress]
        well = [each for each in known if each.acked_round >= heartbeat_round and each.match >= max(0, decided)]
        return len(well) + (self._raft.replica in voters) >= len(voters) // 2 + 1

    # --- members (4) --------------------------------------------------------------------------------------

    def refusal(self, members: Members) -> str | None:
        """Why this configuration cannot follow now; `None` if it can be written."""
        raft = self._raft
        if not self.is_settled:
            return "the leader has just begun and has committed nothing yet"
        if raft.members_index > raft.commit:
            return "another change of members is not committed yet"
        if not members.is_one_step_from(raft.members):
            return "only one voter may come or go at a time"
        return None

    def members_changed(self) -> None:
        """A configuration was written: it counts at once."""
        everybody = self._others()
        for member in everybody:
            if member not in self.progress:
                self.progress[member] = Progress(LogIndex(self._raft.shape.last_index + 1))
                self.progress[member].is_active = True
        for member in set(self.progress) - set(everybody):
            del self.progress[member]
        if self.transfer_to not in self._raft.members.voters:
            self.transfer_to = NOBODY
        self._count_commit()

    # --- handing over (3.10) --------------------------------------------------------------------------------

    def transfer(self, member: ReplicaId) -> None:
        """Let `member` lead as soon as it has everything."""
        assert member in self._raft.members.voters and member != self._raft.replica
        self._raft.wake()
        if member != self.transfer_to:
            # Asked for again, it does not take longer: nothing is proposed meanwhile.
            self.transfer_to = member
            self._transfer_ticks = 0
        self._hand_over()

    def _hand_over(self) -> None:
        raft = self._raft
        if self.progress[self.transfer_to].match == raft.shape.last_index:
            raft.say(self.transfer_to, TimeoutNow(raft.term))

"""The rules of one member of one group: time, terms and votes, its log, its members.

What it does while it leads is in `leading`, what it does while somebody else does in `following`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.consensus.following import Following
from holdfast.consensus.leading import Leading
from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.members import NOBODY, Members, MembersAt, ReplicaId, members_at, members_in_log
from holdfast.consensus.messages import (
    Append,
    AppendReply,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Install,
    Message,
    Ready,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from holdfast.consensus.roles import Role, Seat, next_term
from holdfast.consensus.timing import DEFAULT_TIMING, Timing
from holdfast.model.entries import KIND_MEMBERS, NOTE_HEAD_BYTES, Entry
from holdfast.model.ids import LogIndex, Term


class Raft:
    """One member of one group. `dice(n)` gives a number from 0 to n-1."""

    def __init__(
        self,
        replica: ReplicaId,
        *,
        shape: LogShape,
        hard_state: HardState,
        dice: Callable[[int], int],
        timing: Timing = DEFAULT_TIMING,
        seat: Seat | None = None,
    ) -> None:
        assert hard_state.members, "a group has members from its first day"
        self.replica = replica
        self.timing = timing
        self.seat = seat
        self.shape = shape
        self.term, self.vote, saved_members = hard_state
        self.members_history = members_in_log(saved_members, shape)
        self.role = Role.FOLLOWER
        self.leader = NOBODY
        self.leading: Leading | None = None
        self.may_campaign = True
        self.is_asleep = False
        # What was read from the disk at start is durable; what is committed of it, the leader will say.
        self.durable = shape.last_index
        self.commit = shape.base_index
        self.elections = 0
        self._dice = dice
        self._silent_ticks = 0
        self._patience_ticks = 0
        self._votes: dict[ReplicaId, bool] = {}
        self._takes_over = False
        self._following = Following(self)
        self._hard_state_number = self._saved_number = 0
        # A configuration that is saved but not in the log must go before the log grows past its place.
        self._hard_state_changed = self._is_hard_state_first = self.members_history != saved_members
        # Configurations that are about to leave the log; until then a crash may bring them back.
        self._leaving_members: tuple[MembersAt, ...] = ()
        self._term_number = 0
        self._shown_before_term = self.commit
        self._held: list[tuple[int, ReplicaId, Message]] = []
        self._messages: list[tuple[ReplicaId, Message]] = []
        self._install: Install | None = None
        self._truncate_from: LogIndex | None = None
        self._unwritten: list[Entry] = []
        self._reads_failed: list[int] = []
        self._wait_anew()

    # --- facts ------------------------------------------------------------------------------------

    @property
    def members(self) -> Members:
        """A configuration counts from the moment it is in the log, committed or not (4.1)."""
        return self.members_history[-1].members

    @property
    def members_index(self) -> LogIndex:
        return self.members_history[-1].since

    @property
    def shown(self) -> LogIndex:
        """What is committed and durable here: a node shows nothing that it could forget.

        Until the term is on the disk, that is what was shown before it: a crash would bring back an earlier term, in
        which an older leader could cut what is new.
        """
        shown = min(self.commit, self.durable)
        return shown if self.is_term_saved else min(shown, self._shown_before_term)

    @property
    def is_term_saved(self) -> bool:
        return self._saved_number >= self._term_number

    @property
    def is_voter(self) -> bool:
        return self.replica in self.members.voters

    @property
    def _may_stand(self) -> bool:
        """A removed voter stands until that is committed: it may be the only one that has the entry (4.2.2)."""
        if self.is_voter:
            return True
        was_voter = any(self.replica in at.members.voters for at in self.members_history)
        return was_voter and self.members_index > self.commit

    @property
    def hears_leader(self) -> bool:
        """Whether there is a leader that was heard of lately; nobody else is elected meanwhile (4.2.3)."""
        if self.leading is not None:
            return True
        return self.leader != NOBODY and (self.is_asleep or self._silent_ticks < self.timing.election_ticks)

    # --- events -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """A unit of time has passed."""
        if self.is_asleep:
            return
        if self.leading is not None:
            self.leading.tick()
            return
        self._silent_ticks += 1
        if self._silent_ticks >= self._patience_ticks:
            self.campaign()
        elif self.role is Role.TRIAL and self.shape.last_term == 0:
            # Of a new group, others may hear a moment later: they are asked again. It binds nobody.
            self._ask_for_votes(next_term(self.term, self.seat), is_trial=True)

    def step(self, sender: ReplicaId, message: Message) -> None:
        """Somebody said something. What does not fit the state is ignored, never an error."""
        if self.is_asleep and not self._lets_sleep(message):
            self.wake()
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message)
                return
            case VoteReply() if message.is_trial and message.is_granted:
                self._on_vote_reply(sender, message)
                return
        if message.term > self.term:
            from_leader = isinstance(message, Append | Heartbeat | Install)
            self.follow(message.term, sender if from_leader else NOBODY)
        elif message.term < self.term:
            if isinstance(message, Append | Heartbeat | Install):
                self._following.reject_old_leader(sender)
            return
        match message:
            case Append():
                self._heard_from(sender)
                self._following.on_append(sender, message)
            case Heartbeat():
                self._heard_from(sender)
                self._following.on_heartbeat(sender, message)
            case Install():
                self._heard_from(sender)
                self._following.on_install(message)
            case VoteReply():
                self._on_vote_reply(sender, message)
            case TimeoutNow() if self.is_voter:
                self.campaign(is_transfer=True)
            case AppendReply() | HeartbeatReply() if self.leading is not None:
                self.leading.step(sender, message)

    def log_durable(self, index: LogIndex) -> None:
        """The disk has the log up to `index`."""
        if self._install is not None:
            return  # it speaks of a log that is about to go
        if self._truncate_from is not None:
            index = min(index, LogIndex(self._truncate_from - 1))
        index = min(index, LogIndex(self.shape.last_index - len(self._unwritten)))
        if index <= self.durable:
            return
        self.durable = index
        # What stood there before is overwritten for good.
        self._leaving_members = tuple(at for at in self._leaving_members if at.since > index)
        if self.leading is not None:
            self.leading.own_log_grew()

    def saved(self, hard_state_number: int) -> None:
        """The disk has the hard state of that number."""
        self._saved_number = max(self._saved_number, hard_state_number)
        released = [held for held in self._held if held[0] <= self._saved_number]
        self._held = [held for held in self._held if held[0] > self._saved_number]
        for _, receiver, message in released:
            if receiver == self.replica:
                self.step(receiver, message)
            else:
                self.say(receiver, message)

    def suspect_leader(self) -> None:
        """The leader's node is gone: do not wait for it as long as for one that is only silent."""
        self.wake()
        if self.leading is None:
            self._silent_ticks = max(self._silent_ticks, self.timing.election_ticks)
            self._patience_ticks = self._silent_ticks + 1 + self._dice(self.timing.suspicion_ticks)

    def stand_first(self, *, is_first: bool) -> None:
        """Favour one member at the first election of a new group: it stands at once, and the others wait twice as long.

        A group that has had a leader elects the next one as usual.
        """
        if self.term > 0 or self.shape.last_term > 0:
            return
        if is_first:
            self.campaign()
        else:
            self._patience_ticks *= 2

    def wake(self) -> None:
        if self.is_asleep:
            self.is_asleep = False
            self._silent_ticks = 0
            if self.leading is not None:
                self.leading.woke()

    def _lets_sleep(self, message: Message) -> bool:
        """What still arrives after everybody has agreed to sleep."""
        if message.term != self.term:
            return False
        if self.leading is not None:
            return isinstance(message, AppendReply | HeartbeatReply)
        return isinstance(message, Heartbeat) and message.may_sleep

    # --- the leader's own entries -------------------------------------------------------------------

    def appended(self, count: int = 1) -> None:
        """The leader has written entries of its term behind its log."""
        assert self.leading is not None
        self.wake()
        self.shape.append(self.term, count)
        self.leading.appended()

    @property
    def hard_state(self) -> HardState:
        """What must survive a crash, as it is now."""
        return HardState(self.term, self.vote, (*self._leaving_members, *self.members_history))

    def hard_state_with(self, members: Members) -> HardState:
        """What must be on the disk before the leader writes a configuration into its log."""
        taken = MembersAt(LogIndex(self.shape.last_index + 1), self.term, members)
        return HardState(self.term, self.vote, (*self._leaving_members, *self.members_history, taken))

    def appended_members(self, members: Members) -> None:
        """The leader has written a configuration that `leading.refusal` had nothing against."""
        self.appended()
        self._take_members(members)

    def compacted_to(self, base_index: LogIndex) -> None:
        """The store has dropped entries up to `base_index`, which were all committed."""
        if base_index > self.shape.base_index:
            assert base_index <= self.shown
            self.shape.compact_to(base_index)

    # --- what follows -------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Everything that is to be done now; asking again gives what came up since."""
        replicate = self.leading.prepare() if self.leading is not None else []
        self._following.pay_answer()
        ready = Ready(
            self.hard_state if self._hard_state_changed else None,
            self._hard_state_number,
            self._is_hard_state_first,
            self._install,
            self._truncate_from,
            self._unwritten,
            self._messages,
            replicate,
            self.shown,
            self.leading.take_confirmed_reads() if self.leading is not None else [],
            self._reads_failed,
        )
        self._install = self._truncate_from = None
        self._unwritten, self._messages, self._reads_failed = [], [], []
        self._hard_state_changed = self._is_hard_state_first = False
        return ready

    # --- elections (3.4, 9.6) -----------------------------------------------------------------------

    def campaign(self, *, is_transfer: bool = False) -> None:
        """Try to be elected: first whether it would work, then in earnest."""
        if not self._may_stand or not self.may_campaign or self.leading is not None or self._takes_over:
            # It goes on being silent around here: others must not be told that a leader is heard.
            self._patience_ticks = self._silent_ticks + self.timing.election_ticks
            return
        self.wake()
        self._wait_anew()
        if not is_transfer and self.members.voters != {self.replica}:
            self.role, self.leader = Role.TRIAL, NOBODY
            self._votes = {self.replica: True} if self.is_voter else {}
            self._ask_for_votes(next_term(self.term, self.seat), is_trial=True)
        else:
            self._stand(is_transfer=is_transfer)

    def take_over(self) -> None:
        """One of two, whose partner is gone: lead without being elected, in a term that only this member can have.

        The first thing it writes is that it is the only voter: until then it commits nothing.
        """
        if not self.is_voter or not self.may_campaign or self.leading is not None or self._takes_over:
            return
        self.wake()
        self._stand()
        self._takes_over = True

    def _stand(self, *, is_transfer: bool = False) -> None:
        self._enter_term(next_term(self.term, self.seat), vote=self.replica)
        self.role, self.leader = Role.CANDIDATE, NOBODY
        self.elections += 1
        self._votes = {}
        self._ask_for_votes(self.term, is_trial=False, is_transfer=is_transfer)
        # Its own vote counts like any other: once it is on the disk.
        self._hold(self.replica, VoteReply(self.term, is_granted=True, is_trial=False))

    def _ask_for_votes(self, term: Term, *, is_trial: bool, is_transfer: bool = False) -> None:
        request = VoteRequest(term, self.shape.last_index, self.shape.last_term, is_trial, is_transfer)
        ask = self.say if is_trial else self._hold
        for voter in sorted(self.members.voters - {self.replica}):
            ask(voter, request)

    def _on_vote_request(self, sender: ReplicaId, request: VoteRequest) -> None:
        if self.hears_leader and not request.is_transfer:
            if request.is_trial or request.term <= self.term:
                self.say(sender, VoteReply(self.term, is_granted=False, is_trial=request.is_trial))
            return
        if request.term > self.term and not request.is_trial:
            self.follow(request.term, NOBODY)
        is_current = (request.last_term, request.last_index) >= (self.shape.last_term, self.shape.last_index)
        if request.is_trial:
            is_granted = is_current and request.term > self.term
            self.say(sender, VoteReply(request.term if is_granted else self.term, is_granted, is_trial=True))
        elif request.term == self.term and is_current and self.vote in (NOBODY, sender) and self.leading is None:
            if self.vote == NOBODY:
                self.vote = sender
                self._change_hard_state()
            self._wait_anew()
            self._hold(sender, VoteReply(self.term, is_granted=True, is_trial=False))
        else:
            self.say(sender, VoteReply(self.term, is_granted=False, is_trial=False))

    def _on_vote_reply(self, sender: ReplicaId, reply: VoteReply) -> None:
        wanted = Role.TRIAL if reply.is_trial else Role.CANDIDATE
        asked_for = next_term(self.term, self.seat) if reply.is_trial and reply.is_granted else self.term
        if self.role is not wanted or reply.term != asked_for or sender not in self.members.voters:
            return
        self._votes[sender] = reply.is_granted
        if sum(self._votes.values()) >= self.members.quorum or (self._takes_over and self._votes.get(self.replica)):
            if self.role is Role.TRIAL:
                self._stand()
            else:
                self.role, self.leader = Role.LEADER, self.replica
                self.leading = Leading(self)
                self._takes_over = False
        elif list(self._votes.values()).count(False) >= self.members.quorum:
            self.role = Role.FOLLOWER

    def follow(self, term: Term, leader: ReplicaId) -> None:
        """Be nobody's leader any more, in this term or a later one."""
        if term > self.term:
            self._enter_term(term, vote=NOBODY)
        if self.leading is not None:
            self._reads_failed += self.leading.drop_reads()
            self.leading = None
        self.role, self.leader = Role.FOLLOWER, leader
        self._votes, self._takes_over = {}, False
        self._wait_anew()

    def _enter_term(self, term: Term, *, vote: ReplicaId) -> None:
        self._shown_before_term = self.shown
        self.term, self.vote = term, vote
        self._takes_over = False
        self._change_hard_state()
        self._term_number = self._hard_state_number
        # Promises of an earlier term are of no use to anybody.
        self._held.clear()
        self._following = Following(self)

    def _heard_from(self, leader: ReplicaId) -> None:
        if self.role is not Role.FOLLOWER or self.leader != leader:
            assert self.leading is None, "two leaders in one term"
            self.role, self.leader = Role.FOLLOWER, leader
            self._wait_anew()
        self._silent_ticks = 0

    def _wait_anew(self) -> None:
        self._silent_ticks = 0
        self._patience_ticks = self.timing.election_ticks + 1 + self._dice(max(1, self.timing.election_spread_ticks))

    # --- the log (3.5) ------------------------------------------------------------------------------

    def begin_anew(self, install: Install) -> None:
        """Throw the log away and begin behind what the leader's has dropped."""
        self.shape.reset(install.last_index, install.last_term)
        self._install, self._truncate_from, self._unwritten = install, None, []
        self.durable = LogIndex(-1)
        self.commit = install.last_index
        self._leaving_members += self.members_history
        self.members_history = install.members
        self._is_hard_state_first = True
        self._change_hard_state()

    def take(self, entries: Sequence[Entry]) -> None:
        """Entries of the leader go behind the log."""
        for entry in entries:
            self.shape.append(entry.term)
            if entry.kind == KIND_MEMBERS:
                self._take_members(Members.decode(entry.payload[NOTE_HEAD_BYTES:]))
        self._unwritten += entries

    def truncate(self, index: LogIndex) -> None:
        """The entry at `index` is not the leader's, nor is what stands behind it."""
        assert index > self.commit, "a committed entry is never cut"
        written = self.shape.last_index - len(self._unwritten)
        if index > written:
            del self._unwritten[index - written - 1 :]
        else:
            self._unwritten = []
            self._truncate_from = index
        self.shape.truncate_from(index)
        self.durable = min(self.durable, LogIndex(index - 1))
        if self.members_index >= index:
            self._leaving_members += tuple(at for at in self.members_history if at.since >= index)
            self.members_history = tuple(at for at in self.members_history if at.since < index)
            self._is_hard_state_first = True
            self._change_hard_state()

    # --- members (4) ----------------------------------------------------------------------------------

    def _take_members(self, members: Members) -> None:
        """The newest entry of the log is a configuration."""
        self.members_history = (*self.members_history, MembersAt(self.shape.last_index, self.shape.last_term, members))
        self._is_hard_state_first = self.leading is None
        self._change_hard_state()
        if self.leading is not None:
            self.leading.members_changed()

    @property
    def first_members(self) -> MembersAt:
        """The configuration that holds where the log begins.

        Those before it are kept until the next start: a crash may bring back what a store has dropped.
        """
        return members_at(self.members_history, self.shape.base_index)

    # --- inner ----------------------------------------------------------------------------------------

    def say(self, receiver: ReplicaId, message: Message) -> None:
        self._messages.append((receiver, message))

    def _hold(self, receiver: ReplicaId, message: Message) -> None:
        """Send it once the hard state as it is now is on the disk."""
        if self._hard_state_number > self._saved_number:
            self._held.append((self._hard_state_number, receiver, message))
        else:
            self.say(receiver, message)

    def _change_hard_state(self) -> None:
        self._hard_state_number += 1
        self._hard_state_changed = True

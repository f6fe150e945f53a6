"""One group on this node: its log on disk, its member of the consensus, and who waits for it.

The consensus decides, this does: it writes what `ready` says, sends what it says, and shows to readers what is
committed. Marks only move forward here: `end` is the offset readers may read up to, `shown_index` the entry.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from holdfast.backends.cluster.audience import Audience
from holdfast.backends.cluster.pacing import CatchUpPace
from holdfast.backends.cluster.tail_cache import TailCache
from holdfast.broker.results import refuse
from holdfast.consensus.leading import Leading
from holdfast.consensus.members import NOBODY, Members, ReplicaId
from holdfast.consensus.messages import HardState, Message, Ready
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of
from holdfast.model.entries import KIND_BATCH, KIND_MEMBERS, KIND_REIGN, Entry
from holdfast.model.errors import DamagedData, HoldfastError, LeaderChanged, NotLeader, Unavailable, WorldError
from holdfast.model.ids import GroupId, LogIndex, Offset, Term
from holdfast.storage.entries import Placed, note
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import NotCached
from holdfast.wire import record_batch

# One message of entries; a follower far behind gets this much at a time.
_APPEND_BYTES_MAX: Final = 1024 * 1024
# Entries from files that are under way to one follower, which leaves others their turn.
_CATCH_UP_BYTES_MAX: Final = 4 * 1024 * 1024
# Pages may be dropped again before they are read; after so many tries the loop waits for the disk itself.
_WARM_ATTEMPTS: Final = 5
_POSITION = struct.Struct(">Q")


class Surroundings(Protocol):
    """What a replica needs of the node it lives on."""

    pace: CatchUpPace

    def send(self, receiver: ReplicaId, group: GroupId, message: Message) -> None: ...

    def can_reach(self, receiver: ReplicaId) -> bool: ...

    def save(self, replica: Replica, state: HardState, number: int, *, at_once: bool) -> None:
        """Keep the hard state; `raft.saved(number)` follows when it is on the disk."""
        ...

    def written(self, replica: Replica) -> None:
        """Entries were written: they are to be synced."""
        ...

    def touch(self, replica: Replica) -> None:
        """Something happened: ask for what follows from it."""
        ...

    def cannot_lead(self, replica: Replica, damage: DamagedData) -> None:
        """What a follower needs is damaged here: somebody else shall lead."""
        ...

    def warm(self, replica: Replica, cold: NotCached) -> None:
        """Have the disk read what is not in memory, then `touch`."""
        ...


class Replica:
    """The log, the consensus and the waiting of one group."""

    def __init__(
        self, group: GroupId, name: str, log: PartitionLog, raft: Raft, surroundings: Surroundings, node: str
    ) -> None:
        self.group = group
        self.name = name
        self.node = node
        self.log = log
        self.raft = raft
        self.end = log.start_offset
        self.shown_index = raft.shape.base_index
        # Whether it was seen once since the start that nothing is missing here.
        self.is_current = False
        # Whether nothing could be written: there was no room, or no file could be opened.
        self.disk_full = False
        # When it was last known to show everything, or nearly; asked for by whoever takes old answers.
        self.fresh_at_s = 0.0
        # Told when a reign of this node begins, when it counts (`reign`), and when it ends.
        self.on_reign: Callable[[Replica], None] = lambda replica: None
        self._told_reign: Term | None = None
        self._surroundings = surroundings
        self._loop = asyncio.get_running_loop()
        self._tail = TailCache()
        self._leading: Leading | None = None
        # Entries that are written but not shown: the last one of each write, and the offset behind it.
        self._marks: deque[tuple[LogIndex, Offset]] = deque()
        # What was there at start has one mark for all of it; where it ends at an entry in between is looked up.
        self._unmarked_to = raft.shape.last_index
        if raft.shape.last_index > raft.shape.base_index:
            self._marks.append((raft.shape.last_index, log.written_end))
        self.audience = Audience()
        # Entries the disk had no room for: they are part of the log already, and written when there is room.
        self._backlog: list[Entry] = []
        # Told of what another node's leader gave this one to keep.
        self.on_stored: Callable[[Sequence[Entry]], None] | None = None
        self._reads: dict[int, asyncio.Future[LogIndex]] = {}
        self._next_read = 0

    # --- facts ------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        voters, learners = self.raft.members_history[-1].members
        return len(voters) == 1 and not learners and self.raft.replica in voters

    @property
    def votes_alone(self) -> bool:
        """Whether this node decides without others; some may be listening."""
        return self.raft.members.voters == {self.raft.replica}

    @property
    def leads(self) -> bool:
        leading = self.raft.leading
        return leading is not None and leading.takes_proposals

    @property
    def reign(self) -> Term | None:
        """The number of this reign, once everything that was before it is shown; `None` while another leads."""
        leading = self.raft.leading
        if leading is None or not leading.is_settled:
            return None
        # The only voter writes nothing to begin a reign with.
        first = leading.first_index - 1 if self.votes_alone else leading.first_index
        return self.raft.term if self.shown_index >= first else None

    @property
    def leader_node(self) -> str | None:
        """The node that leads this group, as far as this one knows."""
        leader = self.raft.leader
        return node_of(leader) if leader else None

    # --- the leader's road ------------------------------------------------------------------------

    def append(self, batch: bytearray) -> asyncio.Future[Offset]:
        """Write a batch; the future is done once it is committed and shown."""
        raft = self.raft
        leading = self._proposing()
        base_offset = self.log.append(batch, raft.term)
        raft.appended()
        if leading.progress:
            self._tail.add(raft.shape.last_index, Entry(raft.term, KIND_BATCH, batch))
        self._marks.append((raft.shape.last_index, self.log.written_end))
        appended = self.audience.wait_for(base_offset, raft.shape.last_index)
        self._surroundings.written(self)
        return appended

    def append_all(self, batches: Sequence[bytearray]) -> asyncio.Future[Offset]:
        """Write batches; the future is done once all of them are committed and shown.

        Where the disk refuses, some may have been written and stay; `log.last_index` tells.
        """
        leading = self._proposing()
        before, base_offset = self.log.last_index, self.log.written_end
        placed = self.log.placed(batches, self.raft.term)
        try:
            self.log.append_placed(placed)
        except WorldError:
            if written := self.log.last_index - before:
                self._wrote(before, placed[:written])
            raise
        if leading.progress:
            self._tail.extend(LogIndex(before + 1), [each.entry for each in placed])
        appended = self.audience.wait_for(base_offset, LogIndex(before + len(placed)))
        self._wrote(before, placed)
        return appended

    def _wrote(self, before: LogIndex, placed: Sequence[Placed]) -> None:
        """Entries of this reign are part of the log now."""
        self.raft.appended(len(placed))
        self._mark(before, placed)
        self._surroundings.written(self)

    def _proposing(self) -> Leading:
        leading = self.raft.leading
        if leading is None or not leading.takes_proposals:
            raise NotLeader(f"{self.name} is led by {self.leader_node or 'nobody'} now")
        return leading

    def _mark(self, before: LogIndex, written: Sequence[Placed]) -> None:
        self._marks.extend((LogIndex(before + place), each.next_offset) for place, each in enumerate(written, 1))

    def append_note(self, kind: int, body: bytes) -> LogIndex:
        """Write an entry that readers never see."""
        raft = self.raft
        if raft.leading is None:
            raise NotLeader(f"{self.name} is led by {self.leader_node or 'nobody'} now")
        self._write_note(kind, body)
        raft.appended()
        self._surroundings.written(self)
        return raft.shape.last_index

    def write_members(self, members: Members) -> None:
        """Write a configuration whose hard state is on the disk already."""
        self._write_note(KIND_MEMBERS, members.encode())
        self.raft.appended_members(members)
        self._surroundings.written(self)

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def _write_note(self, kind: int, body: bytes) -> None:
        raft = self.raft
        index = self.log.append_note(kind, body, raft.term)
        assert index == raft.shape.last_index + 1
        if raft.leading is not None and raft.leading.progress:
            self._tail.add(index, Entry(raft.term, kind, note(self.log.written_end, body)))

    # --- doing what the consensus says --------------------------------------------------------------

    def step_on(self) -> None:
        """Do everything that is to be done now."""
        self._notice_reign()
        ready = self.raft.ready()
        if ready.hard_state is not None:
            self._surroundings.save(self, ready.hard_state, ready.hard_state_number, at_once=ready.is_hard_state_first)
        if ready.install is not None:
            self._begin_anew(ready)
        if ready.truncate_from is not None:
            self._truncate(ready.truncate_from)
        if ready.entries:
            self._backlog += ready.entries
            self.write_backlog()
            if self.on_stored is not None:
                self.on_stored(ready.entries)
        for receiver, message in ready.messages:
            self._surroundings.send(receiver, self.group, message)
        for receiver in ready.replicate:
            self._replicate(receiver)
        self.show(ready.commit)
        for token, index in ready.reads:
            self._settle_read(token, index)
        for token in ready.reads_failed:
            self._settle_read(token, None)
        if self.reign != self._told_reign:
            self._told_reign = self.reign
            self.on_reign(self)
            # Some read only where this node leads.
            self.audience.notify()

    def _notice_reign(self) -> None:
        """Begin or end a reign of this node."""
        leading = self.raft.leading
        if leading is self._leading:
            return
        if self._leading is not None:
            self._tail.clear()
            lost = f"the leader of {self.name} changed before this was known to be stored"
            self.audience.refuse_appends(LeaderChanged(lost))
        self._leading = leading
        if leading is not None and not self.votes_alone:
            try:
                self._write_note(KIND_REIGN, b"")
            except Unavailable:
                # Somebody who can write shall lead.
                self._leading = None
                self.disk_full = True
                self.raft.may_campaign = False
                self.raft.follow(self.raft.term, NOBODY)
                return
            self.raft.appended()
            self._surroundings.written(self)
        self.on_reign(self)

    def write_backlog(self) -> None:
        """Write what the consensus has taken; what there is no room for waits, and nobody is told of it."""
        if not self._backlog:
            return
        before = self.log.last_index
        placed = self.log.checked(self._backlog)
        try:
            self.log.append_placed(placed)
            self.disk_full = False
        except Unavailable:
            # A beginning of it may be written all the same.
            self.disk_full = True
        self.raft.may_campaign = not self.disk_full
        written = self.log.last_index - before
        self._mark(before, placed[:written])
        del self._backlog[:written]
        if written:
            self._surroundings.written(self)

    def _truncate(self, index: LogIndex) -> None:
        cut = self.log.last_index + 1 - index
        if cut > 0:
            self._backlog.clear()
            self.log.truncate_from(index)
        else:
            del self._backlog[-cut:]
        self._unmarked_to = min(self._unmarked_to, LogIndex(index - 1))
        while self._marks and self._marks[-1][0] >= index:
            self._marks.pop()
        if self.log.last_index > self.shown_index:
            self._marks.append((self.log.last_index, self.log.written_end))

    def _begin_anew(self, ready: Ready) -> None:
        install = ready.install
        assert install is not None
        (next_offset,) = _POSITION.unpack(install.position)
        self._backlog.clear()
        self._marks.clear()
        self._unmarked_to = install.last_index
        self.log.reset(LogIndex(install.last_index + 1), Offset(next_offset), install.last_term)
        self.shown_index = install.last_index
        self.end = Offset(next_offset)
        self.raft.log_durable(install.last_index)
        self._surroundings.touch(self)
        self.audience.notify()

    def _replicate(self, receiver: ReplicaId) -> None:
        leading = self.raft.leading
        if leading is None or receiver not in leading.progress or not self._surroundings.can_reach(receiver):
            return
        progress = leading.progress[receiver]
        if leading.needs_install(receiver):
            position = _POSITION.pack(self.log.start_offset)
            self._surroundings.send(receiver, self.group, leading.install_message(receiver, position))
            return
        if progress.next > self.raft.shape.last_index:
            # Nothing to send, but a question: where does it stand?
            self._surroundings.send(receiver, self.group, leading.append_message(receiver, ()))
            return
        pace = self._surroundings.pace
        while progress.has_room and progress.next <= self.raft.shape.last_index:
            entries = self._tail.take(progress.next, _APPEND_BYTES_MAX)
            note_sent = pace.sent_live
            if not entries:
                note_sent = pace.sent_from_files
                if progress.inflight_bytes >= _CATCH_UP_BYTES_MAX or not pace.has_room:
                    return
                try:
                    entries = self.log.read_entries(
                        progress.next, _APPEND_BYTES_MAX, self.raft.shape.last_index, may_block=False
                    )
                except NotCached as cold:
                    self._surroundings.warm(self, cold)
                    return
                except DamagedData as damage:
                    self._surroundings.cannot_lead(self, damage)
                    return
            under_way_bytes = progress.inflight_bytes
            self._surroundings.send(receiver, self.group, leading.append_message(receiver, entries))
            note_sent(progress.inflight_bytes - under_way_bytes)

    async def read_entries(self, first: LogIndex, bytes_max: int, last: LogIndex) -> list[Entry]:
        """Entries of any kind; the loop does not wait for the disk."""
        for _ in range(_WARM_ATTEMPTS):
            try:
                return self.log.read_entries(first, bytes_max, last, may_block=False)
            except NotCached as cold:
                await asyncio.to_thread(cold.warm)
        return self.log.read_entries(first, bytes_max, last)

    async def read(self, offset: Offset, bytes_max: int) -> list[memoryview]:
        """Whole batches that are shown, the first one holding `offset`."""
        for _ in range(_WARM_ATTEMPTS):
            try:
                return self.log.read(offset, bytes_max, self.end, may_block=False)
            except NotCached as cold:
                # A reader far behind waits for the disk in a thread; the loop goes on serving the others.
                await asyncio.to_thread(cold.warm)
        return self.log.read(offset, bytes_max, self.end)

    def trim_tail(self) -> None:
        """Forget entries that every follower has; those of one that is away are read from files."""
        leading = self.raft.leading
        if leading is not None and leading.progress:
            reachable = [
                progress.match for member, progress in leading.progress.items() if self._surroundings.can_reach(member)
            ]
            self._tail.drop_up_to(min(reachable, default=self.raft.shape.last_index))

    def compact_to_log(self) -> None:
        """The log has dropped its oldest segments."""
        self.raft.compacted_to(LogIndex(self.log.first_index - 1))

    # --- showing ----------------------------------------------------------------------------------

    def durable(self, index: LogIndex) -> None:
        """The disk has what was written: in a group of one that is all there is to wait for."""
        self.raft.log_durable(index)
        if self.is_alone and self.raft.leading is not None:
            self.show(self.raft.shown)
        else:
            self._surroundings.touch(self)

    def show(self, index: LogIndex) -> None:
        """Everything up to `index` is committed: acknowledge it and show it to readers."""
        if index <= self.shown_index:
            return
        self.shown_index = index
        end = self.end
        marks = self._marks
        while marks and marks[0][0] <= index:
            end = marks.popleft()[1]
        if index < self._unmarked_to:
            end = self._end_at(index)
        has_moved = end != self.end
        self.end = end
        self.audience.shown(index)
        if has_moved:
            self.audience.notify()

    def _end_at(self, index: LogIndex) -> Offset:
        """The offset behind an entry that was there at start."""
        if index < self.log.first_index:
            return self.log.start_offset
        (entry,) = self.log.read_entries(index, 1, index)
        (base_offset,) = _POSITION.unpack_from(entry.payload)
        return Offset(base_offset + (record_batch.extent(entry.payload)[0] if entry.kind == KIND_BATCH else 0))

    # --- reads that must not be old -----------------------------------------------------------------

    def confirmed_index(self) -> asyncio.Future[LogIndex]:
        """At the leader: what is committed, once a majority has confirmed that this still is the leader."""
        leading = self.raft.leading
        if leading is None:
            raise NotLeader(f"{self.name} is led by {self.leader_node or 'nobody'} now")
        confirmed: asyncio.Future[LogIndex] = self._loop.create_future()
        self._next_read += 1
        self._reads[self._next_read] = confirmed
        leading.read(self._next_read)
        self._surroundings.touch(self)
        return confirmed

    def _settle_read(self, token: int, index: LogIndex | None) -> None:
        confirmed = self._reads.pop(token)
        if index is None:
            refuse(confirmed, NotLeader(f"{self.name} has another leader now"))
        elif not confirmed.done():
            confirmed.set_result(index)

    async def wait_until_shown(self, index: LogIndex) -> None:
        if self.shown_index < index:
            await self.audience.until_shown(index)

    def close(self, error: HoldfastError) -> None:
        """Nobody will be answered any more."""
        for confirmed in self._reads.values():
            refuse(confirmed, error)
        self._reads.clear()
        self.audience.close(error)
        self.log.close(error)


def still_leads(node: str, replica: Replica) -> Callable[[], bool]:
    """Tells whether this node knows of no other leader."""
    return lambda: replica.leader_node in (None, node)

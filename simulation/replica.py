"""The driver of one `Raft`: it does what `ready` says, in that order, with a disk that takes its time.

This is the shell the real node has too, so it holds the same rules: what a sync covers ends where the log was cut
meanwhile, members are on the disk before their entry is in the log, and a new leader takes no ids before it knows
which ones are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.broker.dedupe import DedupeWindow
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.membership import Change
from holdfast.consensus.messages import Message, Ready
from holdfast.consensus.raft import Raft
from holdfast.model.entries import KIND_BATCH, KIND_COMMAND, KIND_MEMBERS, KIND_REIGN, Entry
from holdfast.model.ids import LogIndex, Offset, TimestampMs
from simulation.disk import Store
from simulation.requests import Answer, Ask, Request
from simulation.state import Batch, GroupState, command, member_command, note, offset_behind
from simulation.world import Violation

if TYPE_CHECKING:
    from holdfast.consensus.leading import Leading
    from simulation.node import Node

DEDUPE_IDS_MAX: Final = 32
ENTRIES_PER_MESSAGE_MAX: Final = 8
PUMP_ROUNDS_MAX: Final = 1000
_START: Final = TimestampMs(0)


class Replica:
    """One member of one group, while its node runs."""

    def __init__(self, node: Node, group: int, name: ReplicaId, store: Store) -> None:
        self.node = node
        self.world = node.world
        self.checker = node.checker
        self.group = group
        self.name = name
        self.store = store
        self.is_gone = False
        self.raft = Raft(name, shape=store.shape(), hard_state=store.hard_state, dice=node.world.dice.randrange)
        self.state = GroupState.decode(store.log.base_state)
        self.applied = store.log.base_index
        self.checker.started(self)
        # The reign of this replica, if it leads: what follows is of no use to anybody behind its end.
        self._reign: Leading | None = None
        self._next_offset = Offset(0)
        self._waiting: dict[LogIndex, list[tuple[Request, int]]] = {}
        self._reads: dict[int, tuple[Request, int]] = {}
        self._confirmed: list[tuple[LogIndex, Request, int]] = []
        self._window: DedupeWindow | None = None
        self._window_from = LogIndex(-1)
        self._storing: dict[str, LogIndex] = {}
        self._is_log_syncing = self._is_hard_state_syncing = False
        # Up to where the log will be durable when the sync under way is done.
        self._sync_reaches = LogIndex(-1)

    # --- events -------------------------------------------------------------------------------------

    def tick(self) -> None:
        if not self.raft.is_asleep:
            self.raft.tick()
            self.pump()

    def step(self, sender: ReplicaId, message: Message) -> None:
        self.raft.step(sender, message)
        self.pump()

    def pump(self) -> None:
        """Do what follows from what has happened, until nothing follows."""
        raft = self.raft
        is_more, rounds = True, 0
        while is_more and not self.is_gone:
            rounds += 1
            if rounds > PUMP_ROUNDS_MAX:
                raise Violation("everything ends", f"{self.label} never has enough")
            if raft.leading is not self._reign:
                self._change_reign()
            ready = raft.ready()
            is_more = self._do(ready)
            if raft.leading is not None:
                self.checker.committed(self)

    def _do(self, ready: Ready) -> bool:
        """Whether doing it gave more to do."""
        raft, store = self.raft, self.store
        if ready.hard_state is not None:
            if ready.is_hard_state_first:
                store.save_hard_state_now(ready.hard_state)
                raft.saved(ready.hard_state_number)
            else:
                store.write_hard_state(ready.hard_state_number, ready.hard_state)
                self._sync_hard_state()
        if ready.install is not None:
            install = ready.install
            self.checker.installed(self, install.last_index)
            store.install(install.last_index, install.last_term, install.position)
            self.state, self.applied = GroupState.decode(install.position), install.last_index
            self._sync_reaches = LogIndex(-1)
            self.world.counts["installations"] += 1
            raft.log_durable(install.last_index)
        if ready.truncate_from is not None:
            store.cut(ready.truncate_from)
            self._sync_reaches = min(self._sync_reaches, LogIndex(ready.truncate_from - 1))
            self.world.counts["logs cut"] += 1
        if ready.entries:
            store.append(ready.entries)
            self._sync_log()
        if ready.install is not None or ready.truncate_from is not None:
            self.checker.members_follow(self)
        for receiver, message in ready.messages:
            self.node.send_to_replica(self, receiver, message)
        for receiver in ready.replicate:
            self._replicate(receiver)
        if raft.shown > self.applied:
            self._apply(raft.shown)
        for token, index in ready.reads:
            self._confirmed.append((index, *self._reads.pop(token)))
        if self._confirmed:
            self._serve_reads()
        for token in ready.reads_failed:
            self._refuse(*self._reads.pop(token))
        return bool(ready.replicate or ready.install or (ready.hard_state and ready.is_hard_state_first))

    def _replicate(self, receiver: ReplicaId) -> None:
        leading = self.raft.leading
        assert leading is not None
        message: Message
        if leading.needs_install(receiver):
            message = leading.install_message(receiver, self.store.log.base_state)
        else:
            log = self.store.log
            start = leading.progress[receiver].next - log.base_index - 1
            entries = log.entries[start : start + self.world.dice.randint(1, ENTRIES_PER_MESSAGE_MAX)]
            message = leading.append_message(receiver, entries)
        self.node.send_to_replica(self, receiver, message)

    # --- the disk -----------------------------------------------------------------------------------

    def _sync_log(self) -> None:
        if not self._is_log_syncing and self.store.is_dirty:
            self._is_log_syncing = True
            self._sync_reaches = self.store.log.last_index
            self.world.after(self.node.sync_ms(), self._log_synced, self.store.written)

    def _log_synced(self, written: int) -> None:
        if self.is_gone or self.node.sync_failed():
            return
        if self.node.postpone(self._log_synced, written):
            return
        self._is_log_syncing = False
        self.store.log_synced(written)
        self.raft.log_durable(self._sync_reaches)
        self._sync_log()
        self.pump()

    def _sync_hard_state(self) -> None:
        if not self._is_hard_state_syncing and self.store.has_unsynced_hard_state:
            self._is_hard_state_syncing = True
            self.world.after(self.node.sync_ms(), self._hard_state_synced, self.store.hard_state_number)

    def _hard_state_synced(self, number: int) -> None:
        if self.is_gone or self.node.sync_failed():
            return
        if self.node.postpone(self._hard_state_synced, number):
            return
        self._is_hard_state_syncing = False
        self.store.hard_state_synced(number)
        self.raft.saved(number)
        self._sync_hard_state()
        self.pump()

    def compact(self, keep: int) -> None:
        """Drop old entries, as retention does, but keep the newest ones that are shown."""
        log = self.store.log
        base = LogIndex(self.applied - keep)
        if base <= log.base_index:
            return
        state = GroupState.decode(log.base_state)
        for entry in log.entries[: base - log.base_index]:
            state.apply(entry)
        self.store.drop_to(base, state.encode())
        self.raft.compacted_to(base)
        self.checker.compacted(self)
        self.world.counts["compactions"] += 1
        self._sync_log()
        self.pump()

    # --- reigning -----------------------------------------------------------------------------------

    def _change_reign(self) -> None:
        self._waiting.clear()
        self._storing.clear()
        self._confirmed.clear()
        self._window = None
        self._reign = self.raft.leading
        if self._reign is None:
            return
        log = self.store.log
        self._window_from = log.last_index
        self.checker.elected(self)
        self._next_offset = (
            offset_behind(log.entries[-1]) if log.entries else GroupState.decode(log.base_state).next_offset
        )
        if self.raft.members.voters != {self.name}:
            self._write(note(self.raft.term, KIND_REIGN, self._next_offset, self.name.encode()))
            self.raft.appended()

    def _write(self, entry: Entry) -> LogIndex:
        self.store.append([entry])
        self._sync_log()
        return self.store.log.last_index

    def change_members(self, members: Members) -> bool:
        """Whether it could be begun."""
        leading = self.raft.leading
        if leading is None or leading.refusal(members) is not None:
            return False
        self.checker.members_change(self, members)
        self.store.save_hard_state_now(self.raft.hard_state_with(members))
        self._write(note(self.raft.term, KIND_MEMBERS, self._next_offset, members.encode()))
        self.raft.appended_members(members)
        self.world.counts["changes of members"] += 1
        if self.world.is_traced:
            self.world.note(f"{self.label} changes members to {members}")
        self.pump()
        return True

    def propose(self, change: Change) -> bool:
        """Write into the control log that a node shall come or go."""
        leading = self.raft.leading
        if leading is None or not leading.takes_proposals:
            return False
        self._write(note(self.raft.term, KIND_COMMAND, self._next_offset, member_command(change)))
        self.raft.appended()
        self.world.counts[f"proposed: {change.kind}"] += 1
        if self.world.is_traced:
            self.world.note(f"{self.label} proposes {change}")
        self.pump()
        return True

    @property
    def label(self) -> str:
        return f"g{self.group} {self.name}"

    # --- requests -----------------------------------------------------------------------------------

    def handle(self, request: Request, origin: int) -> None:
        """The leader's part; `origin` is the node that gave it to us and gets the answer."""
        leading = self.raft.leading
        if leading is None:
            self._refuse(request, origin)
        elif request.ask in (Ask.READ, Ask.READ_CURSOR, Ask.READ_INDEX):
            token = request.client * 1_000_000 + self.world.dice.randrange(1_000_000)
            if token in self._reads:
                return
            self._reads[token] = (request, origin)
            leading.read(token)
        elif not leading.takes_proposals:
            self._refuse(request, origin)
        elif request.ask is Ask.MOVE_CURSOR:
            body = command(request.name, request.number)
            index = self._write(note(self.raft.term, KIND_COMMAND, self._next_offset, body))
            self._waiting[index] = [(request, origin)]
            self.raft.appended()
        elif request.message_id:
            self._publish_once(request, origin)
        else:
            self._publish(request, origin)
        self.pump()

    def _publish_once(self, request: Request, origin: int) -> None:
        if self._window is None:
            self._rebuild_window()
        if self._window is None:
            self._refuse(request, origin)
            return
        offset = self._window.stored_offset(request.message_id, _START)
        if offset is not None:
            self.world.counts["resends recognised"] += 1
            self._answer(request, origin, offset)
        elif request.message_id in self._storing:
            self._waiting[self._storing[request.message_id]].append((request, origin))
        else:
            self._storing[request.message_id] = self._publish(request, origin)

    def _publish(self, request: Request, origin: int) -> LogIndex:
        batch = Batch(self._next_offset, request.number, request.name, request.message_id)
        index = self._write(Entry(self.raft.term, KIND_BATCH, batch.encode()))
        self._next_offset = Offset(self._next_offset + batch.size)
        self._waiting[index] = [(request, origin)]
        self.raft.appended()
        return index

    def _refuse(self, request: Request, origin: int) -> None:
        self.node.answer(origin, Answer(request.client, request.operation, is_done=False))

    def _answer(self, request: Request, origin: int, value: int, name: str = "") -> None:
        self.node.answer(origin, Answer(request.client, request.operation, True, value, name))

    # --- showing ------------------------------------------------------------------------------------

    def _apply(self, shown: LogIndex) -> None:
        first = LogIndex(self.applied + 1)
        entries = self.store.log.entries[first - self.store.log.base_index - 1 : shown - self.store.log.base_index]
        self.checker.shown(self, first, entries)
        for index, entry in enumerate(entries, first):
            offset = self.state.next_offset
            self.state.apply(entry)
            self.applied = LogIndex(index)
            if self._window is not None:
                self._remember(self._window, entry)
            for request, origin in self._waiting.pop(self.applied, ()):
                self._answer(request, origin, offset)

    def _rebuild_window(self) -> None:
        """As soon as all is shown that was there before this reign, the ids in it are known."""
        assert self._reign is not None
        if not self._reign.is_settled or self.applied < self._window_from:
            return
        self._window = DedupeWindow(ids_max=DEDUPE_IDS_MAX, age_ms_max=1)
        log = self.store.log
        for entry in log.entries[: self.applied - log.base_index]:
            self._remember(self._window, entry)

    def _remember(self, window: DedupeWindow, entry: Entry) -> None:
        if entry.kind == KIND_BATCH:
            batch = Batch.decode(entry.payload)
            if batch.message_id:
                self._storing.pop(batch.message_id, None)
                window.remember(batch.message_id, batch.base_offset, _START)

    def _serve_reads(self) -> None:
        waiting = []
        for index, request, origin in self._confirmed:
            if index > self.applied:
                waiting.append((index, request, origin))
            elif request.ask is Ask.READ:
                self._answer(request, origin, self.state.next_offset, self.state.last_name)
            elif request.ask is Ask.READ_INDEX:
                self._answer(request, origin, index, request.name)
            else:
                self._answer(request, origin, self.state.cursors.get(request.name, 0))
        self._confirmed = waiting

"""The driver of one `Raft` of a pair: what `replica` does, and what only one of two does: take over, be alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.broker.dedupe import DedupeWindow
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.messages import Message, Ready
from holdfast.consensus.raft import Raft
from holdfast.consensus.timing import DEFAULT_TIMING
from holdfast.model.entries import KIND_COMMAND, KIND_MEMBERS, NOTE_HEAD_BYTES, Entry
from holdfast.model.ids import LogIndex, TimestampMs
from simulation.disk import Store
from simulation.replica import Replica
from simulation.requests import Request
from simulation.state import Batch, command, note

if TYPE_CHECKING:
    from simulation.pair_node import PairNode

CONTROL: Final = 0
_TOPIC: Final = "topic"
_IDS_MAX: Final = 100_000
# Requests of a client with so high a number are those of a node that gives what only it has.
GIVER: Final = 1000
# Of what is given, ids are recognised among so many messages: those that may have been under way a moment ago.
_RECENT: Final = 20


def made_id(group: int, entry: Entry) -> str:
    """The id of a message that came without one: as `record_batch.default_id`, where the epoch is told."""
    return f"{group}-{entry.term}-{Batch.decode(entry.payload).base_offset}"


class PairReplica(Replica):
    """One member of one group, while its node runs."""

    def __init__(self, node: PairNode, group: int, name: ReplicaId, store: Store) -> None:
        super().__init__(cast("Any", node), group, name, store)
        self.home = node
        dice = node.world.dice.randrange
        timing = DEFAULT_TIMING._replace(tells_commits_at_once=group == CONTROL)
        self.raft = Raft(
            name, shape=store.shape(), hard_state=store.hard_state, dice=dice, timing=timing, seat=node.number
        )
        self._could_send = False

    @property
    def is_alone(self) -> bool:
        """The only voter, whoever listens."""
        return self.raft.members.voters == {self.name}

    @property
    def takes(self) -> bool:
        """Whether a publisher is served here."""
        leading = self.raft.leading
        return leading is not None and leading.takes_proposals

    # --- what only one of two does --------------------------------------------------------------------

    def take_over(self) -> None:
        self.raft.take_over()
        self.pump()

    def campaign(self) -> None:
        self.raft.campaign()
        self.pump()

    def sync_hard_state_now(self) -> None:
        """The disk is waited for."""
        if self.store.has_unsynced_hard_state:
            number = self.store.hard_state_number
            self.store.hard_state_synced(number)
            self.raft.saved(number)
        self.pump()

    def save_members_now(self, members: Members) -> None:
        self.store.save_hard_state_now(self.raft.hard_state_with(members))

    def write_members(self, members: Members) -> None:
        """A configuration whose hard state is on the disk already, and that nobody has to agree to."""
        self._write(note(self.raft.term, KIND_MEMBERS, self._next_offset, members.encode()))
        self.raft.appended_members(members)

    # --- topics -------------------------------------------------------------------------------------------

    def create_topic(self, group: int) -> None:
        """At the leader of the control group."""
        self._write(note(self.raft.term, KIND_COMMAND, self._next_offset, command(_TOPIC, group)))
        self.raft.appended()
        self.pump()

    @property
    def knows_topic(self) -> int:
        """The newest topic that was ever written here, shown or not."""
        return max((number for _, number in self._topics(self.store.log.base_index + 1)), default=0)

    def _topics(self, first: int) -> list[tuple[LogIndex, int]]:
        log = self.store.log
        found = []
        for index in range(first, log.last_index + 1):
            entry = log.at(index)
            if entry.kind == KIND_COMMAND:
                name, _, number = bytes(entry.payload[NOTE_HEAD_BYTES:]).decode().partition("=")
                if name == _TOPIC:
                    found.append((LogIndex(index), int(number)))
        return found

    def _apply(self, shown: LogIndex) -> None:
        first = self.applied + 1
        super()._apply(shown)
        if self.group == CONTROL:
            for index, number in self._topics(first):
                if index <= shown:
                    members = [at for at in self.raft.members_history if at.since <= index][-1].members
                    self.home.open_topic(number, Members(members.voters))

    def _rebuild_window(self) -> None:
        """All ids of a run are recognised: what is sent again here is never so old that it is forgotten."""
        assert self._reign is not None
        if not self._reign.is_settled or self.applied < self._window_from:
            return
        self._window = DedupeWindow(ids_max=_IDS_MAX, age_ms_max=1)
        for entry in self.store.log.entries[: self.applied - self.store.log.base_index]:
            self._remember(self._window, entry)

    def _publish_once(self, request: Request, origin: int) -> None:
        """What is given may be old: its id is recognised only if it was stored a moment ago."""
        if request.client >= GIVER and self._window is not None:
            offset = self._window.stored_offset(request.message_id, TimestampMs(0))
            if offset is not None and offset < self._next_offset - _RECENT:
                self._publish(request, origin)
                return
        super()._publish_once(request, origin)

    # --- sending --------------------------------------------------------------------------------------------

    def _do(self, ready: Ready) -> bool:
        self._could_send = False
        is_more = super()._do(ready)
        if ready.replicate and not self._could_send:
            return bool(ready.install or (ready.hard_state and ready.is_hard_state_first))
        return is_more

    def _replicate(self, receiver: ReplicaId) -> None:
        leading = self.raft.leading
        if leading is None or receiver not in leading.progress or not self.home.can_reach(receiver):
            return
        self._could_send = True
        super()._replicate(receiver)

    def step(self, sender: ReplicaId, message: Message) -> None:
        if not self.is_gone:
            super().step(sender, message)

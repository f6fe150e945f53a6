"""What a node does about its groups once a second: spread leaders, let newcomers in, tell where it is.

- *Leaders are spread*: every partition has an order in which its replicas are wanted as leaders. A leader that is
  not the first of those that are there and have everything hands over to the one that is.
- *A disk that was lost*: a node that comes back with another life is somebody else. Each leader first lets it in
  as a learner, then, when it has everything, takes the old one out and lets the new one vote. One step at a time,
  each only when the one before is committed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

import structlog

from holdfast.backends.cluster.commands import Command, NoteNode
from holdfast.backends.cluster.control import Control
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.replica_names import life_of, node_of, replica_id
from holdfast.backends.cluster.state import NodeRow
from holdfast.backends.cluster.topics import Topics
from holdfast.consensus.leading import Leading
from holdfast.consensus.members import Members, ReplicaId
from holdfast.model.errors import DiskFull, HoldfastError
from holdfast.model.ids import LogIndex
from holdfast.model.limits import MIB

log = structlog.get_logger("holdfast.cluster")

_PERIOD_S: Final = 1.0
# Of two, one that is not let in yet cannot take over.
_PAIR_PERIOD_S: Final = 0.1
# A node that has just come back may be about to go again.
_STEADY_S: Final = 3.0
# So many groups are handed over in one period: each costs an election.
_TRANSFERS_MAX: Final = 20
# With less room than this a node does not want to lead.
_ROOM_BYTES_MIN: Final = 16 * MIB


class Upkeep:
    """Runs on every node; each leader looks after its own groups."""

    def __init__(
        self,
        groups: Groups,
        topics: Topics,
        control: Control,
        neighbours: Neighbours,
        nodes: Callable[[], dict[str, NodeRow]],
        propose: Callable[[Command], object],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._control = control
        self._neighbours = neighbours
        self._nodes = nodes
        self._propose = propose
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        # This node is about to stop: it wants to lead nothing any more.
        self._is_leaving = False
        # What was committed when groups were looked at last.
        self._decided: dict[Replica, LogIndex] = {}

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S if self._neighbours.pairing is None else _PAIR_PERIOD_S)
            if self._is_leaving:
                return
            try:
                self._look_after_everything()
            except (OSError, HoldfastError) as error:  # the disk is in trouble; the next round may find it well again
                log.error("upkeep_failed", problem=str(error))

    def _look_after_everything(self) -> None:
        self._control.drop_kept()
        self._look_for_room()
        if self._neighbours.has_peers:
            self._tell_addresses()
            self._look_after_members()
            self._spread_leaders()

    # --- members --------------------------------------------------------------------------------------

    def _look_after_members(self) -> None:
        for replica in list(self._groups.replicas.values()):
            leading = replica.raft.leading
            if leading is None or not leading.is_settled:
                continue
            wanted = self._next_members(replica, leading)
            if wanted is not None and leading.refusal(wanted) is None:
                self.change_members(replica, wanted)
        self._decided = {replica: replica.raft.commit for replica in self._groups.replicas.values()}

    def _decided_before(self, replica: Replica) -> LogIndex:
        """What was committed at the last look: who has that keeps up, though under load never with the very newest.

        One that votes a little early cannot act on what it lacks: that it votes stands in the log, behind all that. But
        it has to have something: one that has not heard of the group yet would keep it from deciding anything.
        """
        return max(LogIndex(0), self._decided.get(replica, replica.raft.commit))

    def _next_members(self, replica: Replica, leading: Leading) -> Members | None:
        """The next step of letting in who came back as somebody else; `None` if nobody did."""
        members = replica.raft.members
        for old in sorted(members.voters):
            node = node_of(old)
            life = self._neighbours.life_of(node)
            new = replica_id(node, life) if life is not None else old
            if new == old or new in members.voters:
                continue
            if new not in members.learners:
                return Members(members.voters, members.learners | {new})
            if leading.progress[new].match >= self._decided_before(replica):
                return Members(members.voters - {old}, members.learners)
        for voter in sorted(self._control.replica.raft.members.voters):
            # A topic that was made while a node was being let in began without it.
            is_there = any(node_of(member) == node_of(voter) for member in members.everybody)
            if not is_there and self._neighbours.life_of(node_of(voter)) == life_of(voter):
                return Members(members.voters, members.learners | {voter})
        partner = self._neighbours.partner_to_let_in(members)
        if partner is not None:
            return Members(members.voters, members.learners | {partner})
        for learner in sorted(members.learners):
            progress = leading.progress.get(learner)
            others = {node_of(voter) for voter in members.voters}
            life = self._neighbours.life_of(node_of(learner))
            if node_of(learner) in others and life not in (None, life_of(learner)):
                return Members(members.voters, members.learners - {learner})  # it was somebody else's disk
            is_complete = progress is not None and progress.match >= self._decided_before(replica)
            if is_complete and node_of(learner) not in others and self._may_vote(replica, learner):
                return Members(members.voters | {learner}, members.learners - {learner})
        return None

    def _may_vote(self, replica: Replica, learner: ReplicaId) -> bool:
        """Of a pair, the control group is the last: who votes there may take over, and must have everything then."""
        if self._neighbours.pairing is None or replica is not self._control.replica:
            return True
        others = [each.raft for each in self._groups.replicas.values() if each is not replica]
        return all(learner in raft.members.voters and raft.members_index <= raft.commit for raft in others)

    def change_members(self, replica: Replica, members: Members) -> None:
        """Write a configuration that its leader has nothing against."""
        raft = replica.raft
        self._groups.save_at_once(replica, raft.hard_state_with(members))
        try:
            replica.write_members(members)
        except DiskFull:
            self._groups.resign_for_want_of_room(replica)
            return
        log.info("members_changed", group=replica.name, members=str(members))

    # --- leaders --------------------------------------------------------------------------------------

    def _spread_leaders(self) -> None:
        transfers = 0
        for partition, replica in self._topics.replicas.items():
            topic = self._topics.known.get(partition.topic)
            if not replica.leads or topic is None or replica.reign is None:
                continue
            for voter in self._topics.line_of_leaders(replica.raft.members.voters, topic, partition.number):
                if voter == replica.raft.replica and not replica.disk_full:
                    break
                if self._can_lead(replica, voter):
                    self._hand_over(replica, voter)
                    transfers += 1
                    break
            if transfers >= _TRANSFERS_MAX:
                return

    def _can_lead(self, replica: Replica, voter: ReplicaId) -> bool:
        """Whether it is steadily there and has what this leader has, or nearly."""
        leading = replica.raft.leading
        if leading is None or voter not in leading.progress:
            return False
        is_steady = self._neighbours.seconds_up(node_of(voter)) > _STEADY_S
        return is_steady and leading.progress[voter].match >= replica.raft.commit

    def _hand_over(self, replica: Replica, voter: ReplicaId) -> None:
        assert replica.raft.leading is not None
        replica.raft.leading.transfer(voter)
        self._groups.touch(replica)

    def let_others_lead(self, replica: Replica) -> None:
        """This node's disk is full: somebody who can write shall lead."""
        leading = replica.raft.leading
        if leading is None or not leading.progress:
            return
        replica.disk_full = True
        replica.raft.may_campaign = False
        candidates = [
            (leading.progress[voter].match, voter)
            for voter in replica.raft.members.voters
            if voter in leading.progress and self._neighbours.is_up(node_of(voter))
        ]
        if candidates:
            self._hand_over(replica, max(candidates)[1])

    async def hand_over(self, patience_s: float) -> None:
        """Let others lead everything this node leads, as far as they are there."""
        self._is_leaving = True
        led = [replica for replica in self._groups.replicas.values() if replica.raft.leading is not None]
        for replica in self._groups.replicas.values():
            # A node that stands alone goes on taking what was sent to it until the end.
            replica.raft.may_campaign = replica.is_alone
        for replica in led:
            self.let_others_lead(replica)
        deadline = self._loop.time() + patience_s
        while self._loop.time() < deadline and any(
            replica.raft.leading is not None and replica.raft.leading.progress for replica in led
        ):
            await asyncio.sleep(0.005)

    def _look_for_room(self) -> None:
        for replica in self._groups.replicas.values():
            if replica.disk_full and not replica.has_backlog:
                room = os.statvfs(replica.log.directory)
                if room.f_bavail * room.f_frsize > _ROOM_BYTES_MIN:
                    replica.disk_full = False
                    replica.raft.may_campaign = True

    # --- addresses ------------------------------------------------------------------------------------

    def _tell_addresses(self) -> None:
        neighbours = self._neighbours
        row = NodeRow(neighbours.node, neighbours.life_of(neighbours.node) or "", dict(neighbours.addresses))
        if self._nodes().get(neighbours.node) != row and self._control.replica.raft.hears_leader:
            self._propose(NoteNode(row.node, row.life, row.addresses))

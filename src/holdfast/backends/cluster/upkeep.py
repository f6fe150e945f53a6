"""What a node does about its groups once a second: spread leaders, let newcomers in, tell where it is.

- *Leaders are spread*: every partition has an order in which its replicas are wanted as leaders. A leader that is
  not the first of those that are there and have everything hands over to the one that is.
- *Newcomers are let in*, and who lost its disk, by the rules of `consensus.letting_in`.
- *The cluster's level is raised* when all members understand the next one (`levels.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

import structlog

from holdfast.backends.cluster import levels
from holdfast.backends.cluster.commands import Command, NoteNode, RaiseLevel
from holdfast.backends.cluster.control import Control
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.state import NodeRow
from holdfast.backends.cluster.topics import Topics
from holdfast.broker.results import failure
from holdfast.consensus.leading import Leading
from holdfast.consensus.letting_in import LettingIn
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.replica_names import node_of
from holdfast.model.errors import DiskFull, HoldfastError, Unavailable
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
        state: ControlState,
        propose: Callable[[Command], asyncio.Future[None]],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._control = control
        self._neighbours = neighbours
        self._state = state
        self._propose = propose
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        # This node is about to stop: it wants to lead nothing any more.
        self._is_leaving = False
        self._letting_in = LettingIn(neighbours.life_of)
        self._raising: asyncio.Future[None] | None = None
        state.on_noted = self._raise_level

    def start(self) -> None:
        if self._state.level.number < levels.LEVEL:
            # What is new shall not be refused for a period.
            self._tell_addresses()
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
        if self._neighbours.has_peers or self._state.level.number < levels.LEVEL:
            self._tell_addresses()
        self._raise_level()
        if self._neighbours.has_peers:
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
        self._letting_in.looked(replica.raft for replica in self._groups.replicas.values())

    def _next_members(self, replica: Replica, leading: Leading) -> Members | None:
        control = self._control.replica
        is_last_of_a_pair = self._neighbours.pairing is not None and replica is control
        return self._letting_in.next_members(
            leading,
            replica.raft,
            wanted=control.raft.members.voters,
            partner=self._neighbours.partner_to_let_in(),
            before=[each.raft for each in self._groups.replicas.values() if each is not control]
            if is_last_of_a_pair
            else (),
        )

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
        pairing = self._neighbours.pairing
        if pairing is not None and replica is self._control.replica and len(members.voters) > 1:
            log.info("together", partner=pairing.partner, hint="either of the two carries on without the other")

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
        row = self._own_row()
        if self._state.nodes.get(row.node) != row and self._control.replica.raft.hears_leader:
            self._propose(_note(row))

    def _own_row(self) -> NodeRow:
        neighbours = self._neighbours
        life = neighbours.life_of(neighbours.node) or ""
        return NodeRow(neighbours.node, life, dict(neighbours.addresses), levels.BUILD, levels.LEVEL)

    # --- levels ---------------------------------------------------------------------------------------

    def _raise_level(self) -> None:
        """Let the cluster use what all of its nodes understand by now."""
        raft, now = self._control.replica.raft, self._state.level.number
        if now == levels.LEVEL or raft.leading is None or self._raising is not None:
            return
        announced = {node: row for node, row in self._state.nodes.items() if node in self._neighbours.names}
        level = levels.understood_by_all(raft.members.everybody, announced, self._neighbours.levels_of_linked())
        if level > now:
            log.info("raising_level", cluster_level=level, hint="an older version cannot be started any more")
            self._raising = self._propose(RaiseLevel(level))
            self._raising.add_done_callback(self._raised)

    def _raised(self, raising: asyncio.Future[None]) -> None:
        self._raising = None
        if (error := failure(raising)) is not None:
            log.warning("level_not_raised", problem=str(error), hint="it is tried again")

    async def raise_alone(self, *, is_incomplete: bool) -> None:
        """There is nobody to wait for: what this build understands can be used from the start.

        Where the file was new or damaged it has the level already. It is noted in the log all the same: a partner that
        is let in later gets the log, and may never see this file.
        """
        is_noted = self._state.level.number == levels.LEVEL and not is_incomplete
        if self._neighbours.has_peers or is_noted or levels.LEVEL == levels.BASELINE:
            return
        try:
            await asyncio.gather(self._propose(_note(self._own_row())), self._propose(RaiseLevel(levels.LEVEL)))
        except Unavailable as error:  # a full disk does not keep people from reading
            log.warning("level_not_raised", problem=error.message, hint="it is tried again")


def _note(row: NodeRow) -> NoteNode:
    return NoteNode(row.node, row.life, row.addresses, row.version, row.level)

"""What a node does about its groups once a second: spread leaders, let newcomers in, tell where it is.

- *Leaders are spread*: every partition has an order in which its replicas are wanted as leaders. A leader that is
  not the first of those that are there and have everything hands over to the one that is.
- *Newcomers are let in*, and who lost its disk, and who leaves is taken out, by the rules of `consensus.letting_in`.
  The leader of the control group says when that is over (`consensus.membership`).
- *A node that is gone for long* loses its vote, where that is set (`shrinking.py`).
- *The cluster's level is raised* when all members understand the next one (`levels.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from holdfast.backends.cluster import levels
from holdfast.backends.cluster.commands import ChangeMember, Command, NoteNode, RaiseLevel
from holdfast.backends.cluster.control import Control
from holdfast.backends.cluster.control_state import ControlState
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.neighbours import Neighbours
from holdfast.backends.cluster.pace import USUAL_PACE, Pace
from holdfast.backends.cluster.peer_book import is_usable
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.shrinking import Shrinking
from holdfast.backends.cluster.state import NodeRow
from holdfast.backends.cluster.topics import Topics
from holdfast.broker.results import failure
from holdfast.consensus.leading import Leading
from holdfast.consensus.letting_in import LettingIn
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.membership import Change, Place, next_change
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of, replica_id
from holdfast.model.errors import HoldfastError, StorageFailed, WorldError
from holdfast.model.ids import LogIndex, TimestampMs
from holdfast.model.limits import MIB

log = structlog.get_logger("holdfast.cluster")

# So many groups are handed over in one period: each costs an election.
_TRANSFERS_MAX: Final = 20
# So many groups take a step before others have their turn: that is one sync, and as many logs that are to be synced.
_CHANGES_MAX: Final = 20
_CHANGES_PAUSE_S: Final = 0.005
# With less room than this a node does not want to lead.
_ROOM_BYTES_MIN: Final = 16 * MIB
# So many groups are asked at once how far they are.
_CONFIRMED_AT_ONCE: Final = 64


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
        now_ms: Callable[[], TimestampMs],
        confirm: Callable[[Replica], Awaitable[LogIndex]],
        shrinking: Shrinking,
        pace: Pace = USUAL_PACE,
    ) -> None:
        self._pace = pace
        self._groups = groups
        self._topics = topics
        self._control = control
        self._neighbours = neighbours
        self._state = state
        self._propose = propose
        self._now_ms = now_ms
        self._confirm = confirm
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        # This node is about to stop: it wants to lead nothing any more.
        self._is_leaving = False
        self.shrinking = shrinking
        self._letting_in = LettingIn(self._life_of, shrinking.is_gone)
        # The reigns here that know what the control group had decided when they were asked about, or later.
        self._informed: set[Leading | None] = set()
        self._informing: asyncio.Task[None] | None = None
        self._finishing: asyncio.Future[None] | None = None
        self._raising: asyncio.Future[None] | None = None
        state.on_noted = self._raise_level

    def start(self) -> None:
        if self._state.level.number < levels.LEVEL:
            # What is new shall not be refused for a period.
            self._tell_addresses()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._notice_end)

    def _notice_end(self, task: asyncio.Task[None]) -> None:
        """Without it nobody comes or goes, leads as wanted, or is let in again; and nobody would know why."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("upkeep_ended", exc_info=error)
            self._groups.fail(StorageFailed(f"this node cannot look after its groups any more: {error!r}"))

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._finishing, self._informing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.shrinking.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            if self._is_leaving:
                return
            try:
                await self._look_after_everything()
            except (OSError, HoldfastError) as error:  # the disk is in trouble; the next round may find it well again
                log.error("upkeep_failed", problem=str(error))

    @property
    def _period_s(self) -> float:
        if self._neighbours.pairing is not None:
            return self._pace.pair_s
        return self._pace.upkeep_s if self._state.membership.under_way is None else self._pace.change_s

    async def _look_after_everything(self) -> None:
        self._control.drop_kept()
        self._look_for_room()
        if self._neighbours.has_peers or self._state.level.number < levels.LEVEL:
            self._tell_addresses()
        self._raise_level()
        if self._neighbours.has_peers:
            self.shrinking.look()
            await self._look_after_members()
            self._finish_change()
            self._spread_leaders()
            self._hand_over_control()

    # --- members --------------------------------------------------------------------------------------

    async def _look_after_members(self) -> None:
        """All groups take their next step, some of them at a time: publishers wait for the same disk."""
        left = deque(self._groups.replicas.values())
        while left:
            rafts = [replica.raft for replica in self._groups.replicas.values()]
            belonging = self._state.membership.wanted(self._control.replica.raft.members.everybody)
            changes: list[tuple[Replica, Members]] = []
            while left and len(changes) < _CHANGES_MAX:
                replica = left.popleft()
                leading = replica.raft.leading
                is_here = self._groups.replicas.get(replica.group) is replica
                if leading is None or not leading.is_settled or not is_here:
                    continue
                wanted = self._next_members(replica, leading, belonging, rafts)
                if wanted is not None and leading.refusal(wanted) is None:
                    changes.append((replica, wanted))
                elif self._letting_in.evidence.asks(replica.raft):
                    self._groups.touch(replica)
            if changes:
                self._change_members(changes)
            if left:
                await asyncio.sleep(_CHANGES_PAUSE_S)
        self._letting_in.looked(replica.raft for replica in self._groups.replicas.values())
        self._informed &= {replica.raft.leading for replica in self._groups.replicas.values()}

    def _life_of(self, node: str) -> str | None:
        """`None` for a node that is not heard, and for what the disk of one says that was taken out."""
        life = self._neighbours.life_of(node)
        is_watched = self._neighbours.pairing is None and node != self._neighbours.node
        if is_watched and not self._groups.is_heard(node):
            return None
        return None if life is None or self._state.membership.is_removed(replica_id(node, life)) else life

    def _next_members(
        self, replica: Replica, leading: Leading, belonging: set[str], rafts: list[Raft]
    ) -> Members | None:
        control, membership = self._control.replica, self._state.membership
        # One that votes here may go on alone, and must have everything then.
        votes_last = replica is control and (self._neighbours.pairing is not None or self.shrinking.is_on)
        return self._letting_in.next_members(
            leading,
            replica.raft,
            wanted=belonging,
            goes=membership.goes,
            # In the control group it hears what is decided until it is in no other group.
            listens=lambda each: replica is control and not membership.is_removed(each),
            is_informed=lambda: self._is_informed(leading),
            leaves_last=replica is control,
            beside=rafts if self._neighbours.pairing is None else (),
            partner=self._neighbours.partner_to_let_in(),
            before=[each for each in rafts if each is not control.raft] if votes_last else (),
        )

    def _is_informed(self, leading: Leading) -> bool:
        """Whether the rows that are known here are not older than this reign; if not, the control group is asked."""
        if leading in self._informed:
            return self._control.replica.raft.hears_leader
        if self._informing is None or self._informing.done():
            self._informing = self._loop.create_task(self._inform())
            self._informing.add_done_callback(_notice)
        return False

    async def _inform(self) -> None:
        reigns = {replica.raft.leading for replica in self._groups.replicas.values()}
        await self._control.wait_until_applied(await self._confirm(self._control.replica))
        self._informed |= reigns

    def can_spare(self, replica: Replica, node: str) -> bool:
        """Whether a group that is led here goes on without a node: the rest is a majority that has everything."""
        leading, voters = replica.raft.leading, replica.raft.members.voters
        rest = frozenset(voter for voter in voters if node_of(voter) != node)
        if rest == voters:
            return True
        return leading is not None and bool(rest) and self._letting_in.is_enough(leading, replica.raft, rest)

    def _finish_change(self) -> None:
        """Say in the control log that a node has come or gone, once every group has it so."""
        if self._state.membership.under_way is None or self._control.replica.raft.leading is None:
            return
        groups = self._all_groups()
        is_asked = self._finishing is not None and not self._finishing.done()
        if groups is None or is_asked:
            return
        if self._next_change(groups, is_current=lambda raft: True) is not None:
            self._finishing = self._loop.create_task(self._confirm_and_finish())
            self._finishing.add_done_callback(_notice)

    async def _confirm_and_finish(self) -> None:
        """It seems over, from what this node has of all groups; their leaders know whether it is."""
        before = self._state.membership.under_way
        control = self._control.replica
        current: set[Raft] = set()
        replicas = [each for each in self._groups.replicas.values() if each is not control]
        for start in range(0, len(replicas), _CONFIRMED_AT_ONCE):
            some = replicas[start : start + _CONFIRMED_AT_ONCE]
            await asyncio.gather(*map(self._confirm, some))
            current |= {each.raft for each in some}
        # A topic that was made meanwhile was not asked, and so is not current.
        groups = self._all_groups()
        change = None if groups is None else self._next_change(groups, is_current=current.__contains__)
        if change is not None and self._state.membership.under_way == before:
            await self._propose(ChangeMember(change.kind, change.node, change.expects, change.since_ms))

    def _all_groups(self) -> list[Raft] | None:
        """But the control group; `None` while a topic is not open here, or not known: nobody can tell who is in it."""
        control = self._control
        groups = [each.raft for each in self._groups.replicas.values() if each is not control.replica]
        is_behind = control.applied < control.replica.raft.members_index
        partitions = sum(topic.config.partitions for topic in self._topics.known.values())
        return None if is_behind or len(groups) < partitions else groups

    def _next_change(self, groups: list[Raft], *, is_current: Callable[[Raft], bool]) -> Change | None:
        control = self._control.replica.raft
        return next_change(
            self._state.membership,
            control,
            groups,
            self._now_ms(),
            is_current=is_current,
            is_well=lambda name: self._letting_in.is_well_everywhere([control, *groups], name),
        )

    def _change_members(self, changes: list[tuple[Replica, Members]]) -> None:
        try:
            self._groups.change_members_now(changes)
        except StorageFailed as error:
            # A second try may succeed and mean nothing: the disk has said once what became of those bytes.
            self._groups.fail(error)
            return
        pairing = self._neighbours.pairing
        for replica, members in changes:
            if replica.raft.members != members:
                continue  # there was no room
            log.info("members_changed", group=replica.name, members=str(members))
            if pairing is not None and replica is self._control.replica and len(members.voters) > 1:
                log.info("together", partner=pairing.partner, hint="either of the two carries on without the other")

    # --- leaders --------------------------------------------------------------------------------------

    def _spread_leaders(self) -> None:
        transfers = 0
        may_lead = self._state.membership.may_lead(self._neighbours.node)
        for partition, replica in self._topics.replicas.items():
            topic = self._topics.known.get(partition.topic)
            if not replica.leads or topic is None or replica.reign is None:
                continue
            line = self._topics.line_of_leaders(replica.raft.members.voters, topic, partition.number)
            for voter in line:
                if voter == replica.raft.replica and not replica.disk_full and may_lead:
                    break
                if self._can_lead(replica, voter):
                    self._hand_over(replica, voter)
                    transfers += 1
                    break
            else:
                transfers += self._hand_over_at_need(replica, line)
            if transfers >= _TRANSFERS_MAX:
                return

    def _hand_over_control(self) -> None:
        """The control group has no order of leaders: whoever leads it goes on, unless it shall lead nothing."""
        replica = self._control.replica
        if not replica.leads or replica.reign is None or self._state.membership.may_lead(self._neighbours.node):
            return
        for voter in sorted(replica.raft.members.voters - {replica.raft.replica}):
            if self._can_lead(replica, voter):
                self._hand_over(replica, voter)
                return
        self._hand_over_at_need(replica, sorted(replica.raft.members.voters))

    def _hand_over_at_need(self, replica: Replica, voters: Iterable[ReplicaId]) -> bool:
        """Whether this node leaves and hands over to one that is drained, since nobody else can lead."""
        if self._state.membership.may_lead(self._neighbours.node, at_need=True):
            return False
        voter = next((each for each in voters if self._can_lead(replica, each, at_need=True)), None)
        if voter is not None:
            self._hand_over(replica, voter)
        return voter is not None

    def _can_lead(self, replica: Replica, voter: ReplicaId, *, at_need: bool = False) -> bool:
        """Whether it is steadily there and has what this leader has, or nearly."""
        leading = replica.raft.leading
        if leading is None or voter not in leading.progress:
            return False
        if not self._state.membership.may_lead(node_of(voter), at_need=at_need):
            return False
        # Who shall lead nothing does not choose for long.
        steady_s = self._pace.steady_s if self._state.membership.may_lead(self._neighbours.node) else 0.0
        is_steady = self._neighbours.seconds_up(node_of(voter)) > steady_s
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
        place = self._state.membership.place_of(row.node, self._control.replica.raft.members.everybody)
        if place is None or place is Place.REMOVED:
            return  # it has no say yet
        if self._state.nodes.get(row.node) != row and self._control.replica.raft.hears_leader:
            self._propose(_note(row))

    def _own_row(self) -> NodeRow:
        neighbours = self._neighbours
        life = neighbours.life_of(neighbours.node) or ""
        addresses = dict(neighbours.addresses)
        noted = self._state.nodes.get(neighbours.node)
        if noted is not None and not is_usable(addresses.get("peer", "")) and "peer" in noted.addresses:
            # It listens everywhere, and has not gone out to anybody since it was started.
            addresses["peer"] = noted.addresses["peer"]
        return NodeRow(neighbours.node, life, addresses, levels.BUILD, levels.LEVEL)

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
        except WorldError as error:  # a disk that takes nothing does not keep people from reading
            log.warning("level_not_raised", problem=error.message, hint="it is tried again")


def _note(row: NodeRow) -> NoteNode:
    return NoteNode(row.node, row.life, row.addresses, row.version, row.level)


def _notice(finished: asyncio.Future[None]) -> None:
    """What was not decided is proposed again at the next look."""
    if not finished.cancelled() and (error := finished.exception()) is not None:
        log.info("change_not_finished", problem=str(error))

"""Nodes that come and go as in the broker: rows of the control log say who belongs, and each leader does its part.

What decides is the broker's own (`consensus.membership`, `consensus.letting_in`); this is its `upkeep`, with what one
node knows, which may be old. Every group is on every node that belongs. Nobody outside of the nodes helps: a wish is
written into the control log by whoever leads it, or is lost and repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.consensus.leading import Leading
from holdfast.consensus.letting_in import LettingIn
from holdfast.consensus.members import Members, ReplicaId
from holdfast.consensus.membership import Change, Kind, Membership, Place, next_change
from holdfast.consensus.raft import Raft
from holdfast.consensus.replica_names import node_of, replica_id
from holdfast.model.ids import LogIndex
from simulation.membership_checker import MembershipChecker
from simulation.node import Node
from simulation.replica import Replica
from simulation.requests import NODE_ITSELF, Answer, Ask, Request
from simulation.state import CONTROL_GROUP

if TYPE_CHECKING:
    from simulation.cluster import Cluster

PAUSE_MS = 60.0


class Housekeeper:
    """What one run of one node knows and does about who belongs to its groups."""

    def __init__(self, node: Node, check: MembershipChecker) -> None:
        self._node = node
        self._check = check
        # Up to where the control group has decided, asked after these reigns began.
        self._informed: dict[Leading, LogIndex] = {}
        self._questions: dict[int, list[Leading]] = {}
        # What was committed at the last look.
        self._decided: dict[int, LogIndex] = {}
        self.letting_in = LettingIn(self.life_of)
        # Up to where the leaders of groups have decided, asked after the row of that number was made.
        self._indexes: dict[tuple[int, int], LogIndex] = {}

    @property
    def control(self) -> Replica | None:
        return self._node.replicas.get(CONTROL_GROUP)

    @property
    def membership(self) -> Membership:
        return Membership() if self.control is None else self.control.state.membership

    def life_of(self, node: str) -> str | None:
        number = int(node.removeprefix("n"))
        if number == self._node.number:
            return str(self._node.lives[CONTROL_GROUP])
        life = self._node.heard_life(number)
        if life is None or self.membership.is_removed(replica_id(node, str(life))):
            return None
        return str(life)

    def look(self) -> None:
        """What the broker's upkeep does, in its order."""
        if self.control is None:
            return
        for replica in list(self._node.replicas.values()):
            leading = replica.raft.leading
            if leading is not None and leading.is_settled:
                wanted = self._next_members(replica)
                if wanted is not None and leading.refusal(wanted) is None:
                    self._check.majority_has_everything(replica, wanted, self._decided.get(replica.group, LogIndex(-1)))
                    replica.change_members(wanted)
                elif self.letting_in.evidence.asks(replica.raft):
                    replica.pump()
        self.letting_in.looked(replica.raft for replica in self._node.replicas.values())
        self._decided = {replica.group: replica.raft.commit for replica in self._node.replicas.values()}
        self._finish_change()
        self._hand_over()
        self._tell_who_left()

    def _next_members(self, replica: Replica) -> Members | None:
        control, membership = self.control, self.membership
        leading = replica.raft.leading
        assert control is not None and leading is not None
        return self.letting_in.next_members(
            leading,
            replica.raft,
            wanted=membership.wanted(control.raft.members.everybody),
            goes=membership.goes,
            listens=lambda each: replica is control and not membership.is_removed(each),
            is_informed=lambda: self._is_informed(leading),
            leaves_last=replica is control,
            beside=[each.raft for each in self._node.replicas.values()],
        )

    def _is_informed(self, leading: Leading) -> bool:
        control = self.control
        assert control is not None
        if leading in self._informed:
            return control.raft.hears_leader and control.applied >= self._informed[leading]
        number = self._node.boot * 1_000_000 + len(self._questions)
        rafts = [each.raft for each in self._node.replicas.values()]
        self._questions[number] = [raft.leading for raft in rafts if raft.leading is not None]
        self._node.request(Request(NODE_ITSELF, number, Ask.READ_INDEX, CONTROL_GROUP, str(CONTROL_GROUP)))
        return leading in self._informed and control.applied >= self._informed[leading]

    def _finish_change(self) -> None:
        control = self.control
        assert control is not None
        groups = [each.raft for each in self._node.replicas.values() if each is not control]
        if control.applied < control.raft.members_index or len(groups) + 1 < len(self._node.genesis):
            return
        seems_over = self._next_change(control, groups, is_current=lambda raft: True)
        if seems_over is None:
            return
        current = {
            each.raft
            for each in self._node.replicas.values()
            if each.raft.commit >= self._indexes.get((each.group, seems_over.expects), LogIndex(1 << 60))
        }
        change = self._next_change(control, groups, is_current=current.__contains__)
        if change is not None:
            control.propose(change)
            return
        for group in range(1, len(self._node.genesis)):
            self._node.request(Request(NODE_ITSELF, seems_over.expects, Ask.READ_INDEX, group, str(group)))

    def take_index(self, answer: Answer) -> None:
        if not answer.is_done:
            return
        if int(answer.name) == CONTROL_GROUP:
            for leading in self._questions.get(answer.operation, ()):
                self._informed[leading] = LogIndex(answer.value)
        else:
            self._indexes[int(answer.name), answer.operation] = LogIndex(answer.value)

    def _next_change(
        self, control: Replica, groups: list[Raft], *, is_current: Callable[[Raft], bool]
    ) -> Change | None:
        rafts = [control.raft, *groups]
        return next_change(
            self.membership,
            control.raft,
            groups,
            0,
            is_current=is_current,
            is_well=lambda name: self.letting_in.is_well_everywhere(rafts, name),
        )

    def _hand_over(self) -> None:
        """Who leaves leads nothing."""
        if self.membership.may_lead(f"n{self._node.number}"):
            return
        for replica in list(self._node.replicas.values()):
            leading = replica.raft.leading
            if leading is None or not leading.is_settled:
                continue
            voters = [
                voter
                for voter in sorted(leading.progress.keys() & replica.raft.members.voters)
                if self.life_of(node_of(voter)) is not None and leading.progress[voter].match >= replica.raft.commit
            ]
            able = [voter for voter in voters if self.membership.may_lead(node_of(voter))]
            if not able and not self.membership.may_lead(f"n{self._node.number}", at_need=True):
                able = [voter for voter in voters if self.membership.may_lead(node_of(voter), at_need=True)]
            if able:
                leading.transfer(able[0])
                replica.pump()

    def _tell_who_left(self) -> None:
        node = self._node
        for peer in node.peers:
            life = node.heard_life(peer)
            if life is not None and self.membership.is_removed(name := replica_id(f"n{peer}", str(life))):
                node.network.send(node.number, node.boot, peer, ("removed", name))

    def take_join(self, name: ReplicaId) -> None:
        """Somebody wants in, and whoever leads the control group hears it."""
        control = self.control
        if control is None or control.raft.leading is None or not control.raft.leading.is_settled:
            return
        place = self.membership.place_of(node_of(name), control.raft.members.everybody)
        if place not in (Place.JOINING, Place.VOTER) and not self.membership.is_removed(name):
            self.propose(Kind.JOIN, node_of(name))

    def propose(self, kind: Kind, node: str, other: str = "") -> bool:
        """Have the control log decide, where this node leads it."""
        control = self.control
        if control is None or control.raft.leading is None:
            return False
        change = Change(kind, node, self.membership.number_of(node), 0, other)
        if self.membership.refusal(change, control.raft.members.everybody) is not None:
            return False
        return control.propose(change)


class Housekeeping:
    """All nodes look after their groups, and those who want in ask for it. `wanted` is what it comes to."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._count = count
        self._check = MembershipChecker(cluster.nodes, cluster.checker)
        self._housekeepers: dict[tuple[int, int], Housekeeper] = {}
        for node in cluster.nodes:
            node.is_gone = lambda name, node=node: self.of(node).membership.is_removed(name)  # type: ignore[misc]
            node.on_index = lambda answer, node=node: self.of(node).take_index(answer)  # type: ignore[misc]
            node.on_join = lambda name, node=node: self.of(node).take_join(name)  # type: ignore[misc]
        self._world.after(PAUSE_MS, self._look)

    def of(self, node: Node) -> Housekeeper:
        """One for each run of a node: what it remembers ends with the process."""
        return self._housekeepers.setdefault((node.number, node.boot), Housekeeper(node, self._check))

    def counted_on(self, node: Node, group: int) -> list[frozenset[ReplicaId]]:
        """The voters that a leader on this node may be about to write."""
        replica = node.replicas.get(group)
        return [] if replica is None else list(self.of(node).letting_in.evidence.counted_on(replica.raft))

    @property
    def wanted(self) -> list[set[int]]:
        leader = self._cluster.leader(CONTROL_GROUP)
        if leader is None:
            return [set() for _ in range(self._count)]
        nodes = leader.state.membership.wanted(leader.raft.members.everybody)
        return [{int(node.removeprefix("n")) for node in nodes} for _ in range(self._count)]

    def changing(self) -> str | None:
        """What is not over yet."""
        leader = self._cluster.leader(CONTROL_GROUP)
        row = None if leader is None else leader.state.membership.under_way
        if row is not None:
            return f"{row.node} is {row.place}"
        waiting = [node.number for node in self._cluster.nodes if node.wants_in and not self._is_in(node)]
        return f"nodes {waiting} want in" if waiting else None

    def _is_in(self, node: Node) -> bool:
        control = node.replicas.get(CONTROL_GROUP)
        return control is not None and control.name in control.raft.members.everybody

    def _look(self) -> None:
        self._world.after(PAUSE_MS, self._look)
        for node in self._cluster.nodes:
            if not node.is_up or node.frozen_until_ms > self._world.now_ms:
                continue
            if node.wants_in and not self._is_in(node):
                peer = self._world.dice.choice(node.peers)
                node.network.send(node.number, node.boot, peer, ("join", node.name_in(CONTROL_GROUP)))
            self.of(node).look()
        self._check.rows([self.of(node).membership for node in self._cluster.nodes if node.is_up])

    # --- wishes -----------------------------------------------------------------------------------

    def join(self) -> bool:
        """A node that is outside is started, and wants in."""
        outside = [node for node in self._cluster.nodes if node.is_up and not node.wants_in]
        if not outside:
            return False
        self._world.dice.choice(outside).want_in()
        return True

    def remove(self) -> bool:
        leader = self._cluster.leader(CONTROL_GROUP)
        if leader is None or not leader.node.is_up:
            return False
        keeper = self.of(leader.node)
        nodes = sorted(keeper.membership.wanted(leader.raft.members.everybody))
        if len(nodes) < 2:
            return False
        leaver = self._world.dice.choice(nodes)
        return self._can_spare(leaver) and keeper.propose(Kind.LEAVE, leaver)

    def keep(self) -> bool:
        """Somebody has thought better of it: the node that leaves shall stay."""
        leader = self._cluster.leader(CONTROL_GROUP)
        if leader is None or not leader.node.is_up:
            return False
        keeper = self.of(leader.node)
        row = keeper.membership.under_way
        return row is not None and row.place is Place.LEAVING and keeper.propose(Kind.KEEP, row.node)

    def drain(self) -> bool:
        leader = self._cluster.leader(CONTROL_GROUP)
        if leader is None or not leader.node.is_up:
            return False
        keeper = self.of(leader.node)
        node = self._world.dice.choice(sorted(keeper.membership.wanted(leader.raft.members.everybody)))
        return keeper.propose(self._world.dice.choice((Kind.DRAIN, Kind.DRAIN, Kind.UNDRAIN)), node)

    def replace(self) -> bool:
        leader = self._cluster.leader(CONTROL_GROUP)
        if leader is None or not leader.node.is_up:
            return False
        keeper = self.of(leader.node)
        row = keeper.membership.under_way
        nodes = sorted(keeper.membership.wanted(leader.raft.members.everybody))
        if len(nodes) < 3 or (row is not None and row.place is not Place.JOINING):
            return False
        if row is not None:
            return keeper.propose(Kind.REPLACE, row.node, self._world.dice.choice(nodes))
        new, old = self._world.dice.sample(nodes, 2)
        return self._can_spare(old) and keeper.propose(Kind.REPLACE, new, old)

    def _can_spare(self, node: str) -> bool:
        """As the broker asks before: the leaders of all groups, each for its own."""
        for group in self._cluster.groups:
            leader = self._cluster.leader(group)
            if leader is None or leader.raft.leading is None:
                return False
            rest = frozenset(voter for voter in leader.raft.members.voters if node_of(voter) != node)
            letting_in = self.of(leader.node).letting_in
            if not rest or not letting_in.is_enough(leader.raft.leading, leader.raft, rest):
                return False
        return True

"""All parts of one run put together, and the questions one asks of the whole."""

from __future__ import annotations

from holdfast.consensus.members import Members
from simulation.clients import Client
from simulation.housekeeping import Housekeeping
from simulation.invariants import Checker
from simulation.network import Network
from simulation.node import Node
from simulation.operator import Operator
from simulation.replica import Replica
from simulation.requests import Answer
from simulation.world import TICK_MS, World


class Cluster:
    """Sizes are chosen by the seed; `groups` are the nodes each group begins with."""

    def __init__(self, world: World, *, has_slow_disks: bool, is_housekept: bool = False) -> None:
        self.world = world
        dice = world.dice
        size = dice.choice((3, 3, 3, 5, 5, 7))
        groups = dice.choice((1, 2, 2, 3) if size < 7 else (1, 2))
        placed = [self._place(size, group) for group in range(groups)]
        if is_housekept:
            # Every group is on every node that belongs.
            placed = [set(range(dice.randint(1, size - 1)))] * groups
        keep_entries = dice.choice((8, 24, 64))
        genesis = [Members.of(f"n{number}.0" for number in sorted(nodes)) for nodes in placed]
        self.is_calm = False
        self.network = Network(world)
        self.checker = Checker(world, groups, keep_entries)
        self.nodes = [Node(number, world, self.network, self.checker, genesis, self._reply) for number in range(size)]
        self.checker.nodes = self.nodes
        for node in self.nodes:
            node.peers = [peer for peer in range(size) if peer != node.number]
            node.keep_entries = keep_entries
            if has_slow_disks:
                node.sync_ms_max = dice.choice((1.5, 1.5, 1.5, 20.0, 60.0))
        self.operator: Operator | Housekeeping
        if is_housekept:
            self.operator = Housekeeping(self, groups)
            for node in self.nodes:
                node.wants_in = node.number in placed[0]
        else:
            self.operator = Operator(self, placed)
        pause_ms = dice.choice((8.0, 20.0, 60.0))
        self.clients = [Client(number, self, list(range(groups)), pause_ms) for number in range(dice.randint(2, 5))]
        for node in self.nodes:
            node.start()
        for client in self.clients:
            client.begin()

    def _place(self, size: int, group: int) -> set[int]:
        dice = self.world.dice
        count = size if group == 0 else dice.choice((1, 2, 2, 3, 3, 4, 5, 7))
        return set(dice.sample(range(size), min(size, count)))

    def _reply(self, answer: Answer) -> None:
        self.world.after(0.2, self.clients[answer.client].answered, answer)

    @property
    def groups(self) -> range:
        return range(len(self.operator.wanted))

    def run_ticks(self, ticks: float) -> None:
        self.world.run_until(self.world.now_ms + ticks * TICK_MS)

    def leader(self, group: int) -> Replica | None:
        """The one of the newest term, if several think they lead."""
        leading = [
            replica
            for node in self.nodes
            if (replica := node.replicas.get(group)) is not None and replica.raft.leading is not None
        ]
        return max(leading, key=lambda replica: replica.raft.term, default=None)

    def heal(self) -> None:
        """Faults end here: links carry, disks work, clocks agree, everybody is up."""
        self.is_calm = True
        self.network.calm()
        for node in self.nodes:
            node.sync_ms_max = 1.5
            node.is_sync_failing = False
            node.tick_ms = TICK_MS
            node.frozen_until_ms = 0.0
            node.start()

    # --- what a healthy cluster comes to ----------------------------------------------------------------

    def unsettled(self, group: int) -> str | None:
        """Why this group is not in order yet."""
        leader = self.leader(group)
        if leader is None:
            return "nobody leads"
        if isinstance(self.operator, Housekeeping) and (changing := self.operator.changing()) is not None:
            return changing
        wanted = {self.nodes[number].name_in(group) for number in self.operator.wanted[group]}
        members = leader.raft.members
        if members.voters != wanted or members.learners:
            return f"members are {members}, wanted are {sorted(wanted)}"
        last = leader.store.log.last_index
        for name in sorted(members.everybody):
            node = self.nodes[int(name.partition(".")[0][1:])]
            replica = node.replicas.get(group)
            if replica is None or replica.name != name or replica.applied != last:
                return f"{name} shows {replica.applied if replica else None} of {last}"
        return None

    def awake(self, group: int) -> str | None:
        """Who does not sleep yet."""
        for number in sorted(self.operator.wanted[group]):
            replica = self.nodes[number].replicas.get(group)
            if replica is not None and not replica.raft.is_asleep:
                return replica.label
        return None

"""What goes wrong, and when: a profile is a list of kinds of faults, picked from while the faulty time lasts.

Nothing here breaks what nobody promised to survive: the disks that are lost or damaged are never a majority of any
configuration that may be in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.housekeeping import Housekeeping
from simulation.node import Node
from simulation.operator import Operator
from simulation.world import TICK_MS

if TYPE_CHECKING:
    from simulation.cluster import Cluster

NETWORK = ("partition", "clogged link", "bad network", "bad network")
CRASHES = ("crash", "crash", "crash", "crash of all", "freeze", "clock jump", "clock drift")
DISKS = ("crash", "slow disk", "failing sync", "lost disk", "bit flip", "crash of all")
MEMBERSHIP = ("change of place", "change of place", "leader leaves", "transfer", "crash", "partition")
# As `membership`, with the broker's own way of letting nodes in and out.
COMING_AND_GOING = (
    "join",
    "join",
    "remove",
    "remove",
    "replace",
    "replace",
    "drain",
    "keep",
    "keep",
    "crash",
    "partition",
    "freeze",
    "crash of all",
)
PROFILES: dict[str, tuple[str, ...]] = {
    "none": (),
    "isolation": (),
    "network": NETWORK,
    "crashes": CRASHES,
    "disks": DISKS,
    "membership": MEMBERSHIP,
    "members": (*COMING_AND_GOING, "bad network", "lost disk"),
    "everything": (*NETWORK, *CRASHES, *DISKS, *MEMBERSHIP),
}


class Faults:
    """Injects one fault after the other until `stop`."""

    def __init__(self, cluster: Cluster, profile: str, pause_ms: float) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._kinds = PROFILES[profile]
        self._pause_ms = pause_ms
        self._is_over = False
        self._injectors: dict[str, Callable[[], bool]] = {
            "partition": self._partition,
            "clogged link": self._clog,
            "bad network": self._bad_network,
            "crash": self._crash,
            "crash of all": self._crash_all,
            "freeze": self._freeze,
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            "slow disk": self._slow_disk,
            "failing sync": self._failing_sync,
            "lost disk": self._lost_disk,
            "bit flip": self._bit_flip,
            "change of place": self._change_place,
            "leader leaves": self._leader_leaves,
            "transfer": self._transfer,
            "join": lambda: self._housekeeping.join(),
            "remove": lambda: self._housekeeping.remove(),
            "keep": lambda: self._housekeeping.keep(),
            "replace": lambda: self._housekeeping.replace(),
            "drain": lambda: self._housekeeping.drain(),
        }
        if self._kinds:
            self._world.after(self._pause(), self._inject)

    def stop(self) -> None:
        self._is_over = True

    def _pause(self) -> float:
        return self._pause_ms * (0.2 + self._world.dice.random())

    def _inject(self) -> None:
        if self._is_over:
            return
        kind = self._world.dice.choice(self._kinds)
        if self._world.is_traced:
            self._world.note(f"FAULT {kind}")
        if self._injectors[kind]():
            self._world.counts[f"fault: {kind}"] += 1
        self._world.after(self._pause(), self._inject)

    def _later(self, ticks_max: int, action: Callable[[], None]) -> None:
        """Undo it after a while, unless all faults are undone by then."""

        def undo() -> None:
            if not self._is_over:
                action()

        self._world.after(self._world.dice.random() * ticks_max * TICK_MS, undo)

    def _some_node(self) -> Node:
        return self._world.dice.choice(self._cluster.nodes)

    def _victim(self) -> Node:
        """Any node, but rather one that leads."""
        leader = self._cluster.leader(self._world.dice.choice(self._cluster.groups))
        return leader.node if leader is not None and self._world.chance(0.5) else self._some_node()

    # --- the network ----------------------------------------------------------------------------------

    def _partition(self) -> bool:
        dice, numbers = self._world.dice, range(len(self._cluster.nodes))
        alone = {self._victim().number}
        alone |= set(dice.sample(numbers, dice.randrange(len(numbers) // 2 + 1)))
        pairs = [(a, b) for a in sorted(alone) for b in numbers if b not in alone]
        back = [(b, a) for a, b in pairs]
        if self._world.chance(0.75):
            pairs = pairs + back
        elif self._world.chance(0.5):
            pairs = back
        self._block(pairs, 80)
        return True

    def _clog(self) -> bool:
        victim, other = self._victim().number, self._some_node().number
        if victim == other:
            return False
        self._block([(victim, other) if self._world.chance(0.5) else (other, victim)], 120)
        return True

    def _block(self, pairs: list[tuple[int, int]], ticks_max: int) -> None:
        network = self._cluster.network
        network.block(pairs)
        self._later(ticks_max, lambda: network.unblock(pairs))

    def _bad_network(self) -> bool:
        network, dice = self._cluster.network, self._world.dice
        network.loss = dice.choice((0.0, 0.05, 0.3))
        network.duplication = dice.choice((0.0, 0.1, 0.5))
        network.delay_ms = dice.choice((2.0, 20.0, 150.0))

        def calm() -> None:
            network.loss = network.duplication = 0.0
            network.delay_ms = 2.0

        self._later(80, calm)
        return True

    # --- processes and clocks ---------------------------------------------------------------------------

    def _crash(self) -> bool:
        victim = self._victim()
        if not victim.is_up:
            return False
        victim.crash()
        self._later(self._world.dice.choice((3, 60)), victim.start)
        return True

    def _crash_all(self) -> bool:
        for node in self._cluster.nodes:
            node.crash()
            self._later(30, node.start)
        return True

    def _freeze(self) -> bool:
        victim = self._victim()
        if not victim.is_up:
            return False
        victim.frozen_until_ms = self._world.now_ms + self._world.dice.random() * 60 * TICK_MS
        return True

    def _clock_jump(self) -> bool:
        victim = self._victim()
        if not victim.is_up or victim.frozen_until_ms > self._world.now_ms:
            return False
        for _ in range(self._world.dice.randint(5, 30)):
            victim.tick()
        return True

    def _clock_drift(self) -> bool:
        self._victim().tick_ms = TICK_MS * self._world.dice.choice((0.4, 0.7, 1.0, 1.5, 3.0))
        return True

    # --- disks --------------------------------------------------------------------------------------------

    def _slow_disk(self) -> bool:
        victim = self._victim()
        victim.sync_ms_max = self._world.dice.choice((20.0, 200.0))

        def recover() -> None:
            victim.sync_ms_max = 1.5

        self._later(60, recover)
        return True

    def _failing_sync(self) -> bool:
        victim = self._victim()
        if not victim.is_up:
            return False
        victim.is_sync_failing = True
        self._later(80, victim.start)
        return True

    def _lost_disk(self) -> bool:
        return self._lose(self._victim(), list(self._cluster.groups))

    def _bit_flip(self) -> bool:
        victim = self._victim()
        groups = sorted(victim.stores)
        return bool(groups) and self._lose(victim, [self._world.dice.choice(groups)])

    def _lose(self, victim: Node, groups: list[int]) -> bool:
        if not all(self._can_spare(victim, group) for group in groups):
            return False
        victim.crash()
        victim.lose(groups)
        self._later(40, victim.start)
        return True

    def _can_spare(self, victim: Node, group: int) -> bool:
        """Whether every configuration that any disk knows keeps a majority of replicas that were never lost."""
        intact = {node.name_in(group) for node in self._cluster.nodes if node is not victim}
        for node in self._cluster.nodes:
            store = node.stores.get(group)
            if store is None:
                continue
            replica = node.replicas.get(group)
            known = store.hard_state.members + (replica.raft.members_history if replica else ())
            in_force = [at.members.voters for at in known]
            if isinstance(self._cluster.operator, Housekeeping):
                # Who has just answered that it is there is counted on, though it may lose its disk before its leader
                # has written that down. No leader can know of that moment, which is shorter than a look.
                in_force += self._cluster.operator.counted_on(node, group)
            for voters in in_force:
                if len(voters & intact) < len(voters) // 2 + 1 and voters & {victim.name_in(group)}:
                    return False
        return True

    # --- the operator's doing -------------------------------------------------------------------------------

    @property
    def _housekeeping(self) -> Housekeeping:
        assert isinstance(self._cluster.operator, Housekeeping)
        return self._cluster.operator

    @property
    def _operator(self) -> Operator:
        assert isinstance(self._cluster.operator, Operator)
        return self._cluster.operator

    def _change_place(self) -> bool:
        dice, cluster = self._world.dice, self._cluster
        wanted = self._operator.wanted[dice.choice(cluster.groups)]
        elsewhere = sorted(set(range(len(cluster.nodes))) - wanted)
        if elsewhere and (len(wanted) == 1 or self._world.chance(0.6)):
            wanted.add(dice.choice(elsewhere))
        elif len(wanted) > 1:
            wanted.remove(dice.choice(sorted(wanted)))
        return True

    def _leader_leaves(self) -> bool:
        """The one that writes the change is the one it removes, and may not live to see it committed."""
        group = self._world.dice.choice(self._cluster.groups)
        leader, wanted = self._cluster.leader(group), self._cluster.operator.wanted[group]
        if leader is None or len(wanted) == 1 or leader.node.number not in wanted:
            return False
        if leader.node.frozen_until_ms > self._world.now_ms:
            return False
        wanted.remove(leader.node.number)
        if self._world.chance(0.7):
            self._operator.improve(leader)
            self._world.after(self._world.dice.random() * 3.0, self._crash_for_a_while, leader.node)
        return True

    def _crash_for_a_while(self, node: Node) -> None:
        if node.is_up and not self._is_over:
            node.crash()
            self._later(60, node.start)

    def _transfer(self) -> bool:
        leader = self._cluster.leader(self._world.dice.choice(self._cluster.groups))
        others = sorted(leader.raft.members.voters - {leader.name}) if leader is not None else []
        if leader is None or not others or leader.node.frozen_until_ms > self._world.now_ms:
            return False
        self._operator.transfer(leader, self._world.dice.choice(others))
        return True

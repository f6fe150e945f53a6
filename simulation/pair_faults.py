"""What goes wrong with a pair, and when. Two disks are never lost at once: nobody promised to survive that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.pair_node import PairNode
from simulation.pair_replica import PairReplica

if TYPE_CHECKING:
    from simulation.pair_cluster import PairCluster

CRASHES = ("kill", "kill", "power loss", "power loss of both", "quick restart", "kill of both")
PAUSES = ("freeze", "freeze", "short freeze", "freeze of both")
MOMENTS = ("alone", "replaced", "giving", "let in")
TRAPS = (
    "meeting too late",
    "meeting too late",
    "crash at a moment",
    "crash at a moment",
    "split at a moment",
    "split",
    "split and crash",
    "kill",
)
NETWORK = ("split", "split", "one-way split", "short split", "broken links", "slow network", "dropped messages")
DISKS = ("lost disk", "slow disk", "kill", "quick new disk")
PROFILES: dict[str, tuple[str, ...]] = {
    "none": (),
    "crashes": CRASHES,
    "pauses": PAUSES,
    "network": NETWORK,
    "disks": DISKS,
    "moments": TRAPS,
    "meetings": ("meeting too late",),
    "everything": (*CRASHES, *PAUSES, *NETWORK, *DISKS, *TRAPS, "new topic"),
}


class PairFaults:
    """Injects one fault after the other until `stop`."""

    def __init__(self, cluster: PairCluster, profile: str, pause_ms: float) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._wire = cluster.wire
        self._kinds = PROFILES[profile]
        self._pause_ms = pause_ms
        self._is_over = False
        self._injectors: dict[str, Callable[[], bool]] = {
            "kill": lambda: self._crash(self._victim(), self._moment(1500.0)),
            "quick restart": lambda: self._crash(self._victim(), self._moment(12.0)),
            "power loss": lambda: self._crash(self._victim(), self._moment(1500.0), is_off=True),
            "kill of both": lambda: self._crash_both(is_off=False),
            "power loss of both": lambda: self._crash_both(is_off=True),
            "freeze": lambda: self._freeze(self._victim(), self._moment(1500.0)),
            "short freeze": lambda: self._freeze(self._victim(), self._moment(250.0)),
            "freeze of both": self._freeze_both,
            "split": lambda: self._block([(0, 1), (1, 0)], 1500.0),
            "short split": lambda: self._block([(0, 1), (1, 0)], 400.0),
            "one-way split": lambda: self._block([self._world.dice.choice(((0, 1), (1, 0)))], 1500.0),
            "broken links": self._break_links,
            "slow network": self._slow_network,
            "dropped messages": self._drop_messages,
            "slow disk": self._slow_disk,
            "lost disk": lambda: self._lose_disk(self._moment(1200.0), is_off=False),
            "quick new disk": lambda: self._lose_disk(self._moment(30.0), is_off=True),
            "crash at a moment": lambda: self._trap(self._crash_there),
            "split at a moment": lambda: self._trap(lambda _: self._block([(0, 1), (1, 0)], 800.0)),
            "split and crash": self._split_and_crash,
            "meeting too late": self._meet_too_late,
            "new topic": self._new_topic,
        }
        if self._kinds:
            self._world.after(self._pause(), self._inject)

    def stop(self) -> None:
        self._is_over = True

    def _pause(self) -> float:
        return self._pause_ms * (0.1 + self._world.dice.random())

    def _moment(self, max_ms: float) -> float:
        return self._world.dice.random() * max_ms

    def _inject(self) -> None:
        if self._is_over:
            return
        kind = self._world.dice.choice(self._kinds)
        if self._world.is_traced:
            self._world.note(f"FAULT {kind}")
        if self._injectors[kind]():
            self._world.counts[f"fault: {kind}"] += 1
        self._world.after(self._pause(), self._inject)

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Undo it after a while, unless all faults are undone by then."""

        def undo() -> None:
            if not self._is_over:
                action()

        self._world.after(delay_ms, undo)

    def _victim(self) -> PairNode:
        return self._world.dice.choice(self._cluster.nodes)

    # --- processes ------------------------------------------------------------------------------------

    def _crash(self, node: PairNode, delay_ms: float, *, is_off: bool = False) -> bool:
        if not node.is_running:
            return False
        node.crash(is_off=is_off)
        self._later(delay_ms, node.start)
        return True

    def _crash_both(self, *, is_off: bool) -> bool:
        first = self._world.dice.randrange(2)
        crashed = [self._crash(self._cluster.nodes[first], self._moment(600.0), is_off=is_off)]
        # Sometimes one of them is back long before the other.
        delay_ms = self._moment(self._world.dice.choice((600.0, 3000.0)))
        crashed.append(self._crash(self._cluster.nodes[1 - first], delay_ms, is_off=is_off))
        return any(crashed)

    def _freeze(self, node: PairNode, duration_ms: float) -> bool:
        if not node.is_running:
            return False
        node.freeze(duration_ms)
        return True

    def _freeze_both(self) -> bool:
        duration_ms = self._moment(1000.0)
        frozen = [self._freeze(node, duration_ms + self._moment(5.0)) for node in self._cluster.nodes]
        return any(frozen)

    # --- just when it hurts -----------------------------------------------------------------------------

    def _trap(self, action: Callable[[PairNode], bool], *moments: str) -> bool:
        node = self._victim()

        def spring() -> None:
            if not self._is_over:
                self._world.counts["traps sprung"] += 1
                action(node)

        def soon() -> None:
            self._world.after(self._moment(1.0) ** 2 * 8.0, spring)

        node.traps[self._world.dice.choice(moments or MOMENTS)] = soon
        return True

    def _crash_there(self, node: PairNode) -> bool:
        return self._crash(node, self._moment(1500.0), is_off=self._world.chance(0.7))

    def _split_and_crash(self) -> bool:
        """Both go on alone, and one of them does not live to see it written down."""
        self._block([(0, 1), (1, 0)], 2500.0)
        return self._trap(self._crash_there, "alone")

    def _meet_too_late(self) -> bool:
        """One is cut off until the other took over, hears nothing of it when they meet, goes alone, and hears it.

        Each goes by the other's old standing, and what was said since is still under way.
        """
        # Who follows would take over in a term that is later still.
        leaders = [node for node in self._cluster.nodes if any(each.takes for each in node.replicas.values())]
        behind = self._world.dice.choice(leaders or self._cluster.nodes)
        ahead, wire = behind.other, self._wire
        deaf, mute = [(behind.number, ahead.number)], [(ahead.number, behind.number)]
        wire.block(deaf)

        def meet() -> None:
            self._world.after(0.0, wire.unblock, deaf)
            ahead.traps["linked"] = fall_silent

        def fall_silent() -> None:
            wire.block(mute)
            behind.traps["alone"] = lambda: self._world.after(self._moment(30.0), mend)
            self._later(1500.0, mend)

        def mend() -> None:
            if not self._is_over and wire.blocked[mute[0]] > 0:
                wire.unblock(mute)

        ahead.traps["alone"] = meet
        return True

    # --- the cable --------------------------------------------------------------------------------------

    def _block(self, pairs: list[tuple[int, int]], max_ms: float) -> bool:
        self._wire.block(pairs)
        self._later(self._moment(max_ms), lambda: self._wire.unblock(pairs))
        return True

    def _break_links(self) -> bool:
        self._wire.break_all()
        return True

    def _slow_network(self) -> bool:
        self._wire.delay_ms = self._world.dice.choice((10.0, 80.0))

        def recover() -> None:
            self._wire.delay_ms = 1.0

        self._later(self._moment(1500.0), recover)
        return True

    def _drop_messages(self) -> bool:
        links = self._victim().links
        if links is None or not links.is_up:
            return False
        links.is_choked = True
        self._later(self._moment(200.0), links.unchoke)
        return True

    # --- disks --------------------------------------------------------------------------------------------

    def _slow_disk(self) -> bool:
        node = self._victim()
        node.sync_ms_max = self._world.dice.choice((20.0, 120.0))

        def recover() -> None:
            node.sync_ms_max = 2.0

        self._later(self._moment(1500.0), recover)
        return True

    def _lose_disk(self, delay_ms: float, *, is_off: bool) -> bool:
        node = self._victim()
        if not node.is_running or not self._can_spare(node):
            return False
        node.crash(is_off=is_off)
        node.lose_disk()
        self._later(delay_ms, node.start)
        return True

    def _can_spare(self, node: PairNode) -> bool:
        """Whether the pair has promised that the other's disk is enough: it leads alone, or both vote everywhere."""
        other = node.other
        if not other.is_serving or other.is_replaced or node.is_replaced or not set(other.replicas) >= set(node.stores):
            return False
        if any(replica.is_alone for replica in node.replicas.values()):
            return False
        return all(self._is_enough(replica, node) for replica in other.replicas.values())

    def _is_enough(self, replica: PairReplica, victim: PairNode) -> bool:
        """It is the only voter and leads, or whoever leads has written that both vote, and both have that."""
        if replica.is_alone:
            return replica.raft.leading is not None
        mine = victim.replicas.get(replica.group)
        leaders = [each.raft for each in (replica, mine) if each is not None and each.raft.leading is not None]
        return len(leaders) == 1 and all(
            raft.members.voters == {replica.name, victim.name} and raft.members_index <= raft.commit for raft in leaders
        )

    def _new_topic(self) -> bool:
        self._cluster.add_topic()
        return True

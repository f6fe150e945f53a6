"""All parts of one run of a pair put together."""

from __future__ import annotations

from holdfast.consensus.partner import PairSettings
from simulation.pair_clients import PlainPublisher, Publisher
from simulation.pair_invariants import PairChecker
from simulation.pair_node import PairNode
from simulation.pair_replica import GIVER
from simulation.pair_wire import Wire
from simulation.requests import Answer
from simulation.world import Violation, World

_LOOK_MS = 100.0
# Beyond the patience: elections, syncs, and whoever was just busy.
_SERVES_AFTER_MS = 1500.0


class PairCluster:
    """Two nodes, of which the first founds the pair, and their publishers."""

    def __init__(self, world: World) -> None:
        self.world = world
        dice = world.dice
        self.wire = Wire(world)
        self.checker = PairChecker(world)
        self.settings = PairSettings(heartbeat_s=dice.choice((0.2, 0.25)), misses=dice.choice((2, 3)), founds=True)
        self.nodes = [PairNode(number, world, self.wire, self.checker, self.settings, self._reply) for number in (0, 1)]
        self.nodes[0].other, self.nodes[1].other = self.nodes[1], self.nodes[0]
        self.checker.pair = self.nodes
        self.topics = 1
        pause_ms = dice.choice((10.0, 25.0, 60.0))
        self.publishers: list[Publisher | PlainPublisher] = [Publisher(number, self, pause_ms) for number in range(2)]
        self.publishers.append(PlainPublisher(2, self, pause_ms * 3))
        self._alone_since_ms: float | None = None
        for node in self.nodes:
            node.start()
        for publisher in self.publishers:
            publisher.begin()
        world.after(_LOOK_MS, self._look)

    def add_topic(self) -> None:
        self.topics = min(self.topics + 1, 2)
        for node in self.nodes:
            node.upkeep.topics_wanted = self.topics

    def _reply(self, answer: Answer) -> None:
        if answer.client >= GIVER:
            self.world.after(self.wire.delay(), self.nodes[answer.client - GIVER].giver.answered, answer)
        else:
            self.world.after(0.2, self.publishers[answer.client].answered, answer)

    def run_ms(self, duration_ms: float) -> None:
        self.world.run_until(self.world.now_ms + duration_ms)

    def heal(self) -> None:
        """Faults end here: the cable carries, disks work, both run, or will when their pause is over."""
        self.wire.calm()
        for node in self.nodes:
            node.sync_ms_max = 2.0
            node.traps.clear()
            if node.links is not None:
                node.links.unchoke()
            node.start()

    # --- while exactly one lives, and votes, it serves -----------------------------------------------------

    def _look(self) -> None:
        self.world.after(_LOOK_MS, self._look)
        left = self._only_one()
        if left is None or left.world.now_ms - left.thawed_ms < 0:
            self._alone_since_ms = None
            return
        if self._alone_since_ms is None:
            self._alone_since_ms = self.world.now_ms
        patience_ms = self.settings.patience_s * 1000 + _SERVES_AFTER_MS
        if self.world.now_ms - max(self._alone_since_ms, left.thawed_ms) < patience_ms:
            return
        if not all(replica.raft.is_voter for replica in left.replicas.values()):
            return  # it has not got everything yet
        for replica in left.replicas.values():
            if not replica.takes:
                raise Violation("the one that is left serves", f"{replica.label} in term {replica.raft.term}")

    def _only_one(self) -> PairNode | None:
        running = [node for node in self.nodes if node.is_running]
        if len(running) != 1 or not running[0].is_serving or running[0].is_replaced or not running[0].is_up:
            return None
        return running[0]

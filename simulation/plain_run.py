"""One seed of a plain pair: faults while publishers are at work, peace, and an exam: the primary is gone for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.consensus.plain_sending import Mode
from simulation.outcome import Outcome, outcome_of
from simulation.plain_checks import Checks
from simulation.plain_disk import TOPICS
from simulation.plain_network import Network
from simulation.plain_node import PATIENCE_MS, PlainNode
from simulation.world import Violation, World

_STEP_MS: Final = 20.0
_SETTLE_MS_MAX: Final = 20_000.0
_ANSWER_MS_MAX: Final = 150.0
# What may go wrong at each turn, and how often.
PROFILES: Final[dict[str, dict[str, float]]] = {
    "none": {},
    "crashes": {"crash": 0.03, "restart": 0.2},
    "connections": {"drop": 0.08, "refuse": 0.02},
    "splits": {"cut": 0.03, "heal": 0.1, "crash": 0.005, "restart": 0.2},
    "everything": {
        "crash": 0.015,
        "restart": 0.15,
        "drop": 0.03,
        "cut": 0.015,
        "heal": 0.1,
        "stall": 0.02,
        "refuse": 0.01,
    },
}


class Publisher:
    """Sends one message after the other with an id, and again, and elsewhere, until it is acknowledged."""

    def __init__(self, world: World, nodes: list[PlainNode], network: Network, name: str) -> None:
        self._world = world
        self._nodes = nodes
        self._network = network
        self._name = name
        self._target = 0
        self._number = 0
        self.is_stopped = False

    def next(self) -> None:
        if not self.is_stopped:
            self._number += 1
            topic = self._world.dice.choice(TOPICS)
            self._send(f"{self._name}{self._number}", topic)

    def _send(self, message_id: str, topic: str) -> None:
        if self.is_stopped:
            return
        answered: list[bool] = []

        def answer(is_stored: bool) -> None:
            self._world.after(self._world.dice.uniform(0.2, 2.0), hear, is_stored)

        def hear(is_stored: bool) -> None:
            if not answered:
                answered.append(is_stored)
                if is_stored:
                    # Some publishers send the last ones again, as seed 000 does.
                    if self._world.chance(0.1):
                        self._target = 1 - self._target
                    self._world.after(self._world.dice.uniform(0.0, 20.0), self.next)
                else:
                    self._world.after(self._world.dice.uniform(5.0, 30.0), self._elsewhere, message_id, topic)

        def give_up() -> None:
            if not answered:
                answered.append(False)
                self._elsewhere(message_id, topic)

        node = self._nodes[self._target]
        if node.is_up:
            self._world.after(self._world.dice.uniform(0.2, 2.0), self._reach, node, topic, message_id, answer)
        self._world.after(_ANSWER_MS_MAX, give_up)

    def _reach(self, node: PlainNode, topic: str, message_id: str, answer: Callable[[bool], None]) -> None:
        if node.is_up:
            node.publish(topic, message_id, answer)

    def _elsewhere(self, message_id: str, topic: str) -> None:
        self._target = 1 - self._target
        self._send(message_id, topic)


class Run:
    def __init__(self, world: World, profile: str) -> None:
        self.world = world
        self.checks = Checks(world)
        self.network = Network(world)
        self.nodes = [
            PlainNode(world, self.network, self.checks, "a", "primary"),
            PlainNode(world, self.network, self.checks, "b", "backup"),
        ]
        self.nodes[0].other, self.nodes[1].other = self.nodes[1], self.nodes[0]
        self._faults = PROFILES[profile]

    def live(self) -> None:
        for node in self.nodes:
            node.start()
        publishers = [Publisher(self.world, self.nodes, self.network, name) for name in "xy"]
        for publisher in publishers:
            publisher.next()
        for _ in range(self.world.dice.choice((50, 150, 150, 400))):
            self._go_on()
            self._break_something()
        self._make_peace()
        for publisher in publishers:
            publisher.is_stopped = True
        primary = self._wait_for_order()
        self.checks.at_the_end(primary)
        self.checks.of_backup(primary.other, primary)
        # The exam: whoever is left has everything.
        primary.crash()
        heir = primary.other
        self._wait(lambda: heir.phase == "serving" and not heir.is_unsettled, "the backup takes over")
        self._wait(lambda: self._has_delivered(heir), "it delivers")
        self.checks.at_the_end(heir)

    def _go_on(self) -> None:
        self.world.run_until(self.world.now_ms + _STEP_MS)

    def _break_something(self) -> None:
        world = self.world
        for fault, probability in self._faults.items():
            if world.chance(probability):
                world.counts[fault] += 1
                if world.is_traced:
                    world.note(fault)
                self._bring_about(fault)

    def _bring_about(self, fault: str) -> None:
        up = [node for node in self.nodes if node.is_up]
        if fault == "crash" and up:
            self.world.dice.choice(up).crash()
        elif fault == "restart":
            for node in self.nodes:
                if not node.is_up:
                    node.start()
        elif fault == "drop":
            self.network.drop()
        elif fault == "cut":
            self.network.cut()
        elif fault == "heal":
            self.network.heal()
        elif fault == "stall":
            self.checks.stalled ^= {self.world.dice.choice(TOPICS)}
        elif fault == "refuse":
            under_way = {entry.message_id for node in self.nodes for entry in node.disk.entries[-3:]}
            self.checks.refused = set() if self.checks.refused else under_way

    def _make_peace(self) -> None:
        self.network.heal()
        self.checks.stalled = set()
        self.checks.refused = set()
        for node in self.nodes:
            if not node.is_up:
                node.start()

    def _wait_for_order(self) -> PlainNode:
        def in_order() -> bool:
            serving = [node for node in self.nodes if node.phase == "serving"]
            if len(serving) != 1 or serving[0].sending is None:
                return False
            node = serving[0]
            is_together = node.sending is not None and node.sending.mode is Mode.TOGETHER
            return is_together and self._has_delivered(node) and node.other.marks.mark >= node.disk.end

        self._wait(in_order, "one serves, together with the other, and has delivered everything")
        return next(node for node in self.nodes if node.phase == "serving")

    def _has_delivered(self, node: PlainNode) -> bool:
        is_drained = node.drained >= node.disk.end and not node.waiting
        return is_drained and all(node.disk.cursors[topic] >= len(node.disk.topics[topic]) for topic in TOPICS)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        until_ms = self.world.now_ms + _SETTLE_MS_MAX
        calm = 0
        while calm < PATIENCE_MS / _STEP_MS / 3:
            if self.world.now_ms > until_ms:
                raise Violation("order comes by itself", f"not within {_SETTLE_MS_MAX} ms: {what}; {self._described()}")
            self._go_on()
            calm = calm + 1 if condition() else 0

    def _described(self) -> str:
        return "; ".join(
            f"{node.name} {node.phase} {node.disk.reign} {node.disk.start}..{node.disk.end} drained {node.drained}"
            f" mark {node.marks.mark} {node.sending.mode if node.sending else ''} {dict(node.disk.cursors)}"
            f" { ({topic: len(stored) for topic, stored in node.disk.topics.items()}) }"
            for node in self.nodes
        )


def run_seed(seed: int, *, profile: str | None = None, is_traced: bool = False) -> Outcome:
    """Run the whole of it; without a profile the seed chooses one."""
    world = World(seed, is_traced=is_traced)
    # The dice are thrown also where a profile is given, so that the rest of the seed falls the same.
    chosen = world.dice.choice(list(PROFILES))
    return outcome_of(world, seed, profile or chosen, _live_through)


def _live_through(world: World, profile: str) -> None:
    Run(world, profile).live()

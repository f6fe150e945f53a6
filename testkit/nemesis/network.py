"""What goes wrong between nodes: partitions of every shape, and links that are slow and lossy."""

from __future__ import annotations

import random
from typing import Final

from testkit.nemesis.fault import ALL, Fault
from testkit.nemesis.stage import Stage
from testkit.network.slow_links import Way, why_not_slow

_STORM_STEPS: Final = 12


class _Partition(Fault):
    layer = "network"
    has_network = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        detail = self._cut(stage, dice)
        with stage.bar(self.name, detail):
            stage.last(lasts_s)
            self._check(stage, dice, detail)
            stage.cluster.links.heal()

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        """Cut; and say what."""
        raise NotImplementedError

    def _check(self, stage: Stage, dice: random.Random, detail: str) -> None:
        """Look at what must be so before it is healed."""


class Halves(_Partition):
    """The larger half goes on, the smaller one refuses."""

    name = "split in halves"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        order = _shuffled(stage, dice)
        half = len(order) // 2
        stage.cluster.links.keep_only(_all_within(order[:half]) + _all_within(order[half:]))
        return f"{_names(stage, order[:half])} | {_names(stage, order[half:])}"


class Ring(_Partition):
    """Each hears two neighbours only: nobody hears all, and everybody is one of some majority."""

    name = "ring"
    nodes_min = 4

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        order = _shuffled(stage, dice)
        stage.cluster.links.keep_only(zip(order, [*order[1:], order[0]], strict=True))
        return "-".join(stage.nodes[index] for index in order)


class Bridge(_Partition):
    """Two halves that are joined by one node, which hears everybody."""

    name = "bridge"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        middle, *rest = _shuffled(stage, dice)
        half = len(rest) // 2
        left, right = [middle, *rest[:half]], [middle, *rest[half:]]
        stage.cluster.links.keep_only(_all_within(left) + _all_within(right))
        return f"{_names(stage, rest[:half])} - {stage.nodes[middle]} - {_names(stage, rest[half:])}"


class MuteOrDeaf(_Partition):
    """Nobody hears one node, which hears everybody; or it hears nobody, and everybody hears it."""

    name = "mute or deaf node"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        node = dice.choice([stage.leader(dice), dice.choice(stage.nodes)])
        is_mute = dice.random() < 0.5
        for other in stage.others(node):
            sender, receiver = (node, other) if is_mute else (other, node)
            stage.cluster.links.cut(stage.cluster.index(sender), stage.cluster.index(receiver))
        return f"{node} is {'mute' if is_mute else 'deaf'}"


class OneWay(_Partition):
    """Several nodes cannot reach another one, which still reaches them."""

    name = "one-way split"
    leaves_majority = False
    nodes_min = 4

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        order = _shuffled(stage, dice)
        pairs = [(order[index], order[index + 1]) for index in range(0, len(order) - 1, 2)]
        for pair in pairs:
            stage.cluster.links.cut(*pair)
        return ", ".join(f"{stage.nodes[one]} to {stage.nodes[other]}" for one, other in pairs)


class LeaderCutOff(_Partition):
    """It does not know yet that somebody else leads."""

    name = "leader cut off"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        leader = stage.leader(dice)
        stage.cluster.links.cut_off(stage.cluster.index(leader))
        return leader

    def _check(self, stage: Stage, dice: random.Random, detail: str) -> None:
        """The others went on; the one that is alone refuses."""
        if stage.is_alone:
            stage.refuses_without_quorum(detail, dice)


class OneLink(_Partition):
    """One node cannot reach another, which still reaches it; one of them leads."""

    name = "one link, one way"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        leader = stage.leader(dice)
        sender, receiver = dice.sample([leader, dice.choice(stage.others(leader))], 2)
        stage.cluster.links.cut(stage.cluster.index(sender), stage.cluster.index(receiver))
        return f"{sender} to {receiver}"


class NetworkStorm(Fault):
    """Any way between two nodes is cut and healed at any time, and now and then a node is killed."""

    name = "network storm"
    layer = "network"
    has_network = True
    hurts = ALL
    leaves_majority = False
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.bar(self.name):
            for _ in range(_STORM_STEPS):
                node = dice.choice(stage.nodes)
                if not stage.cluster.node(node).is_running:
                    stage.must_have_reason(node, self.name)
                    stage.spawn(node)
                elif dice.random() < 0.2:
                    stage.cluster.kill(node)
                elif dice.random() < 0.3:
                    stage.cluster.links.heal()
                else:
                    stage.cluster.links.cut(*dice.sample(range(len(stage.nodes)), 2))
                stage.hold(dice.uniform(0.0, 1.2))
            stage.cluster.links.heal()


class _Slow(Fault):
    """100 ms each way, give or take 50, and every twentieth packet is lost."""

    layer = "weather"
    has_network = True
    leaves_majority = False

    @classmethod
    def why_not(cls, nodes: int = 5) -> str | None:
        return super().why_not(nodes) or why_not_slow()

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        ways = self._ways(stage, dice)
        stage.cluster.links.slow_down(ways, delay_ms=100, jitter_ms=50, loss=0.05, seed=dice.randrange(1 << 32))
        count = len(stage.nodes)
        with stage.bar(self.name, f"{len(ways)} of {count * (count - 1)} ways, 100 ± 50 ms, 5 % lost"):
            stage.last(lasts_s)
            stage.cluster.links.speed_up()

    def _ways(self, stage: Stage, dice: random.Random) -> list[Way]:
        raise NotImplementedError


class SlowWays(_Slow):
    name = "some slow links"

    def _ways(self, stage: Stage, dice: random.Random) -> list[Way]:
        order = _shuffled(stage, dice)
        return [
            way
            for one in order[: dice.randint(1, 2)]
            for other in order
            for way in ((one, other), (other, one))
            if one != other
        ]


class SlowNetwork(_Slow):
    name = "slow network"

    def _ways(self, stage: Stage, dice: random.Random) -> list[Way]:
        order = _shuffled(stage, dice)
        return [(one, other) for one in order for other in order if one != other]


def _shuffled(stage: Stage, dice: random.Random) -> list[int]:
    order = list(range(len(stage.nodes)))
    dice.shuffle(order)
    return order


def _all_within(group: list[int]) -> list[Way]:
    return [(one, other) for one in group for other in group if one != other]


def _names(stage: Stage, group: list[int]) -> str:
    return " ".join(sorted(stage.nodes[index] for index in group))

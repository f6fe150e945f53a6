"""What goes wrong between nodes during a long run: partitions of every shape, and ways that are slow and lossy."""

from __future__ import annotations

import random

from testkit.network.slow_links import Way, why_not_slow

from chaos.mixed.stage import Stage
from chaos.mixed.troubles import Trouble


class _Partition(Trouble):
    layer = "network"

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        detail = self._cut(stage, dice)
        with stage.bar(self.name, detail):
            stage.last(lasts_s)
            stage.cluster.wires.heal()

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        """Cut; and say what."""
        raise NotImplementedError


class Halves(_Partition):
    """The larger half goes on, the smaller one refuses."""

    name = "split in halves"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        order = _shuffled(stage, dice)
        half = len(order) // 2
        stage.cluster.wires.keep_only(_all_within(order[:half]) + _all_within(order[half:]))
        return f"{_names(stage, order[:half])} | {_names(stage, order[half:])}"


class Ring(_Partition):
    """Each hears two neighbours only: nobody hears all, and everybody is one of some majority."""

    name = "ring"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        order = _shuffled(stage, dice)
        stage.cluster.wires.keep_only(zip(order, [*order[1:], order[0]], strict=True))
        return "-".join(stage.nodes[index] for index in order)


class Bridge(_Partition):
    """Two halves that are joined by one node, which hears everybody."""

    name = "bridge"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        middle, *rest = _shuffled(stage, dice)
        half = len(rest) // 2
        left, right = [middle, *rest[:half]], [middle, *rest[half:]]
        stage.cluster.wires.keep_only(_all_within(left) + _all_within(right))
        return f"{_names(stage, rest[:half])} - {stage.nodes[middle]} - {_names(stage, rest[half:])}"


class OneWay(_Partition):
    """One node hears nobody and is heard, or is not heard and hears; or some ways are cut in one direction."""

    name = "one-way split"
    leaves_majority = False

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        order = _shuffled(stage, dice)
        if dice.random() < 0.5:
            one, others = order[0], order[1:]
            is_mute = dice.random() < 0.5
            for other in others:
                stage.cluster.wires.cut(*((one, other) if is_mute else (other, one)))
            return f"{stage.nodes[one]} is {'mute' if is_mute else 'deaf'}"
        pairs = [(order[index], order[index + 1]) for index in range(0, len(order) - 1, 2)]
        for pair in pairs:
            stage.cluster.wires.cut(*pair)
        return ", ".join(f"{stage.nodes[one]} to {stage.nodes[other]}" for one, other in pairs)


class LeaderCutOff(_Partition):
    """It does not know yet that somebody else leads."""

    name = "leader cut off"

    def _cut(self, stage: Stage, dice: random.Random) -> str:
        leader = stage.leader(dice)
        stage.cluster.wires.cut_off(stage.cluster.index(leader))
        return leader


class _Slow(Trouble):
    """100 ms each way, give or take 50, and every twentieth packet is lost."""

    layer = "weather"
    leaves_majority = False

    @classmethod
    def why_not(cls) -> str | None:
        return why_not_slow()

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        ways = self._ways(stage, dice)
        stage.cluster.wires.slow_down(ways, delay_ms=100, jitter_ms=50, loss=0.05, seed=dice.randrange(1 << 32))
        count = len(stage.nodes)
        with stage.bar(self.name, f"{len(ways)} of {count * (count - 1)} ways, 100 ± 50 ms, 5 % lost"):
            stage.last(lasts_s)
            stage.cluster.wires.speed_up()

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

"""What goes wrong with processes and clocks during a long run: killed, paused, restarted, told another time."""

from __future__ import annotations

import random
from typing import ClassVar, Final, Literal

from chaos.mixed import clocks
from chaos.mixed.stage import Stage
from holdfast.testing import ClusterFailed

# Troubles of one layer do not know of each other and would undo each other's work: an episode has one of each, but for
# `nodes`, whose troubles take different nodes.
Layer = Literal["nodes", "network", "weather", "clocks"]
ALL: Final = -1


class Trouble:
    """One kind of trouble: `run` brings it about, stays for a while, and takes it away again."""

    name: ClassVar[str]
    layer: ClassVar[Layer]
    # How many nodes it may hurt at a time; a trouble that takes all stands beside none of its layer.
    hurts: ClassVar[int] = 0
    # Whether a majority stays well and joined, so that publishing must go on.
    leaves_majority: ClassVar[bool] = True
    # Whether it is brought about alone: together with another it could break what nobody promised to survive.
    alone: ClassVar[bool] = False

    @classmethod
    def why_not(cls) -> str | None:
        """Why it cannot be brought about on this machine; `None` if it can."""
        return None

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        raise NotImplementedError


class KillLeader(Trouble):
    name = "kill the leader"
    layer = "nodes"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, _list(nodes)):
            stage.cluster.kill(*nodes)
            stage.last(lasts_s)
            stage.spawn(*nodes)


class KillMajority(Trouble):
    name = "kill a majority"
    layer = "nodes"
    hurts = 3
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        majority = len(stage.nodes) // 2 + 1
        with stage.hurting(dice, majority) as nodes, stage.bar(self.name, _list(nodes)):
            stage.cluster.kill(*nodes)
            stage.last(lasts_s)
            stage.spawn(*nodes)


class KillAll(Trouble):
    name = "kill all at once"
    layer = "nodes"
    hurts = ALL
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, len(stage.nodes)) as nodes, stage.bar(self.name, "all"):
            stage.cluster.kill(*nodes)
            stage.hold(min(lasts_s, 1.0))
            stage.spawn(*nodes)


class PauseLeader(Trouble):
    name = "pause the leader"
    layer = "nodes"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, _list(nodes)):
            _pause(stage, nodes, lasts_s)


class PauseSome(Trouble):
    name = "pause some"
    layer = "nodes"
    hurts = 3
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, dice.randint(1, 3)) as nodes, stage.bar(self.name, _list(nodes)):
            _pause(stage, nodes, lasts_s)


class RollingRestart(Trouble):
    name = "rolling restart"
    layer = "nodes"
    hurts = ALL

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, len(stage.nodes)) as nodes, stage.bar(self.name, "all, one by one"):
            for node in nodes:
                try:
                    stage.cluster.stop(node)
                    if stage.cluster.node(node).exit_code != 0:
                        stage.stall(f"{node} left with {stage.cluster.node(node).exit_code} when it was told to stop")
                except ClusterFailed as error:
                    stage.stall(f"{node} did not stop: {error}")
                stage.spawn(node)
                stage.wait(f"{node} serves after its restart", lambda node=node: stage.cluster.node(node).is_serving)  # type: ignore[misc]
                stage.hold(lasts_s / 10)


class ClockJump(Trouble):
    """Forwards or back, by seconds up to hours, on one node, some, or all; and later the same way home."""

    name = "clock jump"
    layer = "clocks"

    @classmethod
    def why_not(cls) -> str | None:
        return clocks.why_not()

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        nodes = sorted(dice.sample(stage.nodes, dice.randint(1, len(stage.nodes))))
        ahead_s = {node: dice.choice((-1, 1)) * dice.choice((2, 30, 600, 7200)) for node in nodes}
        said = ", ".join(f"{node} {seconds:+d} s" for node, seconds in ahead_s.items())
        with stage.bar(self.name, said):
            for node, seconds in ahead_s.items():
                stage.cluster.clock(node).set(seconds)
            stage.last(lasts_s)
            for node in nodes:
                stage.cluster.clock(node).set(0)


def _pause(stage: Stage, nodes: list[str], lasts_s: float) -> None:
    running = [node for node in nodes if stage.cluster.node(node).is_running]
    stage.cluster.pause(*running) if running else None
    stage.last(lasts_s)
    stage.cluster.resume(*running) if running else None


def _list(nodes: list[str]) -> str:
    return ", ".join(sorted(nodes))

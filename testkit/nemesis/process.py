"""What goes wrong with processes and clocks: nodes are killed, paused, restarted, and told another time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from holdfast.testing import ClusterFailed
from testkit import clocks
from testkit.asking import Refused, request
from testkit.nemesis.fault import ALL, Fault, listed
from testkit.nemesis.stage import Stage

_ABSENT_S_MAX: Final = 1.0
_TRANSFERS: Final = 10
_STORM_STEPS: Final = 15


class KillLeader(Fault):
    name = "kill the leader"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, listed(nodes)):
            stage.cluster.kill(*nodes)
            stage.last(lasts_s)
            stage.spawn(*nodes)


class KillAny(Fault):
    """Back at once, or after a moment."""

    name = "kill any node"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1) as nodes, stage.bar(self.name, listed(nodes)):
            stage.cluster.kill(*nodes)
            stage.last(dice.uniform(0.0, _ABSENT_S_MAX))
            stage.spawn(*nodes)


class KillMajority(Fault):
    name = "kill a majority"
    hurts = 3
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        majority = len(stage.nodes) // 2 + 1
        with stage.hurting(dice, majority) as nodes, stage.bar(self.name, listed(nodes)):
            stage.cluster.kill(*nodes)
            stage.last(lasts_s)
            stage.spawn(*nodes)


class KillAll(Fault):
    name = "kill all at once"
    hurts = ALL
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, len(stage.nodes)) as nodes, stage.bar(self.name, "all"):
            stage.cluster.kill(*nodes)
            stage.hold(min(lasts_s, 1.0))
            stage.spawn(*nodes)


class PauseLeader(Fault):
    name = "pause the leader"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, listed(nodes)):
            _pause(stage, nodes, lasts_s)


class PauseFollower(Fault):
    name = "pause a follower"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        follower = dice.choice(stage.others(stage.leader(dice)))
        with stage.hurting(dice, 1, follower) as nodes, stage.bar(self.name, listed(nodes)):
            _pause(stage, nodes, lasts_s)


class PauseSome(Fault):
    name = "pause some"
    hurts = 3
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, dice.randint(1, 3)) as nodes, stage.bar(self.name, listed(nodes)):
            _pause(stage, nodes, lasts_s)


class PauseOneKillAnother(Fault):
    """One node starts again while another stands still."""

    name = "pause one, kill another"
    hurts = 2
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 2, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            paused, killed = nodes[:1], nodes[1:]
            stage.cluster.kill(*killed)
            _pause(stage, paused, lasts_s / 2, then=lambda: stage.spawn(*killed))


class RollingRestart(Fault):
    name = "rolling restart"
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
                if stage.is_alone:
                    stage.progresses(f"the restart of {node}")
                stage.spawn(node)
                stage.wait(f"{node} serves after its restart", lambda node=node: stage.cluster.node(node).is_serving)  # type: ignore[misc]
                stage.hold(lasts_s / 10)


class Transfer(Fault):
    """Leaders are told to hand over, to any node, through any node."""

    name = "hand leadership over"
    layer = "leaders"

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        done = 0
        with stage.bar(self.name):
            for _ in range(_TRANSFERS):
                to, through, place = dice.choice(stage.nodes), dice.choice(stage.nodes), dice.choice(stage.places())
                wanted = {"to": to, "topic": place.topic, "partition": place.partition}
                if dice.random() < 0.2:
                    wanted = {"to": to}
                try:
                    address = stage.cluster.node(through).http
                    request(address, "POST", "/v1/cluster/transfer", wanted, timeout_s=15.0)
                    done += 1
                except Refused as error:
                    stage.note(f"transfer refused: {error}")
                stage.hold(lasts_s / _TRANSFERS / 5)
            stage.last(0.0)
        if stage.is_alone and not done:
            stage.stall(f"none of {_TRANSFERS} transfers was done")


class NoMajority(Fault):
    """What is left refuses, and says why."""

    name = "a minority refuses"
    hurts = ALL
    leaves_majority = False
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        left = dice.choice(stage.nodes)
        gone = stage.others(left)
        with stage.bar(self.name, left):
            stage.cluster.kill(*gone)
            stage.refuses_without_quorum(left, dice)
            stage.spawn(*gone)


class Storm(Fault):
    """Any node is killed, paused, woken or started at any time, and nobody waits for anybody."""

    name = "storm"
    hurts = ALL
    leaves_majority = False
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.bar(self.name):
            for _ in range(_STORM_STEPS):
                node = stage.cluster.node(dice.choice(stage.nodes))
                if not node.is_running:
                    stage.must_have_reason(node.id, self.name)
                    stage.spawn(node.id)
                elif node.is_paused:
                    node.resume()
                elif dice.random() < 0.5:
                    node.kill()
                else:
                    node.pause()
                stage.hold(dice.uniform(0.0, 0.8))


class ClockJump(Fault):
    """Forwards or back, by seconds up to hours, on one node, some, or all; and later the same way home."""

    name = "clock jump"
    layer = "clocks"
    has_clocks = True

    @classmethod
    def why_not(cls, nodes: int = 5) -> str | None:
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


def _pause(stage: Stage, nodes: list[str], lasts_s: float, then: Callable[[], None] = lambda: None) -> None:
    """Pause nodes, and wake them after so long; `then` is done right before that."""
    running = [node for node in nodes if stage.cluster.node(node).is_running]
    for node in running:
        stage.cluster.pause(node)
    stage.last(lasts_s)
    then()
    for node in running:
        stage.cluster.resume(node)

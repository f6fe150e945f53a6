"""What goes wrong with disks during a long run: no power, no room, no sync, no answer, and gone for good."""

from __future__ import annotations

import random
from functools import partial

from testkit.commands import missing

from chaos.faults_disk import wipe
from chaos.mixed.stage import Stage
from chaos.mixed.troubles import ALL, Trouble


class PowerLoss(Trouble):
    name = "power loss"
    layer = "nodes"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            _cut_power(stage, dice, nodes)
            stage.last(lasts_s)
            _power_on(stage, nodes)


class PowerLossOfAll(Trouble):
    name = "power loss of all"
    layer = "nodes"
    hurts = ALL
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, len(stage.nodes)) as nodes, stage.bar(self.name, "all"):
            _cut_power(stage, dice, nodes)
            stage.hold(min(lasts_s, 1.0))
            _power_on(stage, nodes)


class FullDisk(Trouble):
    name = "disk full"
    layer = "nodes"
    hurts = 2

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, dice.randint(1, 2), stage.leader(dice)) as nodes:
            stage.may_leave.update(nodes)
            with stage.bar(self.name, ", ".join(sorted(nodes))):
                for node in nodes:
                    stage.cluster.disk(node).fill()
                stage.last(lasts_s)
                for node in nodes:
                    stage.cluster.disk(node).make_room()
            stage.spawn(*nodes)


class FailingSync(Trouble):
    name = "EIO at sync"
    layer = "nodes"
    hurts = 1

    @classmethod
    def why_not(cls) -> str | None:
        return missing(["strace"], root=False)

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            stage.may_leave.update(nodes)
            for node in nodes:
                if stage.cluster.node(node).is_running:
                    stage.cluster.fail_syncs(node)
            stage.last(lasts_s)
            # A node that had nothing to sync meanwhile knows nothing of it; one that had must have left.
            stage.cluster.kill(*nodes)
            stage.cluster.stop_tracing()
            stage.spawn(*nodes)


class StalledDisk(Trouble):
    name = "stalled disk"
    layer = "nodes"
    hurts = 2

    @classmethod
    def why_not(cls) -> str | None:
        return missing(["fsfreeze"], root=True)

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        count = dice.randint(1, 2)
        with stage.hurting(dice, count, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(sorted(nodes))):
            for node in nodes:
                stage.cluster.disk(node).freeze()
            stage.last(lasts_s)
            for node in nodes:
                stage.cluster.disk(node).thaw()


class LostDisk(Trouble):
    """It comes back as somebody else, who gets everything from the others. One at a time: nobody promised more."""

    name = "disk lost"
    layer = "nodes"
    hurts = 1
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        if not everybody_votes(stage):
            stage.note("no disk is lost, since not everybody votes yet")
            return
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            stage.cluster.kill(*nodes)
            for node in nodes:
                wipe(stage.cluster.node(node).data)
            stage.last(min(lasts_s, 2.0))
            stage.spawn(*nodes)
            stage.wait(f"{nodes[0]}, whose disk was lost, votes again", partial(_is_back, stage, nodes[0]))


def _is_back(stage: Stage, node: str) -> bool:
    """It knows that it is a learner before any leader does, so it is asked only once it serves."""
    return stage.cluster.node(node).is_serving and everybody_votes(stage)


def everybody_votes(stage: Stage) -> bool:
    """Whether every group has a leader that knows all nodes as voters, and none of them thinks otherwise."""
    led: dict[str, bool] = {}
    for node in stage.nodes:
        if not (groups := stage.groups(node)):
            return False
        for group in groups:
            led.setdefault(group["name"], False)
            if group["role"] == "learner":
                return False
            if group["role"] == "leader":
                voters = {each["node"] for each in group["followers"] if each["is_voter"]} | {node}
                has_learners = any(not each["is_voter"] for each in group["followers"])
                led[group["name"]] = len(voters) == len(stage.nodes) and not has_learners
    return bool(led) and all(led.values())


def _cut_power(stage: Stage, dice: random.Random, nodes: list[str]) -> None:
    for node in nodes:
        stage.cluster.disk(node).cut_power()
    stage.hold(dice.uniform(0.0, 0.2))  # machines may go on for a moment: they may promise nothing now
    stage.cluster.kill(*nodes)


def _power_on(stage: Stage, nodes: list[str]) -> None:
    for node in nodes:
        stage.cluster.disk(node).power_on()
    stage.spawn(*nodes)

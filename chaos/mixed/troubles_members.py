"""Nodes that come and go during a long run: one is taken out and joins again, or leads nothing for a while."""

from __future__ import annotations

import json
import random
import time
from functools import partial
from typing import Any

from chaos.asking import Refused, request
from chaos.faults_disk import wipe
from chaos.mixed.stage import Stage
from chaos.mixed.troubles import Trouble
from holdfast.testing.asking import ask

# What passes: somebody is away, or another change is under way.
_PASSING = frozenset(
    {
        "unreachable",
        "no_quorum",
        "leader_changed",
        "would_lose_quorum",
        "membership_changing",
        "unavailable",
        "node_removed",
    }
)
_ASK_S = 10.0
# One is outside, one is lost, and the rest is still a majority.
_REPLACE_NODES_MIN = 4


class LeaveAndJoin(Trouble):
    """A member is taken out, and joins again later: with what it has, or with an empty disk."""

    name = "leave and join"
    layer = "nodes"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            for node in nodes:
                if not _change(stage, dice, node, "remove"):
                    return
                stage.wait(f"{node} has left", partial(_is_gone, stage, node))
                stage.cluster.kill(node)
                if dice.random() < 0.5:
                    wipe(stage.cluster.node(node).data)
                stage.last(lasts_s)
                _start_to_join(stage, dice, node, nodes)
                stage.wait(f"{node} has joined and votes everywhere", partial(_is_member, stage, node))


class Replace(Trouble):
    """A member is lost for good, and one from outside takes its place; then it joins again, with an empty disk."""

    name = "replace"
    layer = "nodes"
    hurts = 2
    alone = True

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        if len(stage.nodes) < _REPLACE_NODES_MIN:
            stage.note(f"nobody is replaced among {len(stage.nodes)} nodes: the rest would be no majority")
            return
        with stage.hurting(dice, 2, stage.leader(dice)) as nodes, stage.bar(self.name, " by ".join(nodes)):
            lost, spare = nodes
            if not _change(stage, dice, spare, "remove"):
                return
            stage.wait(f"{spare} has left", partial(_is_gone, stage, spare))
            stage.cluster.kill(spare, lost)
            _start_to_join(stage, dice, spare, nodes)
            stage.wait(f"{spare} is known", partial(_is_known, stage, spare))
            if not _change(stage, dice, lost, "replace", by=spare):
                return
            stage.last(lasts_s)
            stage.wait(f"{spare} votes everywhere", partial(_is_member, stage, spare))
            stage.wait(f"{lost}, replaced, has left", partial(_is_gone, stage, lost))
            wipe(stage.cluster.node(lost).data)
            _start_to_join(stage, dice, lost, nodes)
            stage.wait(f"{lost} has joined and votes everywhere", partial(_is_member, stage, lost))


class Drain(Trouble):
    """A member leads nothing for a while."""

    name = "drain"
    layer = "nodes"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, ", ".join(nodes)):
            for node in nodes:
                if _change(stage, dice, node, "drain"):
                    stage.last(lasts_s)
                    _change(stage, dice, node, "undrain")


def _start_to_join(stage: Stage, dice: random.Random, node: str, but: list[str]) -> None:
    stage.cluster.let_join(node, dice.choice([other for other in stage.nodes if other not in but]))
    stage.spawn(node)


def _change(stage: Stage, dice: random.Random, node: str, what: str, **fields: str) -> bool:
    """Ask for a change until it is taken, through whoever of the others answers."""
    deadline = time.monotonic() + stage.heals_s
    others = [other for other in stage.nodes if other != node]
    while not stage.stopping.is_set():
        through = dice.choice(others)
        try:
            address, path = stage.cluster.node(through).http, f"/v1/cluster/members/{node}"
            request(address, "POST", path, {"change": what, **fields}, timeout_s=_ASK_S)
            return True
        except Refused as error:
            if error.code not in _PASSING or time.monotonic() > deadline:
                stage.stall(f"{node} cannot {what}, asked through {through}: {error}")
                return False
        time.sleep(0.2)
    return False


def _views(stage: Stage, but: str) -> list[dict[str, Any]]:
    """What others say of the members, as far as they hear a leader."""
    found = []
    for node in stage.cluster.nodes:
        if node.id != but and node.is_running and not node.is_paused:
            answer = ask(node.http, "/v1/cluster/members")
            if answer.status == 200 and answer.content["has_quorum"]:
                found.append(answer.content)
    return found


def _is_gone(stage: Stage, node: str) -> bool:
    for view in _views(stage, node):
        if {each["node"]: each["state"] for each in view["members"]}.get(node, "removed") == "removed":
            return True
    return False


def _is_known(stage: Stage, node: str) -> bool:
    """Whether it was decided that it joins."""
    views = _views(stage, node)
    return any(each["node"] == node and each["state"] != "removed" for view in views for each in view["members"])


def _is_member(stage: Stage, node: str) -> bool:
    process = stage.cluster.node(node)
    if not process.is_running:
        stage.must_have_reason(node, "its joining")
        stage.spawn(node)
        return False
    # One that hears first that it was taken out, and then that it may join, is started once more, as people would.
    told = ask(process.http, "/ready")
    if told.status == 503 and "taken out" in json.dumps(told.content):
        stage.cluster.kill(node)
        stage.spawn(node)
        return False
    for view in _views(stage, node):
        for each in view["members"]:
            if each["node"] == node and each["state"] != "removed" and not each["is_joining"]:
                return bool(each["votes_in"] == each["groups"] and not each["is_leaving"])
    return False

"""Nodes that come and go: one is taken out and joins again, is replaced, or leads nothing for a while."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from holdfast.testing.asking import ask
from testkit.asking import Refused, request
from testkit.nemesis.disk import wipe
from testkit.nemesis.fault import Fault, listed
from testkit.nemesis.stage import Stage

# What passes: somebody is away, or another change is under way.
_PASSING: Final = frozenset(
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
_ASK_S: Final = 10.0
_AGAIN_S: Final = 0.2


class LeaveAndJoin(Fault):
    """A member is taken out, and joins again later: with what it has, or with an empty disk."""

    name = "leave and join"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, listed(nodes)):
            for node in nodes:
                if not change(stage, dice, node, "remove"):
                    return
                stage.wait(f"{node} has left", partial(is_gone, stage, node))
                stage.cluster.kill(node)
                if dice.random() < 0.5:
                    wipe(stage.cluster.node(node).data)
                stage.last(lasts_s)
                _start_to_join(stage, dice, node, nodes)
                stage.wait(f"{node} has joined and votes everywhere", partial(has_joined, stage, node))


class Replace(Fault):
    """A member is lost for good, and one from outside takes its place; then it joins again, with an empty disk."""

    name = "replace"
    hurts = 2
    alone = True
    # One is outside, one is lost, and the rest is still a majority.
    nodes_min = 4

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 2, stage.leader(dice)) as nodes, stage.bar(self.name, " by ".join(nodes)):
            lost, spare = nodes
            if not change(stage, dice, spare, "remove"):
                return
            stage.wait(f"{spare} has left", partial(is_gone, stage, spare))
            stage.cluster.kill(spare, lost)
            _start_to_join(stage, dice, spare, nodes)
            stage.wait(f"{spare} is known", partial(is_known, stage, spare))
            if not change(stage, dice, lost, "replace", by=spare):
                return
            stage.last(lasts_s)
            stage.wait(f"{spare} votes everywhere", partial(has_joined, stage, spare))
            stage.wait(f"{lost}, replaced, has left", partial(is_gone, stage, lost))
            wipe(stage.cluster.node(lost).data)
            _start_to_join(stage, dice, lost, nodes)
            stage.wait(f"{lost} has joined and votes everywhere", partial(has_joined, stage, lost))


class Drain(Fault):
    """A member leads nothing for a while."""

    name = "drain"
    hurts = 1

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        with stage.hurting(dice, 1, stage.leader(dice)) as nodes, stage.bar(self.name, listed(nodes)):
            for node in nodes:
                if change(stage, dice, node, "drain"):
                    stage.last(lasts_s)
                    change(stage, dice, node, "undrain")


def _start_to_join(stage: Stage, dice: random.Random, node: str, but: list[str]) -> None:
    stage.cluster.let_join(node, dice.choice([other for other in stage.nodes if other not in but]))
    stage.spawn(node)


def change(stage: Stage, dice: random.Random, node: str, what: str, through: Sequence[str] = (), **fields: str) -> bool:
    """Ask for a change until it is taken, through any of these nodes; of all others where none are named."""
    deadline = time.monotonic() + stage.heals_s
    while not stage.stopping.is_set():
        asked = dice.choice(through or stage.others(node))
        try:
            address, path = stage.cluster.node(asked).http, f"/v1/cluster/members/{node}"
            request(address, "POST", path, {"change": what, **fields}, timeout_s=_ASK_S)
            return True
        except Refused as error:
            if error.code not in _PASSING or time.monotonic() > deadline:
                stage.stall(f"{node} cannot {what}, asked through {asked}: {error}")
                return False
        time.sleep(_AGAIN_S)
    return False


def views(stage: Stage, of: Sequence[str]) -> list[dict[str, Any]]:
    """What these nodes say of the members, as far as they hear a leader."""
    found = []
    for node in (stage.cluster.node(each) for each in of):
        if node.is_running and not node.is_paused:
            answer = ask(node.http, "/v1/cluster/members")
            if answer.status == 200 and answer.content["has_quorum"]:
                found.append(answer.content)
    return found


def is_gone(stage: Stage, node: str, of: Sequence[str] = ()) -> bool:
    """Whether another node says that this one was taken out."""
    for view in views(stage, of or stage.others(node)):
        states = {each["node"]: each["state"] for each in view["members"]}
        if view["asked"] != node and states.get(node, "removed") == "removed":
            return True
    return False


def is_known(stage: Stage, node: str, of: Sequence[str] = ()) -> bool:
    """Whether the control log says that it joins, or has."""
    found = views(stage, of or stage.others(node))
    return any(each["node"] == node and each["state"] != "removed" for view in found for each in view["members"])


def votes(stage: Stage, node: str, of: Sequence[str] = ()) -> bool:
    """Whether it has joined, and votes in every group."""
    for view in views(stage, of or stage.others(node)):
        for each in view["members"]:
            if each["node"] == node and each["state"] != "removed" and not each["is_joining"]:
                return bool(each["votes_in"] == each["groups"] and not each["is_leaving"])
    return False


def has_joined(stage: Stage, node: str, of: Sequence[str] = ()) -> bool:
    """Whether it votes; until then it is started again where that is what people would do.

    One that hears first that it was taken out, and then that it may join, has to be started once more.
    """
    if not stage.cluster.node(node).is_running:
        stage.must_have_reason(node, "its joining")
        stage.spawn(node)
        return False
    if was_told_to_leave(stage, node):
        stage.cluster.kill(node)
        stage.spawn(node)
        return False
    return votes(stage, node, of)


def was_told_to_leave(stage: Stage, node: str) -> bool:
    """Whether it refuses its clients since it was taken out."""
    answer = ask(stage.cluster.node(node).http, "/ready")
    return answer.status == 503 and "taken out" in json.dumps(answer.content)

"""What a fault has at hand: the cluster, the load, dice, and ways to wait for what must happen."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from chaos.asking import Refused, request
from chaos.cluster import ChaosCluster
from chaos.history import History, Sent
from chaos.workload import TOPICS, Workload
from holdfast.testing import ClusterFailed
from holdfast.testing.asking import ask

# On a machine that others use too. What takes longer than this does not go on at all.
GOES_ON_S: Final = 30.0
HEALS_S: Final = 60.0


@dataclass(slots=True)
class Scene:
    """One run as its faults see it."""

    cluster: ChaosCluster
    workload: Workload
    history: History
    dice: random.Random
    # After this time, what should have come back has not.
    heals_s: float = HEALS_S
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stall(self, text: str) -> None:
        self.history.stalls.append(text)

    # --- who -----------------------------------------------------------------------------------------

    def leader(self) -> str:
        """Of some partition, or of the control group."""
        topic = self.dice.choice([*TOPICS, None])
        if topic is None:
            return self.cluster.control_leader(timeout_s=GOES_ON_S)
        partition = self.dice.randrange(TOPICS[topic])
        return self.cluster.wait_for_leader(topic, timeout_s=GOES_ON_S, partition=partition)

    def any_node(self) -> str:
        return self.dice.choice(self.cluster.nodes).id

    def others(self, node: str) -> list[str]:
        return [each.id for each in self.cluster.nodes if each.id != node]

    # --- waiting -------------------------------------------------------------------------------------

    def stay(self, shortest_s: float, longest_s: float) -> None:
        """How long a fault lasts is part of the fault."""
        time.sleep(self.dice.uniform(shortest_s, longest_s))

    def must_go_on(self, during: str, messages: int = 5) -> None:
        """A majority is well, so publishers that may use any node get something through."""
        if not self.workload.wait_for_acknowledgements(messages, GOES_ON_S):
            self.stall(f"nothing was acknowledged for {GOES_ON_S:g} s during {during}")
            self.note_groups()

    def wait(self, what: str, condition: Callable[[], bool]) -> bool:
        """Until something that must happen has; a stall where it does not."""
        deadline = time.monotonic() + self.heals_s
        while not condition():
            if time.monotonic() > deadline:
                self.stall(f"not within {self.heals_s:g} s: {what}")
                self.note_groups()
                return False
            time.sleep(0.02)
        return True

    def start(self, *nodes: str) -> None:
        """Start nodes and wait until they serve; they may have to wait for each other."""
        try:
            for node in nodes:
                self.cluster.spawn(node)
            deadline = time.monotonic() + self.heals_s
            for node in nodes:
                self.cluster.node(node).wait_until_serving(deadline)
        except ClusterFailed as error:
            self.stall(f"{', '.join(nodes)} did not start: {error}")

    def heal(self) -> None:
        """Nothing is broken any more; now everybody must be ready and every publisher get something through."""
        for node in self.cluster.nodes:
            if node.is_paused:
                node.resume()
        if self.cluster.network is not None:
            self.cluster.network.heal()
        if away := [node.id for node in self.cluster.nodes if not node.is_running]:
            self.start(*away)
        for node in self.cluster.nodes:
            self.wait(f"{node.id} is ready", partial(self.cluster.is_ready, node.id))
        if stuck := self.workload.wait_for_everybody(self.heals_s):
            self.stall(f"after the faults nothing was acknowledged to {', '.join(stuck)} within {self.heals_s:g} s")
            self.note_groups()

    # --- looking -------------------------------------------------------------------------------------

    def groups(self, node: str) -> list[dict[str, Any]]:
        """Every group as a node sees it; nothing where it does not answer."""
        answer = ask(self.cluster.node(node).http, "/v1/cluster/groups")
        return list(answer.content["groups"]) if answer.status == 200 else []

    def note_groups(self, name: str = "") -> None:
        """Write down how every node sees a group, or all of them."""
        for node in self.cluster.nodes:
            for group in self.groups(node.id):
                if name in (group["name"], ""):
                    self.note(f"{node.id} sees {group}")

    def everybody_votes(self) -> bool:
        """Whether every group has a leader that knows all nodes as voters, and none of them thinks otherwise.

        A node that came back as somebody else knows that it is a learner before any leader does.
        """
        led: dict[str, bool] = {}
        for node in self.cluster.nodes:
            for group in self.groups(node.id):
                led.setdefault(group["name"], False)
                if group["role"] == "learner":
                    return False
                if group["role"] == "leader":
                    voters = {each["node"] for each in group["followers"] if each["is_voter"]} | {node.id}
                    has_learners = any(not each["is_voter"] for each in group["followers"])
                    led[group["name"]] = len(voters) == len(self.cluster.nodes) and not has_learners
        return bool(led) and all(led.values())

    def refusal(self, node: str, topic: str, timeout_s: float = 15.0) -> str | None:
        """What a publish through one node is refused with; `None` where it is acknowledged."""
        number = len(self.history.sent)
        value, now = f"probe/{number}", time.monotonic()
        sent = Sent("probe", number, topic, value, None, now, time.time_ns() // 1_000_000)
        self.history.sent.append(sent)
        try:
            address = self.cluster.node(node).http
            content = {"messages": [{"value": value}]}
            request(address, "POST", f"/v1/topics/{topic}/messages", content, timeout_s=timeout_s)
        except Refused as error:
            sent.fate, sent.why = ("refused" if error.code == "no_quorum" else "unknown"), error.code
            return error.code
        sent.fate, sent.answered_at = "acknowledged", time.monotonic()
        return None

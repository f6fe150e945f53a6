"""Nodes of real clusters come and go, change after change, under load, kills and splits.

Three of five nodes found a cluster. Then a node joins, leaves, is drained, comes back, or takes the place of one that
was killed; while most of these are under way, some node is killed, paused or cut off, the leaders rather than others.
The first three have settings that name only each other, whatever the cluster has become meanwhile. At the end all are
in, and everything anybody was told is held against what every node serves.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from testkit.cluster import BreakableCluster
from testkit.history import History
from testkit.nemesis import members
from testkit.nemesis.stage import HEALS_S, Stage
from testkit.workload.flood import Flood

from chaos import report
from chaos.report import Report
from chaos.run import RATE, Outcome, conduct
from holdfast.testing.asking import ask

NODES: Final = 5
FOUNDERS: Final = 3
_BEFORE: Final = 30
_WATCH_EVERY_S: Final = 0.2


class Changes:
    """What is done to the members of one cluster, one change after the other. `members` are those that belong."""

    def __init__(self, stage: Stage, seed: int, count: int, on_change: Callable[[str], object]) -> None:
        self._stage = stage
        self._cluster = stage.cluster
        self._seed = seed
        self._dice = random.Random(f"{seed}/members")
        self._count = count
        self._on_change = on_change
        self.members = set(stage.nodes[:FOUNDERS])
        self._drained: set[str] = set()
        self.done: Counter[str] = Counter()
        self.disturbed: Counter[str] = Counter()

    def __call__(self, stage: Stage) -> None:
        stage.progresses("the time before the first change", _BEFORE)
        for number in range(self._count):
            # Each change has dice of its own: how often the one before had to be asked for does not matter.
            self._dice = random.Random(f"{self._seed}/members/{number}")
            self._on_change(self._one())
            stage.progresses("a change of members")
            if stage.history.stalls:
                break
        for node in sorted(self._drained):
            self._ask(node, "undrain")
        while len(self.members) < NODES and not stage.history.stalls:
            self._join()
        stage.heal("all changes")

    # --- one change -------------------------------------------------------------------------------

    def _one(self) -> str:
        """Any change that is possible now; returns its name."""
        possible: list[Callable[[], str]] = [self._drain]
        if len(self.members) < NODES:
            possible += [self._join] * 3
        if len(self.members) > FOUNDERS:
            possible += [self._remove] * 3
        if FOUNDERS <= len(self.members) < NODES:
            possible += [self._replace] * 2
        name = self._dice.choice(possible)()
        self.done[name] += 1
        self._stage.note(f"{name}: {sorted(self.members)}")
        return name

    def _join(self) -> str:
        node = self._outsider()
        self._start_outsider(node)
        self._disturb(node)
        self._await(f"{node} votes everywhere", lambda: self._has_joined(node))
        self.members.add(node)
        return "join"

    def _remove(self) -> str:
        node = self._dice.choice([self._stage.leader(self._dice), self._dice.choice(sorted(self.members))])
        if node not in self.members:
            return self._drain()
        self._ask(node, "remove")
        self._disturb(node, is_leaving=True)
        self._await(f"{node} has left", lambda: self._is_gone(node))
        self._forget(node)
        if self._cluster.node(node).is_running:
            # Started a moment before, to join, it may not have heard of its removal, and come back as it was asked.
            self._await(f"{node} knows that it has left", lambda: self._has_heard(node) or self._votes(node))
            if self._votes(node):
                self.members.add(node)
        return "remove"

    def _replace(self) -> str:
        old, new = self._dice.choice(sorted(self.members)), self._outsider()
        self._cluster.kill(old)
        self._start_outsider(new)
        if self._dice.random() < 0.5:
            self._await(f"{new} votes everywhere", lambda: self._has_joined(new))
        self._await(f"{new} is known", lambda: self._is_known(new))
        self._ask(old, "replace", by=new)
        self._disturb(new, but=old)
        self._await(f"{new} votes everywhere", lambda: self._has_joined(new))
        self._await(f"{old}, replaced, has left", lambda: self._is_gone(old))
        self.members.add(new)
        self._forget(old)
        return "replace"

    def _drain(self) -> str:
        if self._drained:
            node = self._drained.pop()
            self._ask(node, "undrain")
            return "undrain"
        node = self._dice.choice(sorted(self.members))
        self._ask(node, "drain")
        self._drained.add(node)
        self._disturb(node)
        self._await(f"{node}, drained, leads nothing", lambda: self._leads_nothing(node))
        return "drain"

    # --- nodes ------------------------------------------------------------------------------------

    def _outsider(self) -> str:
        return self._dice.choice([node for node in self._stage.nodes if node not in self.members])

    def _start_outsider(self, node: str) -> None:
        """With what it had when it left, or with an empty disk."""
        process = self._cluster.node(node)
        process.kill()
        if self._dice.random() < 0.3:
            shutil.rmtree(process.data, ignore_errors=True)
        running = [each for each in sorted(self.members) if self._cluster.node(each).is_running]
        # A founder, too: a node that was taken out stays out unless it is started to join.
        self._cluster.let_join(node, self._dice.choice(running))
        self._cluster.spawn(node)

    def _forget(self, node: str) -> None:
        self.members.discard(node)
        self._drained.discard(node)

    def _disturb(self, node: str, but: str = "", *, is_leaving: bool = False) -> None:
        """Something happens to a node while the change is under way; the majority of the members stays well."""
        kind = self._dice.choice(["nothing", "kill", "kill", "pause", "split"])
        running = [each.id for each in self._cluster.nodes if each.is_running]
        leader = self._stage.leader(self._dice)
        chosen = [each for each in (node, leader, self._dice.choice(running)) if each != but and each in running]
        # One that was killed before is away already.
        if but and len(self.members) <= FOUNDERS:
            chosen = [each for each in chosen if each not in self.members]
        if not chosen or kind == "nothing":
            return
        time.sleep(self._dice.uniform(0.0, 1.0))
        victim = self._dice.choice(chosen)
        process = self._cluster.node(victim)
        if not process.is_running:
            return
        self.disturbed[kind] += 1
        self._stage.note(f"{kind} {victim}")
        if kind == "kill":
            process.kill()
            if is_leaving and victim == node:
                return  # started again with the wish to join, it would come back as soon as it is out
            time.sleep(self._dice.uniform(0.0, 1.5))
            self._cluster.spawn(process)
        elif kind == "pause" or self._cluster.network is None:
            process.pause()
            time.sleep(self._dice.uniform(0.2, 3.0))
            process.resume()
        else:
            self._cluster.network.cut_off(self._cluster.index(victim))
            time.sleep(self._dice.uniform(0.2, 4.0))
            self._cluster.network.heal()

    # --- asking and waiting -----------------------------------------------------------------------

    def _ask(self, node: str, what: str, **fields: str) -> None:
        members.change(self._stage, self._dice, node, what, sorted(self.members), **fields)

    def _await(self, what: str, holds: Callable[[], bool]) -> None:
        def holds_and_members_are_there() -> bool:
            """Members that left are started again, as a supervisor would; but none has a reason to leave here."""
            for node in sorted(self.members):
                process = self._cluster.node(node)
                if not process.is_running and process.exit_code not in (None, -signal.SIGKILL):
                    self._stage.must_have_reason(node, what)
                    self._stage.spawn(node)
            return holds()

        self._stage.wait(what, holds_and_members_are_there)

    def _has_joined(self, node: str) -> bool:
        return members.has_joined(self._stage, node, sorted(self.members))

    def _votes(self, node: str) -> bool:
        return members.votes(self._stage, node, sorted(self.members))

    def _is_known(self, node: str) -> bool:
        return members.is_known(self._stage, node, sorted(self.members))

    def _is_gone(self, node: str) -> bool:
        return members.is_gone(self._stage, node, sorted(self.members))

    def _has_heard(self, node: str) -> bool:
        """Whether it refuses its clients since it was taken out; one that is down has nobody to refuse."""
        return not self._cluster.node(node).is_running or members.was_told_to_leave(self._stage, node)

    def _leads_nothing(self, node: str) -> bool:
        answer = ask(self._cluster.node(node).http, "/v1/cluster/groups")
        return answer.status == 200 and all(group["role"] != "leader" for group in answer.content["groups"])


def run(changes: int, seed: int, *, has_network: bool, on_change: Callable[[str], object] = len) -> Outcome:
    """Raises `CannotBreak` where there can be no network of our own."""
    replay = f"{sys.executable} -m chaos members --changes {changes} --per-cluster {changes} --seed {seed}"
    outcome = Outcome(seed, replay if has_network else f"{replay} --no-network", History())
    with BreakableCluster(NODES, has_network=has_network, founders=FOUNDERS) as cluster:
        flood = Flood(cluster, outcome.history, str(seed), RATE)
        stage = Stage(cluster, outcome.history, [flood], HEALS_S, bars=outcome.bars, notes=outcome.notes)
        made = Changes(stage, seed, changes, on_change)
        asyncio.run(conduct(stage, outcome, made, watch_every_s=_WATCH_EVERY_S))
    outcome.faults = made.done + Counter({f"{kind} meanwhile": count for kind, count in made.disturbed.items()})
    return outcome


def add_options(parser: argparse.ArgumentParser) -> None:
    report.add_options(parser)
    parser.add_argument("--changes", type=int, default=60, help="how many nodes come, go or are drained")
    parser.add_argument("--per-cluster", type=int, default=25, help="changes that one cluster lives through")
    parser.add_argument("--no-network", action="store_true", help="no namespaces: nobody is cut off, only paused")


def main(options: argparse.Namespace) -> int:
    made = Report("members", options)
    with made.progress("changes", options.changes) as move:
        for turn, start in enumerate(range(0, options.changes, options.per_cluster)):
            count, seed = min(options.per_cluster, options.changes - start), options.seed + turn
            with made.attempt(f"python -m chaos members --changes {count} --per-cluster {count} --seed {seed}"):
                made.add(run(count, seed, has_network=not options.no_network, on_change=lambda name: move(name, 1)))
    return made.finish()

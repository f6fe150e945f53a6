"""Nodes of a real cluster come and go, under load, kills and splits: `python -m chaos.members --changes 500`.

Three of five nodes found a cluster. Then, change by change, a node joins, leaves, is drained, comes back, or takes the
place of one that was killed; while most of these are under way, somebody is killed, paused or cut off, the leaders
rather than others. The first three have settings that name only each other, whatever the cluster has become meanwhile.
At the end everybody is in, and everything anybody was told is held against what every node serves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from testkit.commands import CannotBreak

from chaos.asking import Refused, request
from chaos.checker import Verdict, check
from chaos.cluster import ChaosCluster
from chaos.history import History
from chaos.run import _collect as collect
from chaos.scene import Scene
from chaos.workload import Workload
from holdfast.testing import ClusterFailed
from holdfast.testing.asking import ask
from holdfast.testing.node_process import NodeProcess

RESULTS: Final = Path(__file__).parent / "results"
NODES: Final = 5
FOUNDERS: Final = 3
# A change that takes longer than this does not come to an end at all.
_DONE_S: Final = 90.0
_BEFORE: Final = 30


class MembersCluster(ChaosCluster):
    """Five machines, of which three found the cluster."""

    def _make_nodes(self) -> None:
        super()._make_nodes()
        founders = self.nodes[:FOUNDERS]
        peers = [f"{node.id}={node.peer}" for node in founders]
        for node in founders:
            node.write_settings(peers, self._settings)
        for node in self.nodes[FOUNDERS:]:
            self.let_join(node, founders[0])

    def let_join(self, node: NodeProcess, through: NodeProcess) -> None:
        """It is told of one node of the cluster, and of nobody else."""
        node.write_settings((), {**self._settings, "join": through.peer})

    def _spawn(self, nodes: list[NodeProcess]) -> None:
        # At first the others are not there.
        super()._spawn(nodes[:FOUNDERS] if len(nodes) == NODES else nodes)


class Leaders(threading.Thread):
    """Watches who leads in which term: never two."""

    def __init__(self, cluster: MembersCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._leaders: dict[tuple[str, int], str] = {}
        self.doubles: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.1):
            for node in self._cluster.nodes:
                if not node.is_running or node.is_paused:
                    continue
                answer = ask(node.http, "/v1/cluster/groups", 1.0)
                for group in answer.content["groups"] if answer.status == 200 else ():
                    if group["role"] == "leader":
                        self._note((group["name"], group["term"]), node.id)

    def failures(self) -> list[str]:
        """Whoever saw nothing, or stopped looking, has not seen that all is well."""
        found = [] if self.is_alive() else ["nobody watched any more who leads"]
        return found if self._leaders else [*found, "nobody was seen to lead"]

    @property
    def reigns(self) -> int:
        return len(self._leaders)

    def _note(self, reign: tuple[str, int], node: str) -> None:
        other = self._leaders.setdefault(reign, node)
        if other != node:
            self.doubles.append(f"{reign[0]} was led by {other} and {node} in term {reign[1]}")


class Changes:
    """What is done to the members of one cluster, one change after the other. `members` are those who belong."""

    def __init__(self, scene: Scene, cluster: MembersCluster, dice: random.Random) -> None:
        self._scene = scene
        self._cluster = cluster
        self._dice = dice
        self.members = {node.id for node in cluster.nodes[:FOUNDERS]}
        self._drained: set[str] = set()
        self.done: Counter[str] = Counter()
        self.disturbed: Counter[str] = Counter()

    # --- one change -------------------------------------------------------------------------------

    def one(self) -> str:
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
        self._scene.note(f"{time.monotonic():.3f} s: {name}: {sorted(self.members)}")
        return name

    def everybody_in(self) -> None:
        for node in sorted(self._drained):
            self._ask(node, "undrain")
        while len(self.members) < NODES:
            self._join()

    def _join(self) -> str:
        node = self._outsider()
        self._start_outsider(node)
        self._disturb(node)
        self._await(f"{node} votes everywhere", lambda: self._is_member(node), node)
        self.members.add(node)
        return "join"

    def _remove(self) -> str:
        node = self._dice.choice([self._scene.leader(), self._dice.choice(sorted(self.members))])
        if node not in self.members:
            return self._drain()
        self._ask(node, "remove")
        self._disturb(node, is_leaving=True)
        self._await(f"{node} has left", lambda: self._is_gone(node))
        self._forget(node)
        process = self._cluster.node(node)
        if process.is_running:
            knows = f"{node} knows that it has left"
            self._await(knows, lambda: _is_told(process) or self._is_member(node))
            if self._is_member(node):
                # It was started a moment before, to join, and had not heard of the cluster yet: it came back as asked.
                self.members.add(node)
        return "remove"

    def _replace(self) -> str:
        old, new = self._dice.choice(sorted(self.members)), self._outsider()
        self._cluster.kill(old)
        self._start_outsider(new)
        if self._dice.random() < 0.5:
            self._await(f"{new} votes everywhere", lambda: self._is_member(new), new)
        self._await(f"{new} is known", lambda: self._is_known(new), new)
        self._ask(old, "replace", by=new)
        self._disturb(new, but=old)
        self._await(f"{new} votes everywhere", lambda: self._is_member(new), new)
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
        return self._dice.choice([node.id for node in self._cluster.nodes if node.id not in self.members])

    def _start_outsider(self, node: str) -> None:
        """With what it had when it left, or with an empty disk."""
        process = self._cluster.node(node)
        if process.is_running:
            process.kill()
        if self._dice.random() < 0.3:
            shutil.rmtree(process.data, ignore_errors=True)
        running = [self._cluster.node(each) for each in sorted(self.members) if self._cluster.node(each).is_running]
        # A founder, too: who was taken out stays out unless it is started to join.
        self._cluster.let_join(process, self._dice.choice(running))
        self._cluster.spawn(process)

    def _forget(self, node: str) -> None:
        self.members.discard(node)
        self._drained.discard(node)

    def _disturb(self, node: str, but: str = "", *, is_leaving: bool = False) -> None:
        """Something happens to somebody while the change is under way; the majority of those who belong stays well."""
        kind = self._dice.choice(["nothing", "kill", "kill", "pause", "split"])
        try:
            leader = self._scene.leader()
        except ClusterFailed:
            leader = node
        running = [each.id for each in self._cluster.nodes if each.is_running]
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
        self._scene.note(f"{time.monotonic():.3f} s: {kind} {victim}")
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

    def _ask(self, member: str, change: str, **fields: str) -> None:
        """Until it is taken, through whoever of the members answers."""
        deadline = time.monotonic() + _DONE_S
        passing = ("unreachable", "no_quorum", "leader_changed", "would_lose_quorum", "membership_changing")
        while True:
            node = self._cluster.node(self._dice.choice(sorted(self.members)))
            try:
                content = {"change": change, **fields}
                request(node.http, "POST", f"/v1/cluster/members/{member}", content, timeout_s=10.0)
                return
            except Refused as error:
                if error.code not in (*passing, "unavailable", "node_removed") or time.monotonic() > deadline:
                    self._scene.stall(f"{change} of {member} through {node.id}: {error}")
                    return
            time.sleep(0.2)

    def _await(self, what: str, holds: Callable[[], bool], joining: str = "") -> None:
        deadline = time.monotonic() + _DONE_S
        while not holds():
            if time.monotonic() > deadline:
                self._scene.stall(f"not within {_DONE_S:g} s: {what}; {self._seen()}")
                return
            self._restart_those_that_left()
            # Who is told at its first start, and was not started to join, is started once more by whoever wants it.
            if joining and self._cluster.node(joining).is_running and _is_told(self._cluster.node(joining)):
                self._cluster.kill(joining)
                self._cluster.spawn(joining)
            time.sleep(0.1)

    def _restart_those_that_left(self) -> None:
        """As whatever looks after processes would; but nobody has a reason to leave here."""
        for node in self._cluster.nodes:
            if node.id in self.members and not node.is_running and node.exit_code not in (None, -signal.SIGKILL):
                self._scene.stall(f"{node.id} left by itself with {node.exit_code}\n{node.log_tail()}")
                self._cluster.spawn(node)

    def _seen(self) -> list[str]:
        """How the members see each other, in short."""
        found = []
        for view in self._views():
            states = [f"{each['node']} {each['state']} {each['votes_in']}/{each['groups']}" for each in view["members"]]
            found.append(f"{view['asked']}, {view['changing']} changing: {', '.join(states)}")
        return found

    def _views(self) -> list[dict[str, Any]]:
        """What members say that hear a leader."""
        found = []
        for node in sorted(self.members):
            process = self._cluster.node(node)
            if process.is_running and not process.is_paused:
                answer = ask(process.http, "/v1/cluster/members")
                if answer.status == 200 and answer.content["has_quorum"]:
                    found.append(answer.content)
        return found

    def _is_member(self, node: str) -> bool:
        for view in self._views():
            for each in view["members"]:
                if each["node"] == node and each["state"] != "removed" and not each["is_joining"]:
                    return bool(each["votes_in"] == each["groups"] and not each["is_leaving"])
        return False

    def _is_known(self, node: str) -> bool:
        """Whether the control log says that it joins, or has."""
        views = self._views()
        return any(each["node"] == node and each["state"] != "removed" for view in views for each in view["members"])

    def _is_gone(self, node: str) -> bool:
        for view in self._views():
            states = {each["node"]: each["state"] for each in view["members"]}
            if view["asked"] != node and states.get(node, "removed") == "removed":
                return True
        return False

    def _leads_nothing(self, node: str) -> bool:
        process = self._cluster.node(node)
        answer = ask(process.http, "/v1/cluster/groups")
        if not process.is_running or answer.status != 200:
            return False
        return all(group["role"] != "leader" for group in answer.content["groups"])


def _is_told(node: NodeProcess) -> bool:
    """Whether it refuses its clients with that reason; one that is down has nobody to refuse."""
    answer = ask(node.http, "/ready")
    return not node.is_running or (answer.status == 503 and "taken out" in json.dumps(answer.content))


async def run(changes: int, seed: int, *, has_network: bool, on_change: Callable[[str], object]) -> dict[str, Any]:
    """Raises `CannotBreak` where there can be no network of our own."""
    began_s = time.monotonic()
    dice = random.Random(f"{seed}/members")
    history = History()
    cluster = MembersCluster(NODES, has_network=has_network)
    with cluster:
        history.members = tuple(node.id for node in cluster.nodes)
        workload = Workload(cluster, history, str(seed))
        scene = Scene(cluster, workload, history, dice)
        leaders = Leaders(cluster)
        leaders.start()
        made = Changes(scene, cluster, dice)
        try:
            await workload.start()
            await asyncio.to_thread(scene.must_go_on, "the time before the first change", _BEFORE)
            for _ in range(changes):
                on_change(await asyncio.to_thread(made.one))
                await asyncio.to_thread(scene.must_go_on, "a change of members")
                if history.stalls:
                    break
            await asyncio.to_thread(made.everybody_in)
            await asyncio.to_thread(scene.heal)
            await workload.stop_publishing()
            history.served += await asyncio.to_thread(collect, scene)
            history.stalls += workload.failures() + leaders.failures()
        finally:
            leaders.stopping.set()
            await workload.stop()
        verdict = check(history)
        verdict.add("two leaders in a term", leaders.doubles)
        logs = "" if verdict.is_clean else "\n".join(f"--- {node.id}\n{node.log()}" for node in cluster.nodes)
    return _found(history, verdict, made, scene) | {
        "seed": seed,
        "reigns": leaders.reigns,
        "seconds": round(time.monotonic() - began_s, 1),
        "logs": logs,
    }


def _found(history: History, verdict: Verdict, made: Changes, scene: Scene) -> dict[str, Any]:
    return {
        "is_clean": verdict.is_clean,
        "changes": dict(made.done),
        "disturbed": dict(made.disturbed),
        "sent": len(history.sent),
        "acknowledged": history.acknowledged,
        "seen": len(history.seen),
        "stalls": history.stalls,
        "notes": scene.notes,
        **verdict.as_json(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.members", description=__doc__)
    parser.add_argument("--changes", type=int, default=60, help="how many nodes come, go or are drained")
    parser.add_argument("--per-cluster", type=int, default=25, help="changes that one cluster lives through")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--no-network", action="store_true", help="no namespaces: nobody is cut off, only paused")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    logging.getLogger("holdfast.client").setLevel(logging.ERROR)
    console = Console()
    console.print(f"seed {options.seed}", highlight=False)
    directory = options.results / time.strftime("members-%Y%m%d-%H%M%S")
    directory.mkdir(parents=True, exist_ok=True)
    totals: Counter[str] = Counter()
    is_clean, runs = True, []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("changes", total=options.changes)
        for turn, start in enumerate(range(0, options.changes, options.per_cluster)):
            count = min(options.per_cluster, options.changes - start)

            def shown(name: str) -> None:
                progress.update(task, advance=1, description=name)

            try:
                seed = options.seed + turn
                found = asyncio.run(run(count, seed, has_network=not options.no_network, on_change=shown))
            except CannotBreak as error:
                console.print(f"no network of our own can be made here ({error}); give --no-network", markup=False)
                return 2
            logs = found.pop("logs")
            if logs:
                (directory / f"{seed}.log").write_text(logs, "utf-8")
            is_clean &= found["is_clean"]
            runs.append(found)
            totals.update(found["changes"])
            totals.update({f"{kind} meanwhile": times for kind, times in found["disturbed"].items()})
            totals.update({name: found[name] for name in ("sent", "acknowledged", "seen")})
            (directory / "report.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n", "utf-8")
            said = "clean" if found["is_clean"] else "BROKEN"
            console.print(
                f"{said}: seed {seed}, {count} changes in {found['seconds']} s: {found['changes']}", markup=False
            )
            if not found["is_clean"]:
                shown_keys = ("violations", "examples", "disturbed")
                console.print(json.dumps({key: found[key] for key in shown_keys})[:4000], markup=False)
    console.print(dict(totals), highlight=False)
    console.print(f"report: {directory / 'report.json'}", highlight=False)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

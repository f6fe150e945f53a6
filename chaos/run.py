"""One run: a cluster, a load, one or several faults one after the other, and the verdict. All from one seed."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from testkit.disks import DiskKind

from chaos import faults, faults_disk, faults_network
from chaos.asking import Refused, partitions, served
from chaos.checker import Verdict, check
from chaos.cluster import ChaosCluster
from chaos.faults import Fault
from chaos.history import History, Served
from chaos.scene import HEALS_S, Scene
from chaos.workload import Workload
from holdfast.testing import ClusterFailed
from holdfast.testing.node_process import Setting

ALL: Final[dict[str, type[Fault]]] = {
    fault.name: fault
    for fault in (
        faults.KillLeader,
        faults.KillAny,
        faults.KillMajority,
        faults.KillAll,
        faults.PauseLeader,
        faults.PauseFollower,
        faults.RestartWhileOthersPause,
        faults.RollingRestart,
        faults.Transfer,
        faults.NoMajority,
        faults.Storm,
        faults_disk.FullDisk,
        faults_disk.FailingSync,
        faults_disk.PowerLoss,
        faults_disk.PowerLossOfAll,
        faults_disk.LostDisk,
        faults_disk.Newcomer,
        faults_disk.FlippedByte,
        faults_disk.RottenByte,
        faults_network.CutOff,
        faults_network.OneWay,
        faults_network.Mute,
        faults_network.NetworkStorm,
    )
}
# So many messages are acknowledged before the first fault, that there is something to lose.
_BEFORE: Final = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do; the same plan gives the same faults in the same order, at times that the machine decides."""

    seed: int
    names: tuple[str, ...]

    @property
    def disks(self) -> DiskKind:
        kinds = {ALL[name].disks for name in self.names} - {"plain"}
        assert len(kinds) <= 1, "faults of one run need the same kind of disk"
        return kinds.pop() if kinds else "plain"

    @property
    def has_network(self) -> bool:
        return any(ALL[name].has_network for name in self.names)

    @property
    def replay(self) -> str:
        chosen = " ".join(f"--fault '{name}'" for name in self.names)
        return f"{sys.executable} -m chaos --seed {self.seed} {chosen}"


@dataclass(slots=True)
class Outcome:
    plan: Plan
    verdict: Verdict
    history: History
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    errors: dict[str, dict[str, int]] = field(default_factory=dict)
    logs: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "seed": self.plan.seed,
            "faults": list(self.plan.names),
            "seconds": round(self.seconds, 1),
            "sent": len(self.history.sent),
            "acknowledged": self.history.acknowledged,
            "seen": len(self.history.seen),
            "reads_to_the_end": len(self.history.tails),
            "cursor_events": len(self.history.cursors),
            "partitions": len(self.history.by_place()),
            "notes": self.notes,
            "refusals": self.errors,
            **self.verdict.as_json(),
        }


def run(plan: Plan, settings: Mapping[str, Setting] | None = None, *, heals_s: float = HEALS_S) -> Outcome:
    """Raises `CannotBreak` where this machine cannot do it, and `ClusterFailed` where no cluster comes up."""
    began = time.monotonic()
    history = History()
    with ChaosCluster(3, plan.disks, has_network=plan.has_network, settings=settings) as cluster:
        history.members = tuple(node.id for node in cluster.nodes)
        outcome = asyncio.run(_run(plan, cluster, history, heals_s))
        if not outcome.verdict.is_clean:
            outcome.logs = "\n".join(f"--- {node.id}\n{node.log()}" for node in cluster.nodes)
    outcome.seconds = time.monotonic() - began
    return outcome


async def _run(plan: Plan, cluster: ChaosCluster, history: History, heals_s: float) -> Outcome:
    dice = random.Random(f"{plan.seed}/faults")
    workload = Workload(cluster, history, str(plan.seed))
    scene = Scene(cluster, workload, history, dice, heals_s)
    try:
        await workload.start()
        await asyncio.to_thread(scene.must_go_on, "the time before the first fault", _BEFORE)
        for name in plan.names:
            await asyncio.to_thread(_inject, ALL[name](), scene)
        await workload.stop_publishing()
        history.served += await asyncio.to_thread(_collect, scene)
        history.stalls += workload.failures()
    finally:
        await workload.stop()
    return Outcome(plan, check(history), history, notes=scene.notes, errors=workload.errors())


def _now() -> str:
    """Both clocks: that of the history, and that of the nodes' logs."""
    return f"{time.monotonic():.3f} s, {datetime.now(UTC):%H:%M:%S.%f}"


def _inject(fault: Fault, scene: Scene) -> None:
    try:
        scene.note(f"{_now()}: {fault.name}")
        fault.run(scene)
        scene.note(f"{_now()}: {fault.name} is over")
        scene.heal()
    except ClusterFailed as error:
        scene.stall(f"{fault.name}: {error}")
        scene.note(traceback.format_exc())


def _collect(scene: Scene) -> list[Served]:
    """What every node serves, once each is able to say that it has everything."""
    nodes = scene.cluster.nodes
    deadline = time.monotonic() + scene.heals_s
    collected: list[Served] = []
    places = set()
    for node in nodes:
        while True:
            try:
                found = partitions(node.http)
                break
            except Refused as error:
                if time.monotonic() > deadline:
                    scene.stall(f"{node.id} does not name its topics: {error}")
                    found = []
                    break
                time.sleep(0.05)
        places |= set(found)
    for node in nodes:
        for place in sorted(places):
            while True:
                try:
                    collected.append(served(node.id, node.http, place))
                    break
                except Refused as error:
                    if time.monotonic() > deadline:
                        scene.stall(f"{node.id} does not serve {place} after the faults: {error}")
                        scene.note_groups(str(place))
                        break
                    time.sleep(0.05)
    return collected


def plans(seed: int, names: Sequence[str], rounds: int, faults_per_run: int) -> list[Plan]:
    """Every fault so many times, in runs of several faults that need the same disks and network."""
    dice = random.Random(seed)
    kinds: dict[tuple[DiskKind, bool], list[str]] = {}
    for name in names:
        fault = ALL[name]
        kinds.setdefault((fault.disks, fault.has_network), []).extend([name] * rounds)
    made = []
    for chosen in kinds.values():
        dice.shuffle(chosen)
        for start in range(0, len(chosen), faults_per_run):
            made.append(Plan(dice.randrange(1 << 32), tuple(chosen[start : start + faults_per_run])))
    dice.shuffle(made)
    return made

"""One run: a cluster, workloads, faults one after the other or overlapping, and the verdict. All from one seed."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from testkit.asking import Refused, partitions, patiently, stored
from testkit.checker import Verdict, check
from testkit.cluster import BreakableCluster
from testkit.disks import DiskKind
from testkit.history import History, Place
from testkit.machine import CannotBreak
from testkit.nemesis import FAULTS, possible
from testkit.nemesis.fault import Fault
from testkit.nemesis.stage import HEALS_S, Bar, Stage
from testkit.workload import Workload
from testkit.workload.callbacks import Callbacks
from testkit.workload.flood import Flood
from testkit.workload.queues import Queues

from chaos.decided import disagreements
from chaos.script import Act, Episode, episodes, must_go_on, one_by_one
from chaos.watch import EVERY_S, Reign, Watch
from holdfast.testing import ClusterFailed
from holdfast.testing.node_process import Setting

WORKLOADS: Final[Mapping[str, type[Workload]]] = {kind.name: kind for kind in (Flood, Queues, Callbacks)}
# Of messages a second. 30 minutes of the long run, with all the time in which nobody can publish, are over a million.
RATE: Final = 400.0
LONG_RATE: Final = 1_500.0
# What no run of an hour fills; the files below the disks have holes, and are as large as what is on them.
_LONG_DISK_BYTES: Final = 4 << 30
_LONG_SETTINGS: Final[Mapping[str, Setting]] = {"segment_bytes": 1_000_000}
_BEFORE_S: Final = 60.0
# So many messages are acknowledged before the first fault, so that there is something to lose.
_BEFORE_MESSAGES: Final = 100
_END_S: Final = 120.0
BEGUN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: these faults in this order, each by itself; or with `minutes` overlapping, for so long.

    The same plan gives the same faults; what exactly they meet is the machine's.
    """

    seed: int
    faults: tuple[str, ...]
    minutes: float | None = None
    nodes: int = 3
    rate: float = RATE
    workloads: tuple[str, ...] = (Flood.name,)
    heals_s: float = HEALS_S

    @classmethod
    def long(
        cls,
        seed: int,
        minutes: float,
        *,
        faults: Sequence[str] = (),
        nodes: int = 5,
        rate: float = LONG_RATE,
        workloads: Sequence[str] = (),
    ) -> Plan:
        """Where no faults or workloads are named, these are all there are."""
        # In the order of the list: those that come later may use what earlier ones have made.
        chosen = tuple(name for name in WORKLOADS if name in (workloads or WORKLOADS))
        return cls(seed, tuple(faults or FAULTS), minutes, nodes, rate, chosen)

    @property
    def disks(self) -> DiskKind:
        return "power" if any(FAULTS[name].disks == "power" for name in self.faults) else "plain"

    @property
    def has_network(self) -> bool:
        return Callbacks.name in self.workloads or any(FAULTS[name].has_network for name in self.faults)

    @property
    def has_clocks(self) -> bool:
        return any(FAULTS[name].has_clocks for name in self.faults)

    @property
    def replay(self) -> str:
        """The command that does the same again."""
        options = [f"--seed {self.seed}"]
        if self.minutes is not None:
            options += [f"--minutes {self.minutes:g} --nodes {self.nodes} --rate {self.rate:g}"]
            options += [f"--workload '{name}'" for name in self.workloads if self.workloads != tuple(WORKLOADS)]
        options += [f"--fault '{name}'" for name in self.faults if self.faults != tuple(FAULTS)]
        return f"{sys.executable} -m chaos {'cluster' if self.minutes is None else 'long'} {' '.join(options)}"

    def cluster(self) -> BreakableCluster:
        settings = {name: value for each in self.workloads for name, value in WORKLOADS[each].settings.items()}
        if self.minutes is None:
            return BreakableCluster(
                self.nodes, self.disks, has_network=self.has_network, has_clocks=self.has_clocks, settings=settings
            )
        return BreakableCluster(
            self.nodes,
            "power",
            has_network=True,
            has_clocks=True,
            settings={**_LONG_SETTINGS, **settings},
            disk_bytes=_LONG_DISK_BYTES,
        )


@dataclass(slots=True)
class Outcome:
    """What became of a run, for reports and pictures."""

    seed: int
    replay: str
    history: History
    verdict: Verdict = field(default_factory=Verdict)
    began: float = 0.0
    seconds: float = 0.0
    judged_s: float = 0.0
    episodes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    bars: list[Bar] = field(default_factory=list)
    reigns: dict[str, list[Reign]] = field(default_factory=dict)
    recoveries_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    errors: dict[str, dict[str, int]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    # What a campaign has to say of its own.
    facts: dict[str, object] = field(default_factory=dict)
    # Of a run that is not clean: what nodes wrote, by name.
    logs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Now:
    """How far a run is, for the terminal."""

    left_s: float
    acknowledged: int
    rate: float
    doing: str


Tell = Callable[[Now], None]
# What is done to a cluster while the workloads run, in a thread of its own.
Play = Callable[[Stage], None]


def run(plan: Plan, tell: Tell | None = None) -> Outcome:
    """Raises `CannotBreak` where this machine cannot do it, and `ClusterFailed` where no cluster comes up."""
    kinds, skipped = possible(plan.faults, plan.nodes)
    if not kinds:
        raise CannotBreak("; ".join(f"{name}: {reason}" for name, reason in skipped.items()))
    outcome = Outcome(plan.seed, plan.replay, History(), skipped=skipped)
    with plan.cluster() as cluster:
        made = [WORKLOADS[name](cluster, outcome.history, str(plan.seed), plan.rate) for name in plan.workloads]
        stage = Stage(cluster, outcome.history, made, plan.heals_s, bars=outcome.bars, notes=outcome.notes)
        ends_at = time.monotonic() + (plan.minutes or 0.0) * 60
        if plan.minutes is None:
            script: Iterator[Episode] = one_by_one(plan.seed, [name for name in plan.faults if name in kinds])
            play = Player(kinds, script, outcome, messages_before=_BEFORE_MESSAGES)
        else:
            play = Player(kinds, episodes(plan.seed, kinds, plan.nodes), outcome, ends_at)
        asyncio.run(conduct(stage, outcome, play, tell=tell, ends_at=ends_at))
    return outcome


class Player:
    """Brings episodes about: one after the other, for as long as there are any, or as there is time."""

    def __init__(
        self,
        kinds: Mapping[str, type[Fault]],
        script: Iterator[Episode],
        outcome: Outcome,
        ends_at: float | None = None,
        begun_s: float = BEGUN_S,
        messages_before: int = 0,
    ) -> None:
        self._kinds = kinds
        self._script = script
        self._outcome = outcome
        self._ends_at = ends_at
        self._begun_s = begun_s
        self._messages_before = messages_before

    def __call__(self, stage: Stage) -> None:
        for workload in stage.workloads:
            stage.wait(f"{workload.name} begins", workload.begin_waiting(), _BEFORE_S)
        stage.progresses("the time before the first fault", self._messages_before)
        for episode in self._script:
            if self._ends_at is not None and time.monotonic() + episode.health_s > self._ends_at:
                break
            stage.hold(episode.health_s)
            if stage.stopping.is_set():
                return
            self._outcome.episodes += 1
            self._episode(stage, episode)
        if self._ends_at is not None:
            stage.hold(max(0.0, self._ends_at - time.monotonic()))

    def _episode(self, stage: Stage, episode: Episode) -> None:
        name = f"episode {episode.number} ({episode.name})"
        self._outcome.faults.update(act.name for act in episode.acts)
        must = must_go_on(episode.acts, self._kinds, len(stage.nodes))
        if must:
            stage.will_ask()
        stage.is_alone = len(episode.acts) == 1
        with ThreadPoolExecutor(len(episode.acts), "chaos") as threads:
            acts = {act.name: threads.submit(self._act, stage, act) for act in episode.acts}
            if must:
                # What was acknowledged before the last of them had begun says nothing.
                stage.hold(max(act.after_s for act in episode.acts) + self._begun_s)
                stage.must_go_on(name)
        for act_name, act in acts.items():
            if (error := act.exception()) is not None:
                stage.stall(f"{act_name} in {name}: {error!r}")
                stage.note("".join(traceback.format_exception(error)))
        try:
            stage.heal(name)
        except (ClusterFailed, CannotBreak) as error:
            stage.stall(f"cannot be mended after {name}: {error}")

    def _act(self, stage: Stage, act: Act) -> None:
        stage.hold(act.after_s)
        if not stage.stopping.is_set():
            self._kinds[act.name]().run(stage, random.Random(act.seed), act.lasts_s)


async def conduct(
    stage: Stage,
    outcome: Outcome,
    play: Play,
    *,
    tell: Tell | None = None,
    ends_at: float = 0.0,
    watch_every_s: float = EVERY_S,
) -> None:
    """Workloads on a cluster that runs, what is done to it meanwhile, and the verdict on all of it."""
    history, cluster = outcome.history, stage.cluster
    history.members = tuple(node.id for node in cluster.nodes)
    watch = Watch(cluster, history, watch_every_s)
    telling = asyncio.create_task(_keep_telling(stage, tell, ends_at))
    outcome.began = time.monotonic()
    try:
        for workload in stage.workloads:
            await workload.start()
        await asyncio.to_thread(play, stage)
        for workload in stage.workloads:
            await workload.stop_sending()
        ends = await asyncio.to_thread(collect, stage)
        for workload in stage.workloads:
            for behind in await workload.read_to_the_end(ends, stage.heals_s):
                stage.stall(f"after everything was sent, {behind}")
    finally:
        stage.stopping.set()
        telling.cancel()
        for workload in stage.workloads:
            await workload.stop()
        watch.close()
    differing = await asyncio.to_thread(disagreements, cluster)
    watch.read_logs()
    outcome.seconds = time.monotonic() - outcome.began
    outcome.reigns, outcome.recoveries_s = watch.reigns, stage.recoveries_s
    began = time.monotonic()
    outcome.verdict = check(history)
    outcome.verdict.add("nodes differ", differing)
    for workload in stage.workloads:
        for kind, details in workload.checks().items():
            outcome.verdict.add(kind, details)
        outcome.totals.update(workload.totals())
        outcome.errors.update({name: dict(errors) for name, errors in workload.errors().items()})
    outcome.judged_s = time.monotonic() - began
    if not outcome.verdict.is_clean:
        outcome.logs = {node.id: node.log() for node in cluster.nodes}


def collect(stage: Stage) -> dict[int, int]:
    """What every node serves, once each is able to say that it has everything; and where places end."""
    history, nodes = stage.history, stage.cluster.nodes
    deadline = time.monotonic() + _END_S + stage.heals_s
    places: set[Place] = set()
    for node in nodes:
        try:
            places.update(patiently(deadline, partitions, node.http))
        except Refused as error:
            stage.stall(f"{node.id} does not name its topics in the end: {error}")
    for place in sorted(places):
        for node in nodes:
            try:
                history.add_stored(node.id, place, patiently(deadline, stored, node.http, place))
            except Refused as error:
                stage.stall(f"{node.id} does not serve {place} in the end: {error}")
                stage.note_groups()
    stage.note(f"collected {len(history.copies)} copies of {len(places)} partitions")
    return {copy.place: len(copy.content.offsets) for copy in history.copies}


async def _keep_telling(stage: Stage, tell: Tell | None, ends_at: float) -> None:
    before, before_at = 0, time.monotonic()
    while tell is not None:
        await asyncio.sleep(1.0)
        acknowledged, now = stage.history.acknowledged, time.monotonic()
        rate = (acknowledged - before) / (now - before_at)
        before, before_at = acknowledged, now
        doing = " + ".join(stage.current()) or "healthy"
        tell(Now(max(0.0, ends_at - now), acknowledged, rate, doing))


def plans(seed: int, names: Sequence[str], rounds: int, faults_per_run: int) -> list[Plan]:
    """Every fault so many times, each by itself, in runs of several faults that need the same disks and network."""
    dice = random.Random(seed)
    kinds: dict[tuple[DiskKind, bool, bool], list[str]] = {}
    for name in names:
        fault = FAULTS[name]
        kinds.setdefault((fault.disks, fault.has_network, fault.has_clocks), []).extend([name] * rounds)
    made = []
    for chosen in kinds.values():
        dice.shuffle(chosen)
        for start in range(0, len(chosen), faults_per_run):
            made.append(Plan(dice.randrange(1 << 32), tuple(chosen[start : start + faults_per_run])))
    dice.shuffle(made)
    return made

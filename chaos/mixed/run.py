"""One long run: a cluster, loads, episodes of trouble from a seed until the time is over, and the verdict."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from testkit.commands import CannotBreak

from chaos.asking import Refused, partitions
from chaos.checker import Verdict
from chaos.history import History, Place
from chaos.mixed.cluster import MixedCluster
from chaos.mixed.decided import disagreements
from chaos.mixed.judge import judge
from chaos.mixed.ledger import Ledger
from chaos.mixed.loads import Load
from chaos.mixed.registry import LOADS, TROUBLES, possible
from chaos.mixed.script import Act, Episode, episodes, must_go_on
from chaos.mixed.stage import HEALS_S, Bar, Stage
from chaos.mixed.troubles import Trouble
from chaos.mixed.watch import Reign, Watch
from holdfast.testing import ClusterFailed

# 30 minutes of this, with all the time in which nobody can publish, are more than a million messages.
RATE: Final = 1_500.0
_BEFORE_S: Final = 60.0
_END_S: Final = 120.0
_BEGUN_S: Final = 0.5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. The same plan gives the same episodes; how many of them there is time for is the machine's."""

    seed: int
    minutes: float
    nodes: int = 5
    rate: float = RATE
    loads: tuple[str, ...] = tuple(LOADS)
    # Nothing means all there are.
    troubles: tuple[str, ...] = ()
    heals_s: float = HEALS_S

    @property
    def replay(self) -> str:
        chosen = "" if self.rate == RATE else f" --rate {self.rate:g}"
        chosen += "" if self.loads == tuple(LOADS) else "".join(f" --load '{name}'" for name in self.loads)
        chosen += "".join(f" --trouble '{name}'" for name in self.troubles)
        return f"{sys.executable} -m chaos --minutes {self.minutes:g} --seed {self.seed} --nodes {self.nodes}{chosen}"


@dataclass(slots=True)
class Outcome:
    plan: Plan
    ledger: Ledger
    verdict: Verdict = field(default_factory=Verdict)
    began: float = 0.0
    seconds: float = 0.0
    judged_s: float = 0.0
    episodes: int = 0
    bars: list[Bar] = field(default_factory=list)
    reigns: dict[str, list[Reign]] = field(default_factory=dict)
    recoveries_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    errors: dict[str, dict[str, int]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def faults(self) -> Counter[str]:
        return Counter(bar.name for bar in self.bars)


@dataclass(frozen=True, slots=True)
class Now:
    """How far a run is, for whoever watches."""

    left_s: float
    acknowledged: int
    delivered: int
    rate: float
    episodes: int
    doing: str


Tell = Callable[[Now], None]


def run(plan: Plan, tell: Tell | None = None, keep: Path | None = None) -> Outcome:
    """Raises `CannotBreak` where this machine cannot do it, and `ClusterFailed` where no cluster comes up.

    The logs of the nodes of a run that is not clean are written to the directory `keep`.
    """
    kinds, skipped = possible({name: TROUBLES[name] for name in plan.troubles or TROUBLES})
    if not kinds:
        raise CannotBreak("; ".join(f"{name}: {reason}" for name, reason in skipped.items()))
    settings = {name: value for load in plan.loads for name, value in LOADS[load].settings.items()}
    with MixedCluster(plan.nodes, settings) as cluster:
        members = tuple(node.id for node in cluster.nodes)
        ledger = Ledger(members=members, rare=History(members=members))
        outcome = Outcome(plan, ledger, skipped=skipped)
        asyncio.run(_Run(plan, cluster, outcome, kinds, tell).run())
        if not outcome.verdict.is_clean and keep is not None:
            for node in cluster.nodes:
                (keep / f"{node.id}.log").write_text(node.log(), "utf-8")
    return outcome


class _Run:
    def __init__(
        self, plan: Plan, cluster: MixedCluster, outcome: Outcome, kinds: Mapping[str, type[Trouble]], tell: Tell | None
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._outcome = outcome
        self._kinds = kinds
        self._tell = tell
        ledger = outcome.ledger
        self._loads: list[Load] = [LOADS[name](cluster, ledger, str(plan.seed), plan.rate) for name in plan.loads]
        self._stage = Stage(cluster, ledger, self._loads, plan.heals_s, bars=outcome.bars, notes=outcome.notes)
        self._ends_at = 0.0

    async def run(self) -> None:
        outcome, stage = self._outcome, self._stage
        watch = Watch(self._cluster, outcome.ledger)
        telling = asyncio.create_task(self._keep_telling())
        outcome.began = time.monotonic()
        self._ends_at = outcome.began + self._plan.minutes * 60
        try:
            for load in self._loads:
                await load.start()
            waiting = [load.begin_waiting() for load in self._loads]
            for load, is_there in zip(self._loads, waiting, strict=True):
                await asyncio.to_thread(stage.wait, f"{load.name} begins", is_there, _BEFORE_S)
            await asyncio.to_thread(self._play)
            for load in self._loads:
                await load.stop_sending()
            ends = await asyncio.to_thread(self._collect)
            for load in self._loads:
                for behind in await load.read_to_the_end(ends, self._plan.heals_s):
                    stage.stall(f"after everything was sent, {behind}")
        finally:
            stage.stopping.set()
            telling.cancel()
            for load in self._loads:
                await load.stop()
            watch.close()
        differing = await asyncio.to_thread(disagreements, self._cluster)
        watch.read_logs()
        outcome.seconds = time.monotonic() - outcome.began
        outcome.reigns, outcome.recoveries_s = watch.reigns, stage.recoveries_s
        began = time.monotonic()
        outcome.verdict = judge(outcome.ledger)
        outcome.verdict.add("nodes differ", differing)
        for load in self._loads:
            for kind, details in load.checks().items():
                outcome.verdict.add(kind, details)
            outcome.totals.update(load.totals())
            outcome.errors.update({name: dict(errors) for name, errors in load.errors().items()})
        outcome.judged_s = time.monotonic() - began

    # --- trouble ---------------------------------------------------------------------------------------

    def _play(self) -> None:
        """In a thread: one episode after the other, as long as there is time."""
        stage = self._stage
        for episode in episodes(self._plan.seed, self._kinds, self._plan.nodes):
            if time.monotonic() + episode.health_s > self._ends_at:
                break
            stage.hold(episode.health_s)
            if stage.stopping.is_set():
                return
            self._outcome.episodes += 1
            self._episode(episode)
        stage.hold(max(0.0, self._ends_at - time.monotonic()))

    def _episode(self, episode: Episode) -> None:
        stage = self._stage
        name = f"episode {episode.number} ({episode.name})"
        must = must_go_on(episode.acts, self._kinds, self._plan.nodes)
        if must:
            stage.will_ask()
        with ThreadPoolExecutor(len(episode.acts), "chaos") as threads:
            acts = {act.name: threads.submit(self._act, act) for act in episode.acts}
            if must:
                # What was acknowledged before the last of them had begun says nothing.
                stage.hold(max(act.after_s for act in episode.acts) + _BEGUN_S)
                stage.must_go_on(name)
        for act_name, act in acts.items():
            if (error := act.exception()) is not None:
                stage.stall(f"{act_name} in {name}: {error!r}")
                stage.note("".join(traceback.format_exception(error)))
        try:
            stage.heal(name)
        except (ClusterFailed, CannotBreak) as error:
            stage.stall(f"cannot be mended after {name}: {error}")

    def _act(self, act: Act) -> None:
        self._stage.hold(act.after_s)
        if not self._stage.stopping.is_set():
            self._kinds[act.name]().run(self._stage, random.Random(act.seed), act.lasts_s)

    # --- the end ---------------------------------------------------------------------------------------

    def _collect(self) -> dict[int, int]:
        """What every node serves, once each is able to say that it has everything; and where places end."""
        stage, ledger = self._stage, self._outcome.ledger
        deadline = time.monotonic() + _END_S + self._plan.heals_s
        places: set[Place] = set()
        for node in self._cluster.nodes:
            places.update(self._patiently(f"{node.id} names its topics", deadline, partitions, node.http) or ())
        for place in sorted(places):
            for node in self._cluster.nodes:
                what = f"{node.id} serves {place} after everything"
                self._patiently(what, deadline, ledger.collect, node.id, node.http, place)
        stage.note(f"collected {len(ledger.copies)} copies of {len(places)} partitions")
        return {copy.place: len(copy.content.offsets) for copy in ledger.copies}

    def _patiently(self, what: str, deadline: float, function: Callable[..., T], *args: object) -> T | None:
        while True:
            try:
                return function(*args)
            except Refused as error:
                if time.monotonic() > deadline:
                    self._stage.stall(f"not in time: {what}: {error}")
                    return None
                time.sleep(0.1)

    # --- telling ---------------------------------------------------------------------------------------

    async def _keep_telling(self) -> None:
        before, before_at = 0, time.monotonic()
        while self._tell is not None:
            await asyncio.sleep(1.0)
            ledger, now = self._outcome.ledger, time.monotonic()
            acknowledged = ledger.acknowledged
            rate = (acknowledged - before) / (now - before_at)
            before, before_at = acknowledged, now
            doing = " + ".join(self._stage.current()) or "healthy"
            left_s = max(0.0, self._ends_at - now)
            self._tell(Now(left_s, acknowledged, ledger.delivered, rate, self._outcome.episodes, doing))

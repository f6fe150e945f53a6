"""Many seeds of a simulator with what happened in them, or one with its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from simulation.outcome import Outcome
from simulation.simulators import Simulator


def run_one(simulator: Simulator, seed: int, profile: str | None, *, is_traced: bool) -> int:
    outcome = simulator.run_seed(seed, profile=profile, is_traced=is_traced)
    for line in outcome.trace:
        print(line)
    print(f"seed {seed} ({outcome.profile}) is clean" if outcome.is_clean else simulator.described(outcome))
    return 0 if outcome.is_clean else 1


def run_many(simulator: Simulator, seeds: range, profile: str | None, jobs: int) -> int:
    console = Console()
    totals: Counter[str] = Counter()
    broken = 0
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for outcome in _outcomes(simulator, seeds, profile, jobs):
            totals += outcome.counts
            progress.advance(task)
            if not outcome.is_clean:
                broken += 1
                console.print(simulator.described(outcome), markup=False, highlight=False)
    console.print(_table(simulator, len(seeds), broken, totals))
    return 1 if broken else 0


def _outcomes(simulator: Simulator, seeds: range, profile: str | None, jobs: int) -> Iterator[Outcome]:
    run_seed = partial(simulator.run_seed, profile=profile)
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=8)


def _table(simulator: Simulator, seeds: int, broken: int, totals: Counter[str]) -> Table:
    table = Table("what", "how often")
    table.columns[1].justify = "right"
    table.add_row("seeds", f"{seeds:,}")
    table.add_row("broken", f"{broken:,}")
    for name in [*simulator.figures, *sorted(set(totals) - set(simulator.figures))]:
        table.add_row(name, f"{totals[name]:,}")
    return table

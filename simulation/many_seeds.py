"""The command line every simulator has: many seeds with what happened in them, or one with its trace."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from simulation.outcome import Outcome


class RunSeed(Protocol):
    def __call__(self, seed: int, *, profile: str | None = None, is_traced: bool = False) -> Outcome: ...


class Simulator(NamedTuple):
    """What to run, under which name, and what may go wrong in it."""

    module: str
    run_seed: RunSeed
    profiles: Iterable[str]
    # Shown first, also where they are zero; everything else that was counted follows.
    figures: Sequence[str] = ()

    def described(self, outcome: Outcome) -> str:
        """What broke, and how to see it happen."""
        return (
            f"seed {outcome.seed} ({outcome.profile}) broke: {outcome.invariant}\n"
            f"    {outcome.detail}\n"
            f"    replay: python -m {self.module} --seed {outcome.seed} --profile {outcome.profile} --trace"
        )


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


def main(simulator: Simulator, description: str | None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {simulator.module}", description=description)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument("--profile", choices=list(simulator.profiles), help="what goes wrong; else each seed chooses")
    options = parser.parse_args()
    if options.seed is not None:
        return run_one(simulator, options.seed, options.profile, is_traced=options.trace)
    seeds = range(options.start, options.start + options.seeds)
    return run_many(simulator, seeds, options.profile, options.jobs)


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

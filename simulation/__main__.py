"""Run many seeds, or one of them with its trace: `python -m simulation --seeds 2000`, `--seed 7 --trace`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import get_context

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from simulation.run import Outcome, run_seed

_FIGURES = ("steps", "elections", "crashes", "messages acknowledged", "reads", "changes of members", "installations")


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=8)


def described(outcome: Outcome) -> str:
    """What broke, and how to see it happen."""
    return (
        f"seed {outcome.seed} ({outcome.profile}) broke: {outcome.invariant}\n"
        f"    {outcome.detail}\n"
        f"    replay: python -m simulation --seed {outcome.seed} --trace"
    )


def run_many(start: int, seeds: int, jobs: int) -> int:
    console = Console()
    totals: Counter[str] = Counter()
    broken: list[Outcome] = []
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=seeds)
        for outcome in outcomes(range(start, start + seeds), jobs):
            totals += outcome.counts
            progress.advance(task)
            if not outcome.is_clean:
                broken.append(outcome)
                console.print(described(outcome), markup=False, highlight=False)
    console.print(_table(seeds, totals, broken))
    return 1 if broken else 0


def _table(seeds: int, totals: Counter[str], broken: list[Outcome]) -> Table:
    table = Table("what", "how often")
    table.columns[1].justify = "right"
    table.add_row("seeds", f"{seeds:,}")
    table.add_row("broken", f"{len(broken):,}")
    shown = [*_FIGURES, *sorted(set(totals) - set(_FIGURES))]
    for name in shown:
        table.add_row(name, f"{totals[name]:,}")
    return table


def run_one(seed: int, *, is_traced: bool) -> int:
    outcome = run_seed(seed, is_traced=is_traced)
    for line in outcome.trace:
        print(line)
    print(f"seed {seed} ({outcome.profile}) is clean" if outcome.is_clean else described(outcome))
    return 0 if outcome.is_clean else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    options = parser.parse_args()
    if options.seed is not None:
        return run_one(options.seed, is_traced=options.trace)
    return run_many(options.start, options.seeds, options.jobs)


if __name__ == "__main__":
    sys.exit(main())

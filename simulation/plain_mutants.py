"""Plant bugs of a plain pair, one at a time, and see whether its simulator finds them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from simulation.mutants import _MutantFinder, mutated_sources
from simulation.plain_planted import PLAIN_MUTANTS, PROFILE_OF
from simulation.planted import Mutant

SEEDS_MAX = 600
_ROOT = Path(__file__).parents[1]
_CAUGHT, _SURVIVED = 10, 0


def hunt(mutant: Mutant, start: int, seeds: int) -> int:
    """In a process of its own: run seeds until one of them breaks something."""
    sys.meta_path.insert(0, _MutantFinder(mutated_sources(mutant)))
    from simulation.plain_run import run_seed

    for seed in range(start, start + seeds):
        outcome = run_seed(seed, profile=PROFILE_OF.get(mutant.name))
        if not outcome.is_clean:
            print(f"{seed}\t{outcome.invariant}")
            return _CAUGHT
    return _SURVIVED


class Verdict:
    """What became of one mutant: the seed that found it, and what that broke."""

    def __init__(self, mutant: Mutant, start: int, seeds: int) -> None:
        self.mutant = mutant
        places = ("--start", str(start), "--seeds", str(seeds))
        command = [sys.executable, "-m", "simulation.plain_mutants", "--hunt", mutant.name, *places]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if done.returncode not in (_CAUGHT, _SURVIVED):
            raise RuntimeError(f"{mutant.name}: {done.stderr}")
        self.is_caught = done.returncode == _CAUGHT
        self.seed, self.invariant = [*done.stdout.strip().split("\t"), ""][:2]

    @property
    def described(self) -> str:
        return f"{self.invariant} (seed {self.seed})" if self.is_caught else "NOT FOUND"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.plain_mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many to try at most")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--only", nargs="*", help="names of mutants")
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hunt is not None:
        mutant = next(mutant for mutant in PLAIN_MUTANTS if mutant.name == options.hunt)
        return hunt(mutant, options.start, options.seeds)
    survivors = 0
    for mutant in PLAIN_MUTANTS:
        if not options.only or mutant.name in options.only:
            verdict = Verdict(mutant, options.start, options.seeds)
            survivors += not verdict.is_caught
            print(f"{mutant.name}: {verdict.described}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

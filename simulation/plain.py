"""Run many seeds of a plain pair, or one with its trace: `python -m simulation.plain --seeds 500`, `--seed 7`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from simulation.plain_run import PROFILES, run_seed
from simulation.run import Outcome


def described(outcome: Outcome) -> str:
    """What broke, and how to see it happen."""
    return (
        f"seed {outcome.seed} ({outcome.profile}) broke: {outcome.invariant}\n"
        f"    {outcome.detail}\n"
        f"    replay: python -m simulation.plain --seed {outcome.seed} --profile {outcome.profile} --trace"
    )


def run_many(start: int, seeds: int, profile: str | None = None) -> int:
    totals: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for seed in range(start, start + seeds):
        outcome = run_seed(seed, profile=profile)
        totals += outcome.counts
        if not outcome.is_clean:
            broken[outcome.invariant] += 1
            print(described(outcome), flush=True)
    for name, count in sorted(totals.items()):
        print(f"{count:>10,}  {name}")
    print(f"{seeds:>10,}  seeds, {sum(broken.values())} of them broken{f': {dict(broken)}' if broken else ''}")
    return 1 if broken else 0


def run_one(seed: int, profile: str | None = None, *, is_traced: bool) -> int:
    outcome = run_seed(seed, profile=profile, is_traced=is_traced)
    for line in outcome.trace:
        print(line)
    print(f"seed {seed} ({outcome.profile}) is clean" if outcome.is_clean else described(outcome))
    return 0 if outcome.is_clean else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.plain", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument("--profile", choices=list(PROFILES), help="what goes wrong; else each seed chooses")
    options = parser.parse_args()
    if options.seed is not None:
        return run_one(options.seed, options.profile, is_traced=options.trace)
    return run_many(options.start, options.seeds, options.profile)


if __name__ == "__main__":
    sys.exit(main())

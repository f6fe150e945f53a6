"""Run many seeds of a simulator, one seed with its trace, or plant bugs and see whether the simulator finds them.

Examples: `python -m simulation --seeds 2000`, `python -m simulation pair --seed 7 --trace`,
`python -m simulation plain --mutants`.
"""

from __future__ import annotations

import argparse
import sys

from simulation.hunting import hunt_here, hunt_many
from simulation.simulators import SIMULATORS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("simulator", nargs="?", choices=list(SIMULATORS), default="cluster")
    parser.add_argument("--seeds", type=int, help="how many; with --mutants: how many to try for each at most")
    parser.add_argument("--start", type=int, help="the first seed; with --mutants: instead of the recorded seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument("--profile", help="what goes wrong; by default each seed chooses")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="plant these bugs, or all")
    parser.add_argument("--record", action="store_true", help="with --mutants: record the seeds that found them")
    parser.add_argument("--hunt", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    simulator = SIMULATORS[options.simulator]
    if options.hunt is not None:
        return hunt_here(simulator, simulator.mutant(options.hunt), range(options.start, options.start + options.seeds))
    if options.mutants is not None:
        unknown = set(options.mutants) - {mutant.name for mutant in simulator.mutants}
        if unknown:
            parser.error(f"no such mutants of {simulator.name}: {sorted(unknown)}")
        chosen = [mutant for mutant in simulator.mutants if not options.mutants or mutant.name in options.mutants]
        return hunt_many(simulator, chosen, options.start, options.seeds, jobs=options.jobs, is_recorded=options.record)
    # Not needed to find planted bugs, which happens in a process for each of them.
    from simulation.many_seeds import run_many, run_one

    if options.profile is not None and options.profile not in simulator.profiles:
        parser.error(f"profiles of {simulator.name}: {', '.join(simulator.profiles)}")
    if options.seed is not None:
        return run_one(simulator, options.seed, options.profile, is_traced=options.trace)
    start = options.start or 0
    seeds = range(start, start + (2000 if options.seeds is None else options.seeds))
    return run_many(simulator, seeds, options.profile, options.jobs)


if __name__ == "__main__":
    sys.exit(main())

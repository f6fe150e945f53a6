"""Run many seeds of a pair, or one with its trace: `python -m simulation.pair --seeds 500`, `--seed 7 --trace`."""

from __future__ import annotations

import sys

from simulation.many_seeds import Simulator, main
from simulation.pair_faults import PROFILES
from simulation.pair_run import run_seed

SIMULATOR = Simulator("simulation.pair", run_seed, PROFILES)

if __name__ == "__main__":
    sys.exit(main(SIMULATOR, __doc__))

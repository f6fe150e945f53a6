"""Run many seeds of a plain pair, or one with its trace: `python -m simulation.plain --seeds 500`, `--seed 7`."""

from __future__ import annotations

import sys

from simulation.many_seeds import Simulator, main
from simulation.plain_run import PROFILES, run_seed

SIMULATOR = Simulator("simulation.plain", run_seed, PROFILES)

if __name__ == "__main__":
    sys.exit(main(SIMULATOR, __doc__))

"""Run many seeds, or one of them with its trace: `python -m simulation --seeds 2000`, `--seed 7 --trace`."""

from __future__ import annotations

import sys

from simulation.faults import PROFILES
from simulation.many_seeds import Simulator, main
from simulation.run import run_seed

SIMULATOR = Simulator(
    "simulation",
    run_seed,
    PROFILES,
    ("steps", "elections", "crashes", "messages acknowledged", "reads", "changes of members", "installations"),
)

if __name__ == "__main__":
    sys.exit(main(SIMULATOR, __doc__))

"""Plant bugs, one at a time, and see whether the simulator finds them: `python -m simulation.mutants`."""

from __future__ import annotations

import sys

from simulation.hunting import Hunt, main
from simulation.planted import COMING_AND_GOING, MUTANTS

HUNT = Hunt(
    "simulation.mutants",
    "simulation.run",
    MUTANTS,
    seeds_max=400,
    profile_of={mutant.name: "members" for mutant in COMING_AND_GOING},
    start_of={"out-on-old-evidence": 300},
)

if __name__ == "__main__":
    sys.exit(main(HUNT, __doc__))

"""Plant bugs of a pair, one at a time, and see whether its simulator finds them."""

from __future__ import annotations

import sys

from simulation.hunting import Hunt, main
from simulation.pair_planted import PAIR_MUTANTS, PROFILE_OF, START_OF

HUNT = Hunt(
    "simulation.pair_mutants",
    "simulation.pair_run",
    PAIR_MUTANTS,
    seeds_max=1500,
    profile_of=PROFILE_OF,
    start_of=START_OF,
)

if __name__ == "__main__":
    sys.exit(main(HUNT, __doc__))

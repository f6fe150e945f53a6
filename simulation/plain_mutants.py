"""Plant bugs of a plain pair, one at a time, and see whether its simulator finds them."""

from __future__ import annotations

import sys

from simulation.hunting import Hunt, main
from simulation.plain_planted import PLAIN_MUTANTS, PROFILE_OF, START_OF

HUNT = Hunt(
    "simulation.plain_mutants",
    "simulation.plain_run",
    PLAIN_MUTANTS,
    seeds_max=600,
    profile_of=PROFILE_OF,
    start_of=START_OF,
)

if __name__ == "__main__":
    sys.exit(main(HUNT, __doc__))

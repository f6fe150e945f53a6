"""A cluster keeps its promises through whatever two thousand seeds do to it."""

from __future__ import annotations

import pytest
from simulation.__main__ import SIMULATOR
from simulation.run import run_seed

SEEDS = 2000
CHUNK = 50


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_cluster_keeps_its_promises(start: int) -> None:
    broken = [outcome for seed in range(start, start + CHUNK) if not (outcome := run_seed(seed)).is_clean]
    assert not broken, "\n".join(SIMULATOR.described(outcome) for outcome in broken)

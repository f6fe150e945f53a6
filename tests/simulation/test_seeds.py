"""A cluster keeps its promises through whatever two thousand seeds do to it."""

from __future__ import annotations

import pytest
from simulation.__main__ import SIMULATOR
from simulation.run import run_seed

SEEDS = 2000
CHUNK = 50

MEMBERS_SEEDS = 200


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_cluster_keeps_its_promises(start: int) -> None:
    broken = [outcome for seed in range(start, start + CHUNK) if not (outcome := run_seed(seed)).is_clean]
    assert not broken, "\n".join(SIMULATOR.described(outcome) for outcome in broken)


@pytest.mark.parametrize("start", range(0, MEMBERS_SEEDS, CHUNK))
def test_cluster_keeps_its_promises_while_nodes_come_and_go(start: int) -> None:
    outcomes = [run_seed(seed, profile="members") for seed in range(start, start + CHUNK)]
    broken = [outcome for outcome in outcomes if not outcome.is_clean]
    assert not broken, "\n".join(SIMULATOR.described(outcome) for outcome in broken)

"""A seed is a whole run: whoever has it sees the same thing happen, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.faults import PROFILES
from simulation.run import run_seed

ROOT = Path(__file__).parents[2]


def trace_in_another_process(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "simulation", "--seed", str(seed), "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("seed", range(4))
def test_two_runs_of_one_seed_are_the_same(seed: int) -> None:
    first = trace_in_another_process(seed, "1")
    assert len(first.splitlines()) > 100
    assert first == trace_in_another_process(seed, "2")


def test_tracing_changes_nothing() -> None:
    assert run_seed(11, is_traced=True).counts == run_seed(11).counts


def test_faults_really_happen() -> None:
    kinds = {kind for kinds in PROFILES.values() for kind in kinds}
    expected = {"logs cut", "installations", "unsynced writes lost", "resends recognised", "groups put to sleep"}
    missing = expected | {f"fault: {kind}" for kind in kinds}
    for seed in range(150):
        missing.difference_update(+run_seed(seed).counts)
        if not missing:
            break
    assert missing == set()

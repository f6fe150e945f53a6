"""A seed is a whole run: the same seed does the same in any process, and every kind of fault is brought about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.simulators import CLUSTER, PAIR, PLAIN, SIMULATORS, Simulator

from simulation import faults, pair_faults, plain_run

ROOT = Path(__file__).parents[2]


def trace_in_another_process(simulator: Simulator, seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "simulation", simulator.name, "--seed", str(seed), "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("simulator", "seed"), [*((CLUSTER, seed) for seed in range(4)), (PAIR, 11), (PLAIN, 3)], ids=str
)
def test_two_runs_of_one_seed_are_the_same(simulator: Simulator, seed: int) -> None:
    first = trace_in_another_process(simulator, seed, "1")
    assert len(first.splitlines()) > 50
    assert first == trace_in_another_process(simulator, seed, "2")


@pytest.mark.parametrize("simulator", SIMULATORS.values(), ids=str)
def test_tracing_changes_nothing(simulator: Simulator) -> None:
    assert simulator.run_seed(11, is_traced=True).counts == simulator.run_seed(11).counts


def missing_after(simulator: Simulator, expected: set[str], seeds: int, profile: str | None = None) -> set[str]:
    missing = set(expected)
    for seed in range(seeds):
        missing.difference_update(+simulator.run_seed(seed, profile=profile).counts)
        if not missing:
            break
    return missing


def test_faults_really_happen_to_the_cluster() -> None:
    kinds = {f"fault: {kind}" for kinds in faults.PROFILES.values() for kind in kinds}
    effects = {"logs cut", "installations", "unsynced writes lost", "resends recognised", "groups put to sleep"}
    assert missing_after(CLUSTER, kinds | effects, seeds=150) == set()


def test_faults_really_happen_to_the_pair() -> None:
    kinds = {f"fault: {kind}" for kinds in pair_faults.PROFILES.values() for kind in kinds}
    effects = {"take-overs", "went alone", "replaced", "messages given", "begun anew", "resends recognised"}
    assert missing_after(PAIR, kinds | effects, seeds=60, profile="everything") == set()


def test_faults_really_happen_to_the_plain_pair() -> None:
    effects = {"took over", "gave way", "given", "acknowledged", "delivered"}
    kinds = set(plain_run.PROFILES["everything"])
    assert missing_after(PLAIN, kinds | effects, seeds=8, profile="everything") == set()

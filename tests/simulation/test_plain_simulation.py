"""A plain pair keeps its promises through whatever some seeds do to it, and bugs that are planted do not pass."""

from __future__ import annotations

import pytest
from simulation.hunting import Verdict, mutated_sources
from simulation.plain import SIMULATOR
from simulation.plain_mutants import HUNT
from simulation.plain_planted import PLAIN_MUTANTS, PROFILE_OF, START_OF
from simulation.plain_run import PROFILES, run_seed
from simulation.planted import Mutant

SEEDS = 48
CHUNK = 12


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_plain_pair_keeps_its_promises(start: int) -> None:
    broken = [outcome for seed in range(start, start + CHUNK) if not (outcome := run_seed(seed)).is_clean]
    assert not broken, "\n".join(SIMULATOR.described(outcome) for outcome in broken)


def test_two_runs_of_one_seed_are_the_same_and_tracing_changes_nothing() -> None:
    first, second = run_seed(3, is_traced=True), run_seed(3, is_traced=True)
    assert first.trace == second.trace
    assert first.counts == run_seed(3).counts


def test_faults_really_happen() -> None:
    counts = run_seed(0, profile="everything").counts
    for seed in range(1, 8):
        counts += run_seed(seed, profile="everything").counts
    expected = (*PROFILES["everything"], "took over", "gave way", "given", "acknowledged", "delivered")
    assert [what for what in expected if not counts[what]] == []


def test_names_are_unique() -> None:
    names = {mutant.name for mutant in PLAIN_MUTANTS}
    assert len(names) == len(PLAIN_MUTANTS) >= 12
    assert {*PROFILE_OF, *START_OF} <= names


@pytest.mark.parametrize("mutant", PLAIN_MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    for source in mutated_sources(mutant).values():
        compile(source, mutant.name, "exec")
    assert Verdict(HUNT, mutant, seeds=120).is_caught

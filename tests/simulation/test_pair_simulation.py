"""A pair keeps its promises through whatever a few hundred seeds do to it, and bugs that are planted do not pass."""

from __future__ import annotations

import pytest
from simulation.hunting import Verdict, mutated_sources
from simulation.pair import SIMULATOR
from simulation.pair_faults import PROFILES
from simulation.pair_mutants import HUNT
from simulation.pair_planted import PAIR_MUTANTS, PROFILE_OF, START_OF
from simulation.pair_run import run_seed
from simulation.planted import Mutant

SEEDS = 400
CHUNK = 50


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_pair_keeps_its_promises(start: int) -> None:
    broken = [outcome for seed in range(start, start + CHUNK) if not (outcome := run_seed(seed)).is_clean]
    assert not broken, "\n".join(SIMULATOR.described(outcome) for outcome in broken)


def test_two_runs_of_one_seed_are_the_same_and_tracing_changes_nothing() -> None:
    first, second = run_seed(11, is_traced=True), run_seed(11, is_traced=True)
    assert first.trace == second.trace and len(first.trace) > 100
    assert first.counts == run_seed(11).counts


def test_faults_really_happen() -> None:
    kinds = {kind for kinds in PROFILES.values() for kind in kinds}
    expected = {"take-overs", "went alone", "replaced", "messages given", "begun anew", "resends recognised"}
    missing = expected | {f"fault: {kind}" for kind in kinds}
    for seed in range(60):
        missing.difference_update(+run_seed(seed, profile="everything" if seed else None).counts)
        if not missing:
            break
    assert missing == set()


@pytest.mark.parametrize("mutant", PAIR_MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_text_is_there_exactly_once(mutant: Mutant) -> None:
    for source in mutated_sources(mutant).values():
        compile(source, mutant.name, "exec")


def test_names_are_unique() -> None:
    names = {mutant.name for mutant in PAIR_MUTANTS}
    assert len(names) == len(PAIR_MUTANTS) >= 12
    assert {*PROFILE_OF, *START_OF} <= names


@pytest.mark.parametrize("mutant", PAIR_MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert Verdict(HUNT, mutant, seeds=800).is_caught

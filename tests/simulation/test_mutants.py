"""The simulators find bugs: each that is planted here breaks something."""

from __future__ import annotations

import warnings

import pytest
from simulation.hunting import hunt, recorded_seeds
from simulation.planted import Mutant
from simulation.simulators import SIMULATORS, Simulator

RECORDED = recorded_seeds()
PLANTED = [(simulator, mutant) for simulator in SIMULATORS.values() for mutant in simulator.mutants]


# A stale seed is reported in the summary and is no failure: the bug is still found.
@pytest.mark.filterwarnings("default:seed:UserWarning")
@pytest.mark.parametrize(("simulator", "mutant"), PLANTED, ids=lambda each: each.name)
def test_planted_bug_is_found(simulator: Simulator, mutant: Mutant) -> None:
    verdict = hunt(simulator, mutant)
    assert verdict.is_caught, verdict
    if verdict.is_stale:
        warnings.warn(
            f"seed {verdict.first_seed} of {simulator.name} finds {mutant.name} no longer, {verdict.seed} does: "
            f"run `python -m simulation {simulator.name} --mutants {mutant.name} --record`",
            stacklevel=1,
        )


def test_names_are_unique_and_all_have_a_recorded_seed() -> None:
    assert all(len({mutant.name for mutant in each.mutants}) == len(each.mutants) for each in SIMULATORS.values())
    planted = {simulator.name: {mutant.name for mutant in simulator.mutants} for simulator in SIMULATORS.values()}
    assert {name: set(seeds) for name, seeds in RECORDED.items()} == planted


@pytest.mark.night
@pytest.mark.parametrize("simulator", SIMULATORS.values(), ids=str)
def test_recorded_seeds_break_nothing_without_the_bug(simulator: Simulator) -> None:
    seeds = {mutant: RECORDED[simulator.name].get(mutant.name) for mutant in simulator.mutants}
    outcomes = [simulator.run_seed(seed, profile=mutant.profile) for mutant, seed in seeds.items() if seed is not None]
    assert "\n".join(simulator.described(outcome) for outcome in outcomes if not outcome.is_clean) == ""

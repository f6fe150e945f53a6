"""The simulator finds bugs: some of those it should are planted here, all of them by `make sim-mutants`."""

from __future__ import annotations

import pytest
from simulation.hunting import Verdict, mutated_sources
from simulation.mutants import HUNT
from simulation.planted import MUTANTS, Mutant

QUICKLY_FOUND = (
    "ack-before-commit",
    "vote-before-sync",
    "match-before-term",
    "cursor-goes-back",
    "wrong-majority",
    "votes-with-an-empty-log",
    "gone-before-it-left",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_text_is_there_exactly_once(mutant: Mutant) -> None:
    for source in mutated_sources(mutant).values():
        compile(source, mutant.name, "exec")


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_planted_bug_is_found(name: str) -> None:
    assert Verdict(HUNT, HUNT.mutant(name), seeds=60).is_caught

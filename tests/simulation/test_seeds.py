"""A cluster, a pair and a plain pair keep their promises in simulated disasters.

By day some seeds that are always the same and some that are new each day; `HOLDFAST_LONG=1` runs all of them.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from simulation.simulators import CLUSTER, PAIR, PLAIN, Simulator
from testkit.sizes import scaled

CHUNK = 25


def chunks(simulator: Simulator, seeds: int, profile: str = "") -> list[tuple[Simulator, str, int]]:
    """Without a profile each seed chooses one."""
    return [(simulator, profile, start) for start in range(0, seeds, CHUNK)]


def assert_promises_are_kept(simulator: Simulator, profile: str, seeds: range) -> None:
    outcomes = [simulator.run_seed(seed, profile=profile or None) for seed in seeds]
    assert "\n".join(simulator.described(outcome) for outcome in outcomes if not outcome.is_clean) == ""


@pytest.mark.parametrize(
    ("simulator", "profile", "start"),
    [
        *chunks(CLUSTER, scaled(300, 2000)),
        *chunks(CLUSTER, scaled(50, 200), profile="members"),
        *chunks(PAIR, scaled(75, 2000)),
        *chunks(PLAIN, scaled(25, 2000)),
    ],
    ids=str,
)
def test_promises_are_kept(simulator: Simulator, profile: str, start: int) -> None:
    assert_promises_are_kept(simulator, profile, range(start, start + CHUNK))


@pytest.mark.parametrize(
    ("simulator", "profile", "start"),
    [*chunks(CLUSTER, 100), *chunks(CLUSTER, 25, profile="members"), *chunks(PAIR, 25), *chunks(PLAIN, 25)],
    ids=str,
)
def test_promises_are_kept_with_the_seeds_of_today(simulator: Simulator, profile: str, start: int) -> None:
    first = datetime.now(UTC).date().toordinal() * 1000 + start
    assert_promises_are_kept(simulator, profile, range(first, first + CHUNK))

"""What came of one seed."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from simulation.world import Violation, World


class Outcome(NamedTuple):
    seed: int
    profile: str
    counts: Counter[str]
    invariant: str
    detail: str
    trace: list[str]

    @property
    def is_clean(self) -> bool:
        return not self.invariant


def outcome_of(world: World, seed: int, profile: str, live: Callable[[World, str], None]) -> Outcome:
    """Live through the whole of it; a broken invariant or a failed assertion of the code is in the outcome."""
    world.counts[f"profile: {profile}"] += 1
    invariant = detail = ""
    try:
        live(world, profile)
    except Violation as violation:
        invariant, detail = violation.invariant, violation.detail
    except Exception as error:  # noqa: BLE001 - a crash of the code under test is what we are looking for
        invariant, detail = f"the code's own assertions ({type(error).__name__})", traceback.format_exc()
    if invariant and world.is_traced:
        world.note(f"BROKEN {invariant}: {detail}")
    return Outcome(seed, profile, world.counts, invariant, detail, world.trace)

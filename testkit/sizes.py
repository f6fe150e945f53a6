"""How much is tried: little by default, much with HOLDFAST_LONG=1. Dice are rolled from a printed seed.

The long form takes half an hour: `HOLDFAST_LONG=1 pytest --timeout 1800 tests/storage tests/crash tests/text`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

LONG = os.environ.get("HOLDFAST_LONG") == "1"


def examples(few: int, many: int) -> settings:
    """Hypothesis settings: no deadline, because a shared machine stalls when it likes."""
    return settings(
        max_examples=many if LONG else few,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def scaled(few: int, many: int) -> int:
    return many if LONG else few


def dice(name: str) -> random.Random:
    """Dice whose seed is printed, so that a failure can be repeated: HOLDFAST_SEED=<seed>."""
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"{name}: HOLDFAST_SEED={seed}")
    return random.Random(f"{seed}/{name}")


def in_memory() -> Path | None:
    """A directory for files that need no disk, only speed; `None` is the usual place for temporary files."""
    place = Path("/dev/shm")
    return place if os.access(place, os.W_OK) else None

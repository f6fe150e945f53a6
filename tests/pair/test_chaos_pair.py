"""A few failovers in a row under load, with dice, and a split: `make chaos-pair` does more, and longer ones."""

from __future__ import annotations

import asyncio

from chaos.pair import PER_SIDE, run
from testkit.sizes import dice, scaled


def test_nothing_is_lost_or_repeated_over_failovers_in_a_row() -> None:
    failovers, per_side = scaled(3, 200), scaled(1_000, PER_SIDE)
    found = asyncio.run(run(failovers, dice("pair").randrange(1 << 31), iter, splits=1, per_side=per_side))
    assert (found["lost"], found["duplicated"]) == (0, 0), found
    assert found["acknowledged"] == found["received"]
    assert int(str(found["acknowledged"])) > 100

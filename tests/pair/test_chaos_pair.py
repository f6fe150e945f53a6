"""A few failovers in a row under load, with dice: `make chaos-pair` does two hundred."""

from __future__ import annotations

import asyncio

from chaos.pair import run

from tests.support.sizes import dice, scaled


def test_nothing_is_lost_or_repeated_over_failovers_in_a_row() -> None:
    found = asyncio.run(run(scaled(3, 200), dice("pair").randrange(1 << 31), iter))
    assert (found["lost"], found["duplicated"]) == (0, 0), found
    assert found["acknowledged"] == found["received"]
    assert int(str(found["acknowledged"])) > 100

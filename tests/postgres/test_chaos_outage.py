"""A few outages in a row under load, with dice: `make chaos-outage` does a hundred."""

from __future__ import annotations

import asyncio

import pytest
from chaos.outage import run
from testkit.sizes import dice, scaled


@pytest.mark.parametrize("brokers", [1, 2, 3])
def test_nothing_is_lost_repeated_or_out_of_order_over_outages_in_a_row(brokers: int) -> None:
    found = asyncio.run(run(scaled(4, 100), dice("outage").randrange(1 << 31), iter, brokers))
    assert not found["examples"], found
    assert found["waiting"] == 0, found
    assert int(str(found["acknowledged"])) > 100

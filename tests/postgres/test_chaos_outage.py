"""A few outages in a row under load, with dice: `make chaos-outage` does a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.campaigns.outage import run
from testkit import records
from testkit.sizes import dice, scaled

from tests.spark import audit_by_hand


@pytest.mark.parametrize(
    "brokers", [pytest.param(1, marks=pytest.mark.night), 2, pytest.param(3, marks=pytest.mark.night)]
)
def test_nothing_is_lost_repeated_or_out_of_order_over_outages_in_a_row(brokers: int, tmp_path: Path) -> None:
    outcome = run(scaled(4, 100), dice("outage").randrange(1 << 31), brokers)
    assert not outcome.verdict.examples, (outcome.replay, outcome.verdict.examples, outcome.notes, outcome.logs)
    assert outcome.history.acknowledged > 100
    audit = audit_by_hand.verdict(*map(records.read, records.write(outcome.history, tmp_path)))
    assert (audit["lost"], audit["duplicated"], audit["phantom"], audit["out_of_order"]) == (0, 0, 0, 0)
    assert audit["acknowledged"] == outcome.history.acknowledged

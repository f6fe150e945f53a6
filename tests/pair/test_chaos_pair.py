"""A few failovers in a row under load, with dice, and a split: `make chaos-pair` does more, and longer ones."""

from __future__ import annotations

from pathlib import Path

from chaos.campaigns.pair import PER_SIDE, run
from testkit import records
from testkit.sizes import dice, scaled

from tests.spark import audit_by_hand


def test_nothing_is_lost_or_repeated_over_failovers_in_a_row(tmp_path: Path) -> None:
    failovers, per_side = scaled(3, 200), scaled(1_000, PER_SIDE)
    outcome = run(failovers, dice("pair").randrange(1 << 31), splits=1, per_side=per_side)
    assert not outcome.verdict.examples, (outcome.replay, outcome.verdict.examples, outcome.notes, outcome.logs)
    assert outcome.history.acknowledged > 100
    assert outcome.faults.total() == failovers + 1
    sent, received = map(records.read, records.write(outcome.history, tmp_path))
    of_subscriber = audit_by_hand.verdict(sent, [line for line in received if line["receiver"] == "reader"])
    assert (of_subscriber["lost"], of_subscriber["duplicated"], of_subscriber["phantom"]) == (0, 0, 0)
    assert of_subscriber["acknowledged"] == outcome.history.acknowledged

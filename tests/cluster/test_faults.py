"""A real cluster under load, broken in every way there is: nothing acknowledged is lost, nobody is told a lie.

This is the short form: every fault once, a few of them in one run, and one run of faults that overlap. `make chaos` is
the long one.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from chaos import records
from chaos.checker import CHECKS
from chaos.mixed import judge, picture
from chaos.mixed import run as mixed
from chaos.run import ALL, Plan, run
from testkit.commands import CannotBreak
from testkit.sizes import dice

from tests.spark import audit_by_hand

# Faults of one run need the same kind of disks. Runs are about equally long, for the sake of many cores.
RUNS = {
    "nodes are killed": ("kill the leader", "kill any node", "pause one, kill another"),
    "majorities are killed": ("kill a majority", "kill all at once", "a minority refuses"),
    "nodes pause": ("pause the leader", "pause a follower", "hand leadership over"),
    "nodes leave in order, and in none": ("rolling restart", "storm"),
    "disks are lost or damaged": ("lost disk", "flipped byte", "rotten byte"),
    "disks are full": ("full disk",),
    "syncs fail and disks are lost": ("failing sync", "a newcomer may not vote"),
    "the power fails": ("power loss of one node", "power loss of all nodes"),
    "the network splits": ("network split", "one-way split"),
    "the network is bad": ("mute or deaf node", "network storm"),
}


def test_every_fault_is_in_the_short_form() -> None:
    assert sorted(name for names in RUNS.values() for name in names) == sorted(ALL)


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", RUNS.values(), ids=RUNS)
def test_nothing_acknowledged_is_lost_and_nobody_is_told_what_is_not_so_while(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    possible = tuple(name for name in names if ALL[name].why_not() is None)
    if not possible:
        pytest.skip(f"{names[0]} {ALL[names[0]].why_not()}")
    plan = Plan(dice(names[0]).randrange(1 << 32), possible)
    print(f"repeat with: {plan.replay}")
    try:
        outcome = run(plan, heals_s=30.0)
    except CannotBreak as error:
        pytest.skip(str(error))
    found = [f"{each.kind}: {each.detail}" for each in outcome.verdict.examples]
    if found:
        print(outcome.logs)
    assert outcome.history.acknowledged > 100
    assert list(outcome.verdict.counts) == list(CHECKS)
    assert found == [], f"repeat with: {plan.replay}; notes: {outcome.notes}"
    # The audit's rules are a second checker, which knows record files only; tests/spark holds Spark's to these.
    sent, received = (records.read(each) for each in records.write(outcome.history, tmp_path))
    audit = audit_by_hand.verdict(sent, received)
    assert (audit["lost"], audit["duplicated"], audit["phantom"]) == (0, 0, 0), plan.replay
    assert audit["acknowledged"] == outcome.history.acknowledged


@pytest.mark.root
@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_while_troubles_come_together() -> None:
    """The short form of `make chaos MINUTES=30`."""
    plan = mixed.Plan(dice("mixed").randrange(1 << 32), minutes=0.25, nodes=3, rate=400)
    print(f"repeat with: {plan.replay}")
    try:
        outcome = mixed.run(plan)
    except CannotBreak as error:
        pytest.skip(str(error))
    found = [f"{each.kind}: {each.detail}" for each in outcome.verdict.examples]
    assert set(outcome.verdict.counts) >= set(judge.CHECKS), "loads add checks of their own, and take none away"
    assert found == [], f"repeat with: {plan.replay}; notes: {outcome.notes}"
    assert outcome.episodes >= 1 and outcome.ledger.acknowledged > 500
    assert outcome.ledger.delivered > outcome.ledger.acknowledged, "each of three subscribers got its part"
    drawn = picture.drawn(outcome)
    assert all(name in drawn for name in outcome.faults), "the picture shows what was done"
    ElementTree.fromstring(drawn)

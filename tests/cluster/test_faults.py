"""A real cluster under load, broken in every way there is: nothing acknowledged is lost, nobody is told a lie.

This is the short form of `make chaos`: by day one fault of each kind and a minute's quarter of faults that overlap, by
night every fault by itself.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from chaos import picture
from chaos.run import Outcome, Plan, run
from testkit import records
from testkit.checker import CHECKS
from testkit.machine import CannotBreak
from testkit.nemesis import FAULTS, possible
from testkit.sizes import dice

from tests.spark import audit_by_hand

# Faults of one run need the same kind of disks. Runs are about equally long, for the sake of many cores.
BY_DAY = {
    "nodes are killed and pause": ("kill the leader", "kill all at once", "pause the leader"),
    "disks are lost and syncs fail": ("disk lost", "EIO at sync"),
    "the power fails and disks are full": ("power loss of all", "disk full"),
    "the network splits": ("leader cut off", "one link, one way"),
}
BY_NIGHT = {
    "nodes are killed": ("kill any node", "pause one, kill another", "kill a majority", "a minority refuses"),
    "nodes pause": ("pause a follower", "pause some", "hand leadership over"),
    "nodes leave in order, and in none": ("rolling restart", "storm", "drain", "leave and join"),
    "disks are damaged": ("flipped byte", "rotten byte", "a newcomer may not vote"),
    "disks stall": ("power loss", "stalled disk"),
    "the network is bad": ("mute or deaf node", "network storm", "bridge", "split in halves"),
    "the network is slow": ("some slow links", "slow network"),
    "clocks jump": ("clock jump",),
}
RUNS = [pytest.param(names, id=name) for name, names in BY_DAY.items()]
RUNS += [pytest.param(names, id=name, marks=pytest.mark.night) for name, names in BY_NIGHT.items()]


def test_every_fault_of_three_nodes_is_in_the_short_form() -> None:
    covered = sorted(name for names in (*BY_DAY.values(), *BY_NIGHT.values()) for name in names)
    assert covered == sorted(name for name, kind in FAULTS.items() if kind.nodes_min <= 3)


def played(plan: Plan) -> Outcome:
    print(f"repeat with: {plan.replay}")
    try:
        outcome = run(plan)
    except CannotBreak as error:
        pytest.skip(str(error))
    found = [f"{each.kind}: {each.detail}" for each in outcome.verdict.examples]
    if found:
        print("\n".join(f"--- {name}\n{log}" for name, log in outcome.logs.items()))
    assert found == [], f"repeat with: {plan.replay}; notes: {outcome.notes}"
    assert set(outcome.verdict.counts) >= set(CHECKS), "workloads add checks of their own, and take none away"
    return outcome


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", RUNS)
def test_nothing_acknowledged_is_lost_and_nobody_is_told_what_is_not_so_while(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    kinds, reasons = possible(names, 3)
    if not kinds:
        pytest.skip(str(reasons))
    plan = Plan(dice(names[0]).randrange(1 << 32), tuple(kinds))
    outcome = played(plan)
    assert outcome.history.acknowledged > 100
    assert outcome.episodes == len(kinds) == len(outcome.faults)
    # The audit's rules are a second checker, which knows record files only; tests/spark holds Spark's to these.
    sent, received = (records.read(each) for each in records.write(outcome.history, tmp_path))
    audit = audit_by_hand.verdict(sent, received)
    assert (audit["lost"], audit["duplicated"], audit["phantom"]) == (0, 0, 0), plan.replay
    assert audit["acknowledged"] == outcome.history.acknowledged


@pytest.mark.root
@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_while_faults_come_together() -> None:
    """The short form of `make chaos MINUTES=30`."""
    outcome = played(Plan.long(dice("mixed").randrange(1 << 32), 0.25, nodes=3, rate=400))
    assert outcome.episodes >= 1 and outcome.history.acknowledged > 500
    assert outcome.history.delivered > outcome.history.acknowledged, "each of three subscribers got its part"
    drawn = picture.drawn(outcome)
    assert all(name in drawn for name in outcome.faults), "the picture shows what was done"
    ElementTree.fromstring(drawn)

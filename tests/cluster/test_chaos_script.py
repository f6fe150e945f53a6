"""Faults come as the seed says: each kind in turn, and never more at a time than was promised to be survived."""

from __future__ import annotations

import pytest
from chaos.run import WORKLOADS, Plan, plans
from chaos.script import Episode, episodes, goes_with, must_go_on, one_by_one
from testkit.nemesis import FAULTS, possible
from testkit.nemesis.fault import ALL


def some(seed: int, count: int = 60) -> list[Episode]:
    script = episodes(seed, FAULTS, 5)
    return [next(script) for _ in range(count)]


def test_same_seed_brings_the_same_faults_and_every_kind_comes_in_turn() -> None:
    assert some(7) == some(7)
    assert some(7) != some(8)
    dealt = [act.name for episode in some(7) for act in episode.acts]
    assert set(dealt[: len(FAULTS)]) == set(FAULTS), "each comes once before any comes again"


def test_faults_of_one_episode_never_break_more_than_was_promised() -> None:
    overlaps = 0
    for seed in range(200):
        for episode in some(seed, 20):
            kinds = [FAULTS[act.name] for act in episode.acts]
            overlaps += len(kinds) > 1
            for index, kind in enumerate(kinds):
                assert goes_with(kind, kinds[:index], 5)
            assert not any(kind.alone for kind in kinds) or len(kinds) == 1, "a lost disk has all others well"
            of_nodes = [kind for kind in kinds if kind.layer == "nodes"]
            assert len(of_nodes) == 1 or sum(kind.hurts for kind in of_nodes) <= 5
            assert not any(kind.hurts == ALL for kind in of_nodes) or len(of_nodes) == 1
            for layer in ("leaders", "network", "weather", "clocks"):
                assert sum(kind.layer == layer for kind in kinds) <= 1
            if must_go_on(episode.acts, FAULTS, 5):
                assert all(kind.leaves_majority for kind in kinds)
    assert overlaps > 1000, "most episodes are of several faults"


def test_every_fault_and_every_workload_is_found_by_its_name() -> None:
    assert all(name == kind.name for name, kind in FAULTS.items())
    assert all(name == kind.name for name, kind in WORKLOADS.items())


def test_plans_bring_every_fault_about_as_often_as_asked_and_mix_no_disks() -> None:
    names = list(FAULTS)
    made = plans(7, names, rounds=20, faults_per_run=4)
    assert made == plans(7, names, rounds=20, faults_per_run=4), "the same seed is the same plan"
    planned = [name for plan in made for name in plan.faults]
    assert {name: planned.count(name) for name in names} == dict.fromkeys(names, 20)
    for plan in made:
        needs = {(FAULTS[name].disks, FAULTS[name].has_network, FAULTS[name].has_clocks) for name in plan.faults}
        assert needs == {(plan.disks, plan.has_network, plan.has_clocks)}
        assert f"chaos cluster --seed {plan.seed} --fault '{plan.faults[0]}'" in plan.replay
        assert [episode.name for episode in one_by_one(plan.seed, plan.faults)] == list(plan.faults)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan.long(7, 30.0), "long --seed 7 --minutes 30 --nodes 5 --rate 1500"),
        (Plan.long(7, 1.5, faults=["ring"], rate=20.0), "--minutes 1.5 --nodes 5 --rate 20 --fault 'ring'"),
        (Plan.long(7, 1.0, workloads=["numbered queues"]), "--rate 1500 --workload 'numbered queues'"),
    ],
)
def test_long_run_says_how_it_is_repeated(plan: Plan, words: str) -> None:
    assert plan.replay.endswith(words)


def test_fault_that_needs_other_nodes_is_left_out_with_a_reason() -> None:
    kinds, reasons = possible(["ring", "a newcomer may not vote", "kill the leader"], 3)
    assert "ring" not in kinds and "kill the leader" in kinds
    assert reasons["ring"] == "needs 4 to 9 nodes"
    assert possible(["a newcomer may not vote"], 5)[1] == {"a newcomer may not vote": "needs 3 to 3 nodes"}

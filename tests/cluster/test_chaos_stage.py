"""A long run notices a cluster that stands still, nodes that leave by themselves, and faults that fail."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chaos.decided import differences
from chaos.run import Outcome, Player
from chaos.script import Act, Episode
from testkit.history import History
from testkit.nemesis.fault import Fault
from testkit.nemesis.stage import Stage
from testkit.workload import Workload


class _Workload:
    """Publishes as long as nobody is in trouble."""

    name = "fake"

    def __init__(self) -> None:
        self.count = 0

    def progress(self) -> int:
        return self.count

    def begin_waiting(self) -> Callable[[], bool]:
        return lambda: True


def _nodes(*exit_codes: int | None) -> SimpleNamespace:
    nodes = {
        f"n{number}": SimpleNamespace(
            id=f"n{number}",
            http="127.0.0.1:1",
            is_running=code is None,
            exit_code=code,
            log_tail=lambda: "the last lines",
        )
        for number, code in enumerate(exit_codes, 1)
    }
    return SimpleNamespace(nodes=list(nodes.values()), node=nodes.__getitem__)


class _Stage(Stage):
    """Without a cluster: nodes are well again after every episode."""

    def heal(self, after: str) -> None:
        self.recoveries_s.append(0.0)


def _staged(cluster: SimpleNamespace, *workloads: _Workload, goes_on_s: float = 0.3) -> Stage:
    return _Stage(cast(Any, cluster), History(), [cast(Workload, each) for each in workloads], goes_on_s=goes_on_s)


class _Standstill(Fault):
    """While it lasts nothing is acknowledged, although a majority is well."""

    name = "standstill"
    workload: _Workload

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        stage.last(lasts_s)
        type(self).workload.count += 100


class _Broken(Fault):
    name = "broken"
    leaves_majority = False

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        raise RuntimeError("no such wire")


def _player(at: Stage, kind: type[Fault], ends_at: float | None = None) -> tuple[Player, Outcome]:
    outcome = Outcome(1, "", at.history)
    script = iter([Episode(0, (Act(kind.name, 0.0, 0.05, 1),), 0.0 if ends_at is None else 3600.0)])
    return Player({kind.name: kind}, script, outcome, ends_at, begun_s=0.0), outcome


def test_cluster_that_stands_still_until_a_fault_is_over_is_found() -> None:
    _Standstill.workload = workload = _Workload()
    at = _staged(_nodes(None, None, None), workload)
    _player(at, _Standstill)[0](at)
    assert workload.count == 100, "it was there for as long as it was asked"
    assert ["acknowledgements during" in each for each in at.history.stalls] == [True]


def test_fault_that_fails_is_found() -> None:
    at = _staged(_nodes(None, None, None))
    _player(at, _Broken)[0](at)
    assert len(at.history.stalls) == 1 and "no such wire" in at.history.stalls[0]


def test_run_that_is_broken_off_begins_no_further_episode() -> None:
    at = _staged(_nodes(None, None, None))
    player, outcome = _player(at, _Broken, ends_at=time.monotonic() + 7200)
    breaking = threading.Timer(0.1, at.stopping.set)
    breaking.start()
    player(at)
    breaking.join()
    assert outcome.episodes == 0 and at.history.stalls == []


@pytest.mark.parametrize(("exit_code", "is_found"), [(None, False), (-9, False), (0, False), (70, True), (-6, True)])
def test_node_that_left_without_a_reason_is_found(exit_code: int | None, is_found: bool) -> None:
    at = _staged(_nodes(exit_code))
    at.must_have_reason("n1", "an episode")
    assert bool(at.history.stalls) == is_found
    at.may_leave.add("n1")
    at.must_have_reason("n1", "an episode")
    assert len(at.history.stalls) == is_found, "a disk that failed is a reason"


def test_nodes_that_decided_differently_are_found() -> None:
    told = {"orders:billing": [(0, 7)], "orders:audit": [(0, 3)]}
    assert differences({"n1": told, "n2": dict(told), "n3": dict(told)}) == []
    assert differences({"n1": told, "n2": dict(told), "n3": {**told, "orders:audit": [(0, 2)]}}) == [
        "orders:audit: n1 tells [(0, 3)], n3 tells [(0, 2)]"
    ]
    assert len(differences({"n1": told, "n2": {}})) == 2

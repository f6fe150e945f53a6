"""A long run notices a cluster that stands still, nodes that leave by themselves, and troubles that fail."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chaos import records as short_records
from chaos.mixed import records, run, stage
from chaos.mixed.decided import differences
from chaos.mixed.ledger import Ledger
from chaos.mixed.loads import Load
from chaos.mixed.script import Act, Episode
from chaos.mixed.stage import Stage
from chaos.mixed.troubles import Trouble


class _Load:
    """Publishes as long as nobody is in trouble."""

    name = "fake"

    def __init__(self) -> None:
        self.count = 0

    def progress(self) -> int:
        return self.count


def _nodes(*exit_codes: int | None) -> SimpleNamespace:
    nodes = {
        f"n{number}": SimpleNamespace(
            id=f"n{number}", is_running=code is None, exit_code=code, log_tail=lambda: "the last lines"
        )
        for number, code in enumerate(exit_codes, 1)
    }
    return SimpleNamespace(nodes=list(nodes.values()), node=nodes.__getitem__)


def _staged(cluster: SimpleNamespace, *loads: _Load) -> Stage:
    return Stage(cast(Any, cluster), Ledger(), [cast(Load, load) for load in loads])


class _Standstill(Trouble):
    """While it lasts nothing is acknowledged, although a majority is well."""

    name = "standstill"
    layer = "nodes"
    load: _Load

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        stage.last(lasts_s)
        type(self).load.count += 100


class _Broken(Trouble):
    name = "broken"
    layer = "nodes"

    def run(self, stage: Stage, dice: random.Random, lasts_s: float) -> None:
        raise RuntimeError("no such wire")


def _playing(at: Stage, kinds: dict[str, type[Trouble]], monkeypatch: pytest.MonkeyPatch) -> run._Run:
    """A run without a cluster, whose nodes are well again after every episode."""
    monkeypatch.setattr(Stage, "heal", lambda self, after: None)
    made = run._Run.__new__(run._Run)
    made._stage, made._kinds, made._plan = at, kinds, run.Plan(1, 1.0)
    made._outcome = run.Outcome(made._plan, at.ledger)
    return made


def test_cluster_that_stands_still_until_a_trouble_is_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "GOES_ON_S", 0.3)
    monkeypatch.setattr(run, "_BEGUN_S", 0.0)
    _Standstill.load = load = _Load()
    at = _staged(_nodes(None, None, None), load)
    playing = _playing(at, {"standstill": _Standstill}, monkeypatch)
    playing._episode(Episode(0, (Act("standstill", 0.0, 0.05, 1),), 0.0))
    assert load.count == 100, "it was there for as long as it was asked"
    assert ["an acknowledgement during" in each for each in at.ledger.rare.stalls] == [True]


def test_trouble_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Broken, "leaves_majority", False)
    at = _staged(_nodes(None, None, None))
    _playing(at, {"broken": _Broken}, monkeypatch)._episode(Episode(0, (Act("broken", 0.0, 0.0, 1),), 0.0))
    assert len(at.ledger.rare.stalls) == 1 and "no such wire" in at.ledger.rare.stalls[0]


def test_run_that_is_broken_off_begins_no_further_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    at = _staged(_nodes(None, None, None))
    playing = _playing(at, {"broken": _Broken}, monkeypatch)
    playing._ends_at = time.monotonic() + 3600
    breaking = threading.Timer(0.1, at.stopping.set)
    breaking.start()
    playing._play()
    breaking.join()
    assert playing._outcome.episodes == 0 and at.ledger.rare.stalls == []


@pytest.mark.parametrize(("exit_code", "is_found"), [(None, False), (-9, False), (0, False), (70, True), (-6, True)])
def test_node_that_left_without_a_reason_is_found(exit_code: int | None, is_found: bool) -> None:
    at = _staged(_nodes(exit_code))
    at.must_have_reason("n1", "an episode")
    assert bool(at.ledger.rare.stalls) == is_found
    at.may_leave.add("n1")
    at.must_have_reason("n1", "an episode")
    assert len(at.ledger.rare.stalls) == is_found, "a disk that failed is a reason"


def test_nodes_that_decided_differently_are_found() -> None:
    told = {"orders:billing": [(0, 7)], "orders:audit": [(0, 3)]}
    assert differences({"n1": told, "n2": dict(told), "n3": dict(told)}) == []
    assert differences({"n1": told, "n2": dict(told), "n3": {**told, "orders:audit": [(0, 2)]}}) == [
        "orders:audit: n1 tells [(0, 3)], n3 tells [(0, 2)]"
    ]
    assert len(differences({"n1": told, "n2": {}})) == 2


def test_records_of_a_long_run_have_all_that_was_sent_and_received(tmp_path: Path) -> None:
    ledger = Ledger()
    producer = ledger.producer("p", "orders")
    producer.send(2, 10.0)
    producer.acknowledge(0, 10.5, ledger.place("orders", 1), 0)
    ledger.reader("live", "n1").got(1, ledger.place("orders", 1), 0, ledger.message(b"p/0 xx"), 11.0)
    sent, received = map(short_records.read, records.write(ledger, tmp_path, epoch_s=1000.0))
    assert [(each["id"], each["sequence"], each["acknowledged"]) for each in sent] == [
        ("p/0", 0, True),
        ("p/1", 1, False),
    ]
    assert sent[0]["time_ms"] == 1_010_000 and sent[0]["partition"] == 1 and "partition" not in sent[1]
    assert received == [
        {
            "topic": "orders",
            "id": "p/0",
            "time_ms": 1_011_000,
            "broker": "n1",
            "receiver": "live-1",
            "partition": 1,
            "offset": 0,
        }
    ]

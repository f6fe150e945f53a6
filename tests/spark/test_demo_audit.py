"""Every demo and a run of chaos: played by real processes, with a verdict of its own, to which the audit must come too.

What they wrote down themselves is all that the audit knows. They are played once, for all tests here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from chaos.run import Plan, run
from testkit import records
from testkit.commands import holdfast_process
from testkit.spark import DriverProcess

from tests.spark import audit_by_hand

DEMOS = {
    "broker": ("--seconds", "4"),
    "cluster": ("--seconds", "5", "--kill-after", "1", "--back-after", "2", "--rate", "100"),
    "failover": ("--kill-after", "3s", "--then", "2s", "--rate", "20"),
    "membership": ("--scene", "one-subscriber", "--scene", "fault-tolerance"),
    "outage": ("--seconds", "6", "--rate", "100"),
}
WITHOUT_PICTURE = ("broker", "membership")
CHAOS = Plan(20261118, ("kill the leader",))
FLAWS = ("lost", "duplicated", "out_of_order", "refused")
Played = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demos")


@pytest.fixture(scope="module")
def played(place: Path) -> Played:
    """The verdict of each; two at the same time, since most of it is waiting."""

    def play(name: str) -> dict[str, Any]:
        if name == "chaos":
            outcome = run(CHAOS)
            assert not outcome.verdict.examples, outcome.verdict.examples
            records.write(outcome.history, place / name)
            return {"sent": outcome.history.sent, "acknowledged": outcome.history.acknowledged}
        out = () if name in WITHOUT_PICTURE else ("--out", str(place / name))
        ended = holdfast_process("demo", name, *DEMOS[name], *out, "--record", str(place / name), "--json")
        assert ended.code == 0, ended
        verdict: dict[str, Any] = ended.json
        return verdict

    names = (*DEMOS, "chaos")
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(names, threads.map(play, names), strict=True))


# Two of the demos have a topic of one name, and what is audited together must be of one run. Readers of chaos come and
# go, so that not all of them get everything.
RUNS = [(("broker", "failover", "outage", "membership"), True), (("cluster",), True), (("chaos",), False)]


def check(counts: Mapping[str, int], names: tuple[str, ...], played: Played) -> None:
    """Hold an audit's counts against the verdicts that the demos came to themselves."""
    told = [played[name] for name in names]
    assert counts["sent"] == sum(each["sent"] for each in told) > 50
    assert counts["acknowledged"] == sum(each["acknowledged"] for each in told)
    # A live reader of the broker that was killed may see its last message again, and its demo says so.
    readers = [each["readers"] for each in told if isinstance(each.get("readers"), dict)]
    assert counts["duplicated"] == sum(each["duplicated"] for several in readers for each in several.values())
    assert counts["lost"] == counts["phantom"] == 0
    # Chaos has messages that nobody answered for, which may stand behind later ones.
    assert counts["out_of_order"] == 0 or "chaos" in names


def lines(place: Path, names: tuple[str, ...], side: str) -> list[audit_by_hand.Line]:
    texts = [(place / name / f"{side}.ndjson").read_text("utf-8") for name in names]
    return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.mark.parametrize(("names", "every_receiver"), RUNS)
def test_audit_by_hand_comes_to_the_same_verdict(
    names: tuple[str, ...], every_receiver: bool, played: Played, place: Path
) -> None:
    sent, received = lines(place, names, "sent"), lines(place, names, "received")
    check(audit_by_hand.verdict(sent, received, every_receiver=every_receiver), names, played)


@pytest.mark.spark
@pytest.mark.night
@pytest.mark.parametrize(("names", "every_receiver"), RUNS)
def test_audit_on_spark_comes_to_the_same_verdict(
    names: tuple[str, ...], every_receiver: bool, played: Played, place: Path, tmp_path: Path
) -> None:
    files = [word for name in names for side in ("sent", "received") for word in (f"--{side}", f"{name}/{side}.ndjson")]
    options = [*files, *(["--every-receiver"] if every_receiver else []), "--json"]
    with DriverProcess("audit", *options, log=tmp_path / "log", directory=place) as driver:
        found = driver.ended(0, 1)
    check(found, names, played)
    assert found["malformed"] == 0


def test_nothing_is_lost_when_the_broker_is_killed(played: Played) -> None:
    verdict = played["broker"]
    assert verdict["sent"] == verdict["acknowledged"] == 40
    assert verdict["lost"] == 0 and verdict["data_directory"] == "clean"
    assert {reader["received"] >= 40 for reader in verdict["readers"].values()} == {True}
    assert {reader["out_of_order"] for reader in verdict["readers"].values()} == {0}


def test_nothing_is_lost_when_the_leader_of_a_cluster_is_killed(played: Played) -> None:
    verdict = played["cluster"]
    assert verdict["sent"] == verdict["acknowledged"] == verdict["received"] > 100
    assert [verdict[name] for name in FLAWS] == [0, 0, 0, 0]
    assert len(verdict["readers"]) == 4 and verdict["killed"] in ("n1", "n2", "n3")
    assert verdict["failover_ms"] > 0 and verdict["longest_gap_ms"] > 0
    picture = Path(verdict["picture"]).read_text()
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert f"{verdict['killed']} killed" in picture and f"{verdict['killed']} back" in picture


def test_nothing_is_lost_when_a_primary_is_killed(played: Played, place: Path) -> None:
    verdict = played["failover"]
    assert verdict["sent"] == verdict["acknowledged"] == verdict["received"] == 100
    assert [verdict[name] for name in FLAWS] == [0, 0, 0, 0]
    assert verdict["received_from"]["primary"] > 0 < verdict["received_from"]["backup"]
    assert verdict["failover_ms"] > 0
    assert "primary killed" in Path(verdict["picture"]).read_text()
    assert (place / "failover" / "demo-failover.json").exists()


def test_nothing_is_lost_when_database_and_broker_are_killed(played: Played, place: Path) -> None:
    verdict = played["outage"]
    assert verdict["sent"] == verdict["acknowledged"] == verdict["stored"] > 100
    assert [verdict[name] for name in FLAWS] == [0, 0, 0, 0]
    assert verdict["buffered"] > 0 and verdict["replayed_ms"] is not None
    assert "database killed" in Path(verdict["picture"]).read_text()
    assert (place / "outage" / "demo-outage.json").exists()

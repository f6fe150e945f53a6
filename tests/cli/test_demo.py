"""`holdfast demo`: interrupted, it leaves nothing behind, and its verdict is worth something."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from testkit.commands import Running, holdfast
from testkit.processes import children, is_alive
from testkit.wait import wait_until

from holdfast.cli.demo import timeline
from holdfast.cli.demo.cluster_score import ClusterScore, Reader
from holdfast.cli.demo.tally import Verdict, judge


@pytest.mark.parametrize(
    ("name", "words", "processes"),
    [
        ("broker", "broker started", 1),
        ("cluster", "nodes are up", 3),
        ("failover", "are connected", 2),
        ("outage", "broker started", 2),
    ],
)
def test_interrupted_demo_leaves_nothing_behind(name: str, words: str, processes: int, tmp_path: Path) -> None:
    out = () if name == "broker" else ("--out", str(tmp_path))
    with Running("demo", name, *out) as playing:
        told = ""
        while words not in told:
            told += (line := playing.line().decode())
            assert line, playing.ended()
        # A database is nobody's child.
        started = {*children(playing.process.pid), *map(int, re.findall(r"\(process (\d+)\)", told))}
        assert len(started) >= processes
        ended = playing.end(signal.SIGINT)
    assert ended.code == 130 and "Traceback" not in ended.err
    wait_until(lambda: not any(map(is_alive, started)), f"all of {started} are gone")


def test_demo_that_cannot_be_says_why() -> None:
    for arguments, said in (
        (("cluster", "--kill-after", "5", "--back-after", "4"), "must come before"),
        (("failover", "--kill-after", "30"), "is no duration"),
        (("membership", "--scene", "tragedy"), "there is no scene tragedy"),
    ):
        ended = holdfast("demo", *arguments)
        assert ended.code == 2 and said in ended.err, ended


def test_verdict() -> None:
    assert judge([1, 2, 3], [1, 2, 3]) == Verdict(3, 0, 0, 0)
    assert judge([1, 2, 3], [1, 3]) == Verdict(2, 1, 0, 0)
    assert judge([1, 2], [1, 2, 3]) == Verdict(3, 0, 0, 0)
    assert judge([1, 2, 3], [1, 3, 2]) == Verdict(3, 0, 0, 1)
    assert judge([1, 2, 3], [1, 2, 1, 2, 3]) == Verdict(5, 0, 2, 0)
    assert judge([], []) == Verdict(0, 0, 0, 0)


def test_verdict_on_a_cluster() -> None:
    score = ClusterScore(nodes={"n1": "up"}, killed="n1", kill_s=0.25, back_s=0.9)
    for number, (sent_s, at_s) in enumerate([(0.0, 0.1), (0.1, 0.2), (0.2, 0.3), (0.3, 0.8), (0.8, 0.85)]):
        score.acknowledge(0, number, sent_s, at_s)
    assert round(score.longest_gap_s, 3) == 0.5
    # The third was sent before the kill; that its answer came after it is not the new leader's doing.
    assert round(score.failover_s or 0, 3) == 0.55
    fine, lossy = Reader("fine"), Reader("lossy")
    for number in range(5):
        fine.take(0, number, number / 10)
    for number in (0, 2, 1, 1, 4):
        lossy.take(0, number, 0.5)
    score.readers = [fine]
    assert score.is_flawless and score.verdict()["lost"] == 0
    score.readers = [fine, lossy]
    assert not score.is_flawless
    verdict = score.verdict()
    assert (verdict["lost"], verdict["duplicated"], verdict["out_of_order"]) == (1, 1, 1)
    assert sum(score.acknowledged_per_bin()) == sum(score.received_per_bin()) == 5
    assert ElementTree.fromstring(timeline.drawn(score)) is not None
    assert ElementTree.fromstring(timeline.drawn(ClusterScore())) is not None

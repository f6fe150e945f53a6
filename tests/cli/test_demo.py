"""`holdfast demo`: it really kills a broker, or a cluster's leader, and its verdict is worth something."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from xml.etree import ElementTree

from testkit.wait import wait_until

from holdfast.cli.demo import timeline
from holdfast.cli.demo.cluster_score import ClusterScore, Reader
from holdfast.cli.demo.tally import Verdict, judge
from tests.cli.program import Running, holdfast


def test_interrupted_demo_leaves_no_broker_behind() -> None:
    with Running("demo", "broker") as playing:
        started = playing.line().decode()
        assert "broker started on" in started
        pid = int(started.rsplit("process ", 1)[1].rstrip(")\n"))
        ended = playing.end(signal.SIGINT)
    assert ended.code == 130 and "Traceback" not in ended.err
    wait_until(lambda: not _is_alive(pid), "the broker is gone")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_verdict() -> None:
    assert judge([1, 2, 3], [1, 2, 3]) == Verdict(3, 0, 0, 0)
    assert judge([1, 2, 3], [1, 3]) == Verdict(2, 1, 0, 0)
    assert judge([1, 2], [1, 2, 3]) == Verdict(3, 0, 0, 0)
    assert judge([1, 2, 3], [1, 3, 2]) == Verdict(3, 0, 0, 1)
    assert judge([1, 2, 3], [1, 2, 1, 2, 3]) == Verdict(5, 0, 2, 0)
    assert judge([], []) == Verdict(0, 0, 0, 0)


# --- a cluster ----------------------------------------------------------------------------------------------


def test_demo_of_a_cluster_that_cannot_be_says_why() -> None:
    ended = holdfast("demo", "cluster", "--kill-after", "5", "--back-after", "4")
    assert ended.code == 2 and "must come before" in ended.err


def test_interrupted_demo_leaves_no_cluster_behind(tmp_path: Path) -> None:
    with Running("demo", "cluster", "--out", str(tmp_path)) as playing:
        playing.line()
        assert "nodes are up" in playing.line().decode()
        children = Path(f"/proc/{playing.process.pid}/task").glob("*/children")
        pids = [int(pid) for listed in children for pid in listed.read_text().split()]
        assert len(pids) >= 3
        ended = playing.end(signal.SIGINT)
    assert ended.code == 130 and "Traceback" not in ended.err
    for pid in pids:
        wait_until(lambda pid=pid: not _is_alive(pid), "the node is gone")


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

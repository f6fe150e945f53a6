"""`holdfast demo outage`: it really kills a database and a broker, and its verdict is worth something."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from testkit.wait import wait_until

from holdfast.cli.demo import outage_timeline, outage_view
from holdfast.cli.demo.outage_play import OutagePlay, Plan
from holdfast.cli.demo.outage_score import Answer, Mark, OutageScore
from holdfast.cli.demo.view import View
from tests.cli.program import Running


def performed(*stored: int) -> OutageScore:
    """One customer sends four messages; two are buffered; `stored` is what the database has."""
    score = OutageScore(sent=4, marks=[Mark(0.15, "database killed", True), Mark(0.4, "database back", False)])
    for number in range(1, 5):
        score.answers.append(Answer(1, number, number / 10, number / 10 + 0.02, buffered=number in (2, 3)))
    score.stored = {1: list(stored)}
    score.replayed_s = 0.3
    return score


def test_flawless_play() -> None:
    score = performed(1, 2, 3, 4)
    assert score.is_flawless
    verdict = score.verdict()
    assert (verdict["sent"], verdict["acknowledged"], verdict["buffered"], verdict["stored"]) == (4, 4, 2, 4)
    assert verdict["slowest_acknowledgement_ms"] == 20 and verdict["replayed_ms"] == 300
    assert "none was lost" in outage_view.summary(score)


@pytest.mark.parametrize(
    ("stored", "flaw"), [((1, 2, 4), "lost"), ((1, 1, 2, 3, 4), "duplicated"), ((1, 3, 2, 4), "out_of_order")]
)
def test_every_flaw_is_seen(stored: tuple[int, ...], flaw: str) -> None:
    score = performed(*stored)
    assert not score.is_flawless and score.verdict()[flaw] == 1
    assert "were lost, repeated or out of order" in outage_view.summary(score)


def test_nothing_acknowledged_proves_nothing() -> None:
    assert not OutageScore().is_flawless


def test_picture_tells_buffered_from_stored_and_when_what_was_lost() -> None:
    picture = ElementTree.fromstring(outage_timeline.drawn(performed(1, 2, 3, 4)))
    areas = [each.get("fill") for each in picture.iter("{http://www.w3.org/2000/svg}path") if each.get("fill")]
    assert len(set(areas)) == 2
    words = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"database killed", "database back", "buffered by the broker"} <= set(words)
    assert ElementTree.fromstring(outage_timeline.drawn(OutageScore())) is not None


def test_plan_has_the_broker_away_while_the_database_is() -> None:
    plan = Plan.over(20.0, 100.0)
    assert 0 < plan.database_lost_s < plan.broker_lost_s < plan.broker_back_s < plan.database_back_s < plan.seconds


async def test_words_and_picture_have_one_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Starting a database and a broker takes a while; no second of the picture counts from before the first message."""
    score, view = OutageScore(), View(lambda _: [], quiet=False)
    view._started -= 30.0
    play = OutagePlay(Any, Any, "", Plan.over(4.0, 1.0), score, view)  # type: ignore[arg-type]
    view.begin()

    async def act() -> str:
        await asyncio.sleep(0.2)
        return "it happened"

    await play._at(0.1, "database killed", act(), is_loss=True)
    await play._at(0.4, "database back", act())
    told = [float(line.split(" s ")[0]) for line in capsys.readouterr().out.splitlines()]
    assert told == [round(mark.at_s, 1) for mark in score.marks]
    assert 0.1 <= told[0] < 30.0 and told[1] >= 0.6, "a loss is there when it begins, a return when it is done"
    assert list(score.verdict()["happened_ms"].values()) == [round(mark.at_s * 1000) for mark in score.marks]


def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with Running("demo", "outage", "--out", str(tmp_path)) as playing:
        pids = []
        while len(pids) < 2:
            line = playing.line().decode()
            pids += [int(line.partition("(process ")[2].partition(")")[0])] if "(process " in line else []
        ended = playing.end(signal.SIGINT)
    assert ended.code == 130 and "Traceback" not in ended.err
    for pid in pids:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "it is gone")

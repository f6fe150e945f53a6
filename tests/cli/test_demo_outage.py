"""`holdfast demo outage`: its verdict and its picture show what happened."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast.cli.demo import outage_timeline, outage_view
from holdfast.cli.demo.outage_play import OutagePlay, Plan
from holdfast.cli.demo.outage_score import Answer, Mark, OutageScore
from holdfast.cli.demo.view import View


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


class Clock:
    """Time that only the test moves."""

    now_s = 30.0

    def __call__(self) -> float:
        return self.now_s


async def test_words_and_picture_have_one_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Starting a database and a broker takes a while; no second of the picture counts from before the first message."""
    clock = Clock()
    score, view = OutageScore(), View(lambda _: [], quiet=False, monotonic_s=clock)
    clock.now_s += 30.0
    play = OutagePlay(Any, Any, "", Plan.over(4.0, 1.0), score, view)  # type: ignore[arg-type]
    view.begin()

    async def act() -> str:
        clock.now_s += 2.0
        return "it happened"

    clock.now_s += 1.0
    await play.happens_at(1.0, "database killed", act(), is_loss=True)
    await play.happens_at(2.0, "database back", act())
    told = [float(line.split(" s ")[0]) for line in capsys.readouterr().out.splitlines()]
    assert told == [1.0, 5.0], "a loss is there when it begins, a return when it is done"
    assert [mark.at_s for mark in score.marks] == told
    assert list(score.verdict()["happened_ms"].values()) == [1000, 5000]

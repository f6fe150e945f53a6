"""`holdfast demo failover`: its verdict and its picture show what happened."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.cli.demo import failover_timeline, failover_view, pair_process
from holdfast.cli.demo.failover_score import Arrival, FailoverScore


def performed() -> FailoverScore:
    """Five messages a tenth of a second apart; the primary dies behind the third."""
    score = FailoverScore(kill_s=0.25)
    for number in range(1, 6):
        score.sent[number] = (number - 1) / 10
        score.acknowledged.append(number)
        role = "primary" if number <= 3 else "backup"
        score.arrivals.append(Arrival(number, (number - 1) / 10 + (0.01 if role == "primary" else 0.4), role))
    return score


def test_flawless_play() -> None:
    score = performed()
    assert score.is_flawless
    verdict = score.verdict()
    assert (verdict["sent"], verdict["acknowledged"], verdict["received"]) == (5, 5, 5)
    assert (verdict["lost"], verdict["duplicated"], verdict["out_of_order"]) == (0, 0, 0)
    assert verdict["longest_gap_ms"] == 490 and verdict["failover_ms"] == 450
    assert verdict["received_from"] == {"primary": 3, "backup": 2}
    assert [(round(at_s, 3), round(delay_ms)) for at_s, delay_ms in score.delays_ms("backup")] == [
        (0.7, 400),
        (0.8, 400),
    ]
    assert "none was lost" in failover_view.summary(score)


@pytest.mark.parametrize(
    ("numbers", "flaw"), [((1, 2, 4), "lost"), ((1, 1, 2, 3, 4), "duplicated"), ((1, 3, 2, 4), "out_of_order")]
)
def test_every_flaw_is_seen(numbers: tuple[int, ...], flaw: str) -> None:
    score = FailoverScore(acknowledged=[1, 2, 3, 4])
    score.arrivals = [Arrival(number, place / 10, "primary") for place, number in enumerate(numbers)]
    assert not score.is_flawless and score.verdict()[flaw] == 1
    assert "were lost, repeated or out of order" in failover_view.summary(score)


def test_message_that_was_never_acknowledged_is_not_lost() -> None:
    score = FailoverScore(sent={1: 0.0, 2: 0.1}, acknowledged=[1], refused=1, arrivals=[Arrival(1, 0.1, "primary")])
    assert score.is_flawless and "Not acknowledged" not in failover_view.summary(FailoverScore())
    assert "Not acknowledged in time: 1 message" in failover_view.summary(score)


def test_picture_shows_every_message_in_the_colour_of_its_broker() -> None:
    score = performed()
    picture = ElementTree.fromstring(failover_timeline.drawn(score))
    dots = {
        element.get("stroke"): element.get("d", "").count("h0")
        for element in picture.iter("{http://www.w3.org/2000/svg}path")
        if element.get("stroke-linecap") == "round"
    }
    assert sorted(dots.values()) == [2, 3] and len(dots) == 2
    words = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "primary killed" in words and any("longest gap 490 ms" in each for each in words)
    assert ElementTree.fromstring(failover_timeline.drawn(FailoverScore())) is not None


def test_picture_of_a_flood_stays_small() -> None:
    score = FailoverScore(sent={number: number / 1000 for number in range(100_000)})
    score.arrivals = [Arrival(number, number / 1000 + 0.01, "primary") for number in range(100_000)]
    assert len(failover_timeline.drawn(score)) < 200_000


def test_brokers_are_started_with_the_seeds_commands() -> None:
    started = pair_process.command("backup", 8081, "localhost:8080", Path("/somewhere"))
    assert started[4:7] == ["backup", "8081", "localhost:8080"] and "/somewhere/backup" in started

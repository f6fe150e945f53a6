"""`holdfast demo membership`: its scenes are played by real nodes, and a scene that shows nothing does not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.demo.broker_lines import BrokerLines
from holdfast.cli.demo.membership_play import Check, MembershipPlay, Scene
from holdfast.cli.demo.same_timeouts import TICKS_MAX, Duel
from tests.cli.program import holdfast


def test_lines_are_told_as_they_happen_with_roles_and_times() -> None:
    played = holdfast("demo", "membership", "--scene", "one-subscriber")
    assert played.code == 0, played
    told = [line.partition("[")[2] for line in played.lines if "] INFO: " in line]
    leaders = [line for line in told if "INFO: New leader" in line]
    assert leaders and leaders[0] in ("Broker n1 LEADER] INFO: New leader n1", "Broker n2 LEADER] INFO: New leader n2")
    assert any("CANDIDATE] INFO: Timeout, sending REQUEST_TO_VOTE, term: 1" in line for line in told)
    assert any("Handle append_entries: SUBSCRIBE on topic: `topic1` from 127.0.0.1:" in line for line in told)
    published = told.index("Publisher] INFO: Publish to topic `topic1`: `Hello, world!` at n2")
    assert any("Received message: `Hello, world!` on topic `topic1`" in line for line in told[published:])


def test_unknown_scene_is_refused() -> None:
    played = holdfast("demo", "membership", "--scene", "tragedy")
    assert played.code == 2 and "there is no scene tragedy" in played.err and "fault-tolerance" in played.err


def test_a_scene_with_a_check_that_does_not_hold_is_not_passed() -> None:
    assert Scene("one", [Check("it holds", holds=True)]).is_passed
    assert not Scene("two", [Check("it holds", holds=True), Check("it does not", holds=False)]).is_passed


def test_a_check_waits_and_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.demo.membership_play._PATIENCE_S", 0.05)
    monkeypatch.setattr("holdfast.cli.demo.membership_play._NEVER_S", 0.05)
    play = MembershipPlay(lambda line: None)
    play._check("never true", lambda: False)
    play._check_never("always true", lambda: True)
    assert [check.holds for check in play._checks] == [False, False]


def test_equal_dice_elect_nobody_and_others_do() -> None:
    same = Duel({"n1": lambda sides: 3, "n2": lambda sides: 3})
    said = list(same.play(TICKS_MAX))
    assert same.leader is None and same.term >= 3
    assert {line.member for line in said if "REQUEST_TO_VOTE, term: 3" in line.text} == {"n1", "n2"}
    other = Duel({"n1": lambda sides: 7, "n2": lambda sides: 3})
    assert list(other.play(TICKS_MAX))[-1].text == "New leader n2, term: 1"


def test_what_is_no_event_in_a_log_is_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    log.write_bytes(
        b"Traceback (most recent call last):\n[1, 2]\n"
        b'{"event": "new_leader", "leader": "n1", "term": 3, "timestamp": "2026-01-02T03:04:05Z"}\n'
        b'{"event": "asks_for_votes", "term": 4, "timesta'
    )
    told: list[str] = []
    lines = BrokerLines(told.append)
    lines.follow("n1", log, "127.0.0.1:8000")
    lines.drain()
    assert [line.partition("[")[2] for line in told] == [
        "Broker n1 LEADER] INFO: New leader n1",
        "Broker n1 FOLLOWER] INFO: Running on 127.0.0.1:8000",
    ]

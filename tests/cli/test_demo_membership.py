"""`holdfast demo membership`: its scenes are played by real nodes, and a scene that shows nothing does not pass."""

from __future__ import annotations

import datetime
import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from testkit.commands import holdfast

from holdfast.cli.demo.broker_lines import BrokerLines
from holdfast.cli.demo.membership_play import SCENES, Check, MembershipPlay, Scene
from holdfast.cli.demo.same_timeouts import TICKS_MAX, Duel


class Played(NamedTuple):
    scenes: list[Scene]
    told: dict[tuple[str, str], list[str]]
    records: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All scenes, once; lines without their times, by scene and heading."""
    lines: list[str] = []
    play = MembershipPlay(lines.append)
    play.perform(list(SCENES))
    records = tmp_path_factory.mktemp("records")
    play.book.ledger.write(records)
    told: dict[tuple[str, str], list[str]] = {}
    scene = heading = ""
    for line in lines:
        if line.startswith("\n########"):
            scene = line.strip("# \n")
        elif line.startswith("\n===="):
            heading = line.strip("= \n")
        else:
            told.setdefault((scene, heading), []).append(line.partition("[")[2])
    return Played(play.scenes, told, records)


def test_every_scene_shows_what_it_is_for(played: Played) -> None:
    assert [scene.name for scene in played.scenes] == list(SCENES)
    assert all(scene.is_passed for scene in played.scenes), played.scenes
    assert sum(len(scene.checks) for scene in played.scenes) >= 14


def in_order(told: list[str], *patterns: str) -> bool:
    """Whether a line matches each of them, one behind the other."""
    rest = iter(told)
    return all(any(re.fullmatch(pattern, line) for line in rest) for pattern in patterns)


def test_what_a_change_goes_through_is_told_in_its_order(played: Played) -> None:
    told = played.told["one-subscriber", "Broker"]
    assert in_order(
        told,
        r"Broker n\d CANDIDATE\] INFO: Timeout, sending REQUEST_TO_VOTE, term: 1",
        r"Broker n\d FOLLOWER\] INFO: Vote to leader n\d, term: 1",
        r"Broker (n\d) LEADER\] INFO: New leader \1",
    ), told
    assert in_order(played.told["basic", "Broker"], r"Broker n1 LEADER\] INFO: New leader n1"), "as its log says"
    told = played.told["two-subscribers", "Subscribe to Node 1"] + played.told["two-subscribers", "Subscribe to Node 2"]
    for steps in (
        [r"Broker n\d FOLLOWER\] INFO: Forward SUBSCRIBE to leader: n\d"],
        [
            r"Subscriber \d+\] INFO: SUBSCRIBE message on topic `topic1` at n\d",
            r"Broker n\d LEADER\] INFO: New SUBSCRIBE to `topic1` from 127.0.0.1:\d+",
            r"Broker n\d FOLLOWER\] INFO: Received append_entries, store in buffer: SUBSCRIBE",
            r"Broker n\d LEADER\] INFO: Majority ACK, append entries: SUBSCRIBE",
            r"Broker n\d LEADER\] INFO: Handle append_entries: SUBSCRIBE on topic: `topic1` from 127.0.0.1:\d+",
        ],
    ):
        assert in_order(told, *steps), (steps, told)
    told = played.told["two-subscribers", "Publish to Node 2"]
    assert in_order(
        told,
        r"Publisher\] INFO: Publish to topic `topic1`: `Hello, world!` at n2",
        r"Broker n2 \w+\] INFO: New publish `topic1`",
        r"Subscriber \d+\] INFO: Received message: `Hello, world!` on topic `topic1`",
    ), told


def test_election_stands_where_the_leader_fails_and_who_comes_back_does_not_lead(played: Played) -> None:
    told = played.told["fault-tolerance", "Leader Fail"]
    failed = told[0].removeprefix("Play] INFO: ").partition(" ")[0]
    assert in_order(
        told,
        r"Broker n\d CANDIDATE\] INFO: Timeout, sending REQUEST_TO_VOTE, term: \d+",
        r"Broker n\d FOLLOWER\] INFO: Vote to leader n\d, term: \d+",
        r"Broker (n\d) LEADER\] INFO: New leader \1",
        r"Publisher\] INFO: .*",
    ), told
    back = [line for line in played.told["fault-tolerance", "Node Back"] if line.startswith(f"Broker {failed} ")]
    assert back[0].startswith(f"Broker {failed} FOLLOWER] INFO: Running on ")
    assert not any("LEADER" in line for line in back)


def test_node_that_comes_back_does_not_tell_its_first_life_again(played: Played) -> None:
    told = [line for line in played.told["dynamic-membership", "Node Rejoin"] if line.startswith("Broker n3 ")]
    assert told[0].startswith("Broker n3 FOLLOWER] INFO: Running on ")
    assert sum("Request JOIN_CLUSTER" in line for line in told) == 1


def test_records_say_who_was_to_get_what_and_got_it(played: Played) -> None:
    def read(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (played.records / name).read_bytes().splitlines()]

    sent, received = read("sent.ndjson"), read("received.ndjson")
    must = {line["id"] for line in sent if line["acknowledged"]}
    came = [line["id"] for line in received]
    assert len(must) == 13 and must <= set(came) <= {line["id"] for line in sent}
    assert len(came) == len(set(came)), "each once"
    ports = {int(line["receiver"].rpartition(":")[2]) for line in received}
    assert max(ports) < 32_768, "no port that the system gives to a broker that dials"


def test_verdict_for_machines_has_every_check() -> None:
    told = holdfast("demo", "membership", "--scene", "same-election-timeout", "--json")
    assert told.code == 0 and told.json["passed"] is True and told.json["sent"] == 0, told
    ((scene,),) = [told.json["scenes"]]
    assert scene["scene"] == "same-election-timeout" and all(check["holds"] for check in scene["checks"])


def test_a_scene_with_a_check_that_does_not_hold_is_not_passed() -> None:
    assert Scene("one", [Check("it holds", holds=True)]).is_passed
    assert not Scene("two", [Check("it holds", holds=True), Check("it does not", holds=False)]).is_passed


def test_a_check_waits_and_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(play: MembershipPlay) -> None:
        play.check("never true", lambda: False)
        play.check_never("always true", lambda: True)

    monkeypatch.setitem(SCENES, "hopeless", scene)
    play = MembershipPlay(lambda line: None, patience_s=0.05, never_s=0.05)
    play.perform(["hopeless"])
    assert [check.holds for check in play.scenes[0].checks] == [False, False]


def test_equal_timeouts_elect_nobody_and_different_ones_do() -> None:
    same = Duel({"n1": 700, "n2": 700})
    said = list(same.play(TICKS_MAX))
    assert same.leader is None and same.term >= 3
    assert {line.member for line in said if "REQUEST_TO_VOTE, term: 3" in line.text} == {"n1", "n2"}
    other = Duel({"n1": 900, "n2": 700})
    assert [line.text for line in other.play(TICKS_MAX)][-2:] == ["Be voted by n1", "New leader n2, term: 1"]


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
    lines.settle()
    assert [line.partition("[")[2] for line in told] == [
        "Broker n1 LEADER] INFO: New leader n1",
        "Broker n1 FOLLOWER] INFO: Running on 127.0.0.1:8000",
    ]


def event(name: str, at_s: float, /, **facts: object) -> bytes:
    stamp = datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat()
    return json.dumps({"event": name, "timestamp": stamp, **facts}).encode() + b"\n"


def test_line_of_another_log_does_not_overtake_what_caused_it(tmp_path: Path) -> None:
    told: list[str] = []
    now_s = 1_000_000.0
    lines = BrokerLines(told.append, wall_s=lambda: now_s)
    logs = {node: tmp_path / f"{node}.log" for node in ("n1", "n2")}
    for node, log in logs.items():
        lines.follow(node, log, "somewhere")
    lines.settle()
    told.clear()
    logs["n2"].write_bytes(event("voted", now_s, candidate="n1", term=1))
    lines.drain()
    assert told == [], "the other log may have had no time yet"
    logs["n1"].write_bytes(event("asks_for_votes", now_s - 0.001, term=1))
    lines.settle()
    assert [line.partition("INFO: ")[2].partition(" ")[0] for line in told] == ["Timeout,", "Vote"]


def test_node_that_is_started_again_goes_on_with_its_log_as_a_follower(tmp_path: Path) -> None:
    told: list[str] = []
    lines = BrokerLines(told.append)
    log = tmp_path / "n1.log"
    log.write_bytes(event("new_leader", time.time(), leader="n1", term=1))
    lines.follow("n1", log, "here")
    lines.settle()
    assert lines.leader == "n1"
    told.clear()
    lines.follow("n1", log, "here")
    assert lines.leader is None
    with log.open("ab") as file:
        file.write(event("subscribed", time.time(), topic="t", name="s", address="a"))
    lines.settle()
    assert [line.partition("[")[2] for line in told] == [
        "Broker n1 FOLLOWER] INFO: Running on here",
        "Broker n1 FOLLOWER] INFO: Handle append_entries: SUBSCRIBE on topic: `t` from a",
    ]
    assert lines.have_handled("SUBSCRIBE a", ["n1"]) and not lines.have_handled("SUBSCRIBE a", ["n1", "n2"])

"""The checker finds what it is there to find: each violation is planted once, in a history that is clean otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from chaos import records
from chaos.checker import CHECKS, EXAMPLES_MAX, check
from chaos.history import CursorEvent, Fate, History, Place, Record, Seen, Sent, Served, TailRead, named
from chaos.run import ALL, plans

P0 = Place("t", 0)
NODES = ("n1", "n2", "n3")


def sent(sequence: int, offset: int | None = None, *, at: float, fate: Fate = "acknowledged", who: str = "p") -> Sent:
    value = f"{who}/{sequence}"
    place = P0 if offset is not None else None
    return Sent(who, sequence, "t", value, value, at, int(at * 1000), fate, "", at + 0.5, place, offset)


def serve(history: History, values: list[str], *, digest: str = "same") -> None:
    stored = tuple(Record(offset, value, value) for offset, value in enumerate(values))
    history.served = [Served(node, P0, digest, stored) for node in NODES]


def change(history: History, node: int, values: list[str], *, first: int = 0, digest: str = "other") -> None:
    stored = tuple(Record(first + offset, value, value) for offset, value in enumerate(values))
    history.served[node] = replace(history.served[node], records=stored, digest=digest)


def seen(offset: int, value: str, *, at: float = 10.0, reader: str = "r", session: int = 1) -> Seen:
    return Seen(reader, session, "n2", P0, offset, value, at, int(at * 1000))


def tail(end: int, *, began: float, reader: str = "tails") -> TailRead:
    return TailRead(reader, "n3", P0, began, began + 0.1, end)


@pytest.fixture
def history() -> History:
    """Three acknowledged messages, one unknown that is there, one that is not, one refused; and readers."""
    made = History(members=NODES)
    made.sent = [sent(number, number, at=float(number)) for number in range(3)]
    made.sent += [
        sent(0, at=1.1, fate="unknown", who="text"),
        sent(1, at=1.2, fate="unknown", who="text"),
        sent(2, at=1.3, fate="refused", who="text"),
        sent(3, at=1.4, who="text"),
    ]
    serve(made, ["p/0", "p/1", "p/2", "text/0", "text/3"])
    made.seen = [seen(0, "p/0"), seen(1, "p/1"), seen(2, "p/2"), seen(1, "p/1", session=2)]
    made.tails = [tail(1, began=0.6), tail(5, began=11.0)]
    made.cursors = [
        CursorEvent("c", "n1", P0, "moved", 1.0, 1.1, 2),
        CursorEvent("c", "n2", P0, "found", 1.2, 1.3, 2),
    ]
    return made


def test_clean_history_is_clean(history: History) -> None:
    verdict = check(history)
    assert verdict.is_clean and verdict.examples == []
    assert list(verdict.counts) == list(CHECKS), "every check says that it was made"


def lose_everywhere(history: History) -> None:
    serve(history, ["p/0", "p/1", "text/0", "text/3"])
    history.seen, history.tails = [], []


def lose_text(history: History) -> None:
    serve(history, ["p/0", "p/1", "p/2", "text/0"])
    history.tails = []


def lose_on_one(history: History) -> None:
    change(history, 1, ["p/0", "p/1"])
    history.seen = []


def swap(history: History) -> None:
    serve(history, ["p/1", "p/0", "p/2", "text/0", "text/3"])


def invent(history: History) -> None:
    serve(history, ["p/0", "p/1", "p/2", "text/0", "text/3", "nobody/1"])


def invent_for_a_reader(history: History) -> None:
    history.seen.append(seen(3, "nobody/1", reader="other"))


def repeat(history: History) -> None:
    serve(history, ["p/0", "p/1", "p/2", "text/0", "text/3", "p/1"])


def repeat_without_id(history: History) -> None:
    serve(history, ["p/0", "p/1", "p/2", "text/0", "text/3", "text/0"])


def store_refused(history: History) -> None:
    serve(history, ["p/0", "p/1", "p/2", "text/0", "text/3", "text/2"])


def leave_a_gap(history: History) -> None:
    for node in range(3):
        change(history, node, ["p/0", "p/1", "p/2", "text/0", "text/3"], first=1, digest="same")


def differ_in_bytes(history: History) -> None:
    history.served[2] = replace(history.served[2], digest="other")


def differ_in_length(history: History) -> None:
    change(history, 2, ["p/0", "p/1", "p/2", "text/0", "text/3", "text/1"])


def serve_nothing_of_a_partition(history: History) -> None:
    history.served.pop()


def go_back_in_time(history: History) -> None:
    history.sent.append(sent(0, 0, at=20.0, who="late"))


def show_and_take_away(history: History) -> None:
    history.seen.append(seen(5, "text/1", reader="other"))


def show_something_else(history: History) -> None:
    history.seen.append(seen(3, "text/1", reader="other"))


def skip(history: History) -> None:
    history.seen.append(seen(3, "text/0", session=2))


def show_twice(history: History) -> None:
    history.seen.append(seen(2, "p/2", session=1))


def read_behind_an_acknowledgement(history: History) -> None:
    history.tails.append(tail(1, began=1.6))


def read_behind_another_reader(history: History) -> None:
    history.tails.append(tail(4, began=12.0))


def read_behind_a_subscriber(history: History) -> None:
    history.seen.append(seen(4, "text/3", at=10.2, reader="other"))
    history.tails.append(tail(4, began=10.3))


def move_a_cursor_back(history: History) -> None:
    history.cursors.append(CursorEvent("c", "n3", P0, "found", 2.0, 2.1, 1))


def stand_still(history: History) -> None:
    history.stalls.append("nothing was acknowledged for 30 s")


PLANTED: list[tuple[Callable[[History], None], str]] = [
    (lose_everywhere, "acknowledged and lost"),
    (lose_text, "acknowledged and lost"),
    (lose_on_one, "acknowledged and lost"),
    (swap, "not where it was acknowledged"),
    (swap, "out of order of a producer"),
    (swap, "seen and gone"),
    (invent, "never sent"),
    (invent_for_a_reader, "never sent"),
    (repeat, "stored twice"),
    (repeat_without_id, "stored twice"),
    (store_refused, "refused, yet stored"),
    (leave_a_gap, "offsets with gaps"),
    (differ_in_bytes, "nodes differ"),
    (differ_in_length, "nodes differ"),
    (serve_nothing_of_a_partition, "nodes differ"),
    (go_back_in_time, "out of order in time"),
    (show_and_take_away, "seen and gone"),
    (show_something_else, "seen and gone"),
    (skip, "reader out of order"),
    (show_twice, "reader out of order"),
    (read_behind_an_acknowledgement, "stale read"),
    (read_behind_another_reader, "stale read"),
    (read_behind_a_subscriber, "stale read"),
    (move_a_cursor_back, "cursor went back"),
    (stand_still, "did not go on"),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=lambda given: getattr(given, "__name__", None))
def test_planted_violation_is_found(history: History, plant: Callable[[History], None], kind: str) -> None:
    plant(history)
    verdict = check(history)
    assert not verdict.is_clean
    assert verdict.counts[kind] >= 1, verdict.as_json()
    assert any(each.kind == kind and each.detail for each in verdict.examples)


def test_every_check_has_a_planted_violation() -> None:
    assert {kind for _, kind in PLANTED} == set(CHECKS)


def test_many_violations_are_counted_and_a_few_told(history: History) -> None:
    history.stalls = ["again"] * 1000
    verdict = check(history)
    assert verdict.counts["did not go on"] == 1000
    assert len(verdict.examples) == EXAMPLES_MAX


def test_record_files_are_what_an_audit_needs(history: History, tmp_path: Path) -> None:
    sent_file, received_file = records.write(history, tmp_path)
    assert records.read(sent_file)[0] == {
        "topic": "t",
        "id": "p/0",
        "sequence": 0,
        "time_ms": 0,
        "acknowledged": True,
        "partition": 0,
    }
    assert [line["acknowledged"] for line in records.read(sent_file)].count(True) == history.acknowledged
    second = records.read(received_file)[1]
    assert second.pop("receiver") == f"{history.seen[1].reader}-{history.seen[1].session}"
    assert second == {
        "topic": "t",
        "id": "p/1",
        "sequence": 1,
        "time_ms": 10_000,
        "broker": "n2",
        "partition": 0,
        "offset": 1,
    }
    assert sent_file.read_bytes().count(b"\n") == len(history.sent)
    logs = [line for line in records.read(received_file) if line["receiver"].startswith("log of ")]
    assert len(logs) == sum(len(one.records) for one in history.served) > 0
    assert {line["receiver"] for line in logs} == {f"log of {node}" for node in history.nodes()}


def test_value_is_known_by_its_first_word() -> None:
    assert named(b"p/17 xxxxxxxx") == "p/17"
    assert named(b"\xff") == "\\xff"


def test_plans_bring_every_fault_about_as_often_as_asked_and_mix_no_disks() -> None:
    made = plans(7, list(ALL), rounds=20, faults_per_run=4)
    assert made == plans(7, list(ALL), rounds=20, faults_per_run=4), "the same seed is the same plan"
    names = [name for plan in made for name in plan.names]
    assert {name: names.count(name) for name in ALL} == dict.fromkeys(ALL, 20)
    for plan in made:
        assert len({(ALL[name].disks, ALL[name].has_network) for name in plan.names}) == 1
        assert f"--seed {plan.seed}" in plan.replay

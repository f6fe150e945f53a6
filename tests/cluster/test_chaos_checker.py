"""The checker finds what it is there to find: each violation is planted once, in a history that is clean otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from testkit import records
from testkit.checker import CHECKS, EXAMPLES_MAX, check, gap_list, rates
from testkit.history import (
    ACKNOWLEDGED,
    FOREIGN,
    NOWHERE,
    REFUSED,
    UNKNOWN,
    CursorEvent,
    History,
    Place,
    TailRead,
    content,
)

P0 = Place("t", 0)
NODES = ("n1", "n2", "n3")


@dataclass(frozen=True)
class Sent:
    producer: str
    sequence: int
    at: float
    fate: int = ACKNOWLEDGED
    offset: int | None = None


@dataclass(frozen=True)
class Seen:
    offset: int
    value: str
    at: float = 10.0
    reader: str = "r"
    session: int = 1


@dataclass(frozen=True)
class Served:
    node: str
    values: list[str]
    digest: str = "same"
    first: int = 0


@dataclass
class Told:
    """A history as literals, to plant violations in: all of one partition. `exact` is promised everything once."""

    sent: list[Sent] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    tails: list[TailRead] = field(default_factory=list)
    cursors: list[CursorEvent] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    stalls: list[str] = field(default_factory=list)
    leaders: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def history(self) -> History:
        made = History(members=NODES, tails=self.tails, cursors=self.cursors, stalls=self.stalls, leaders=self.leaders)
        books = {name: made.producer(name, "t") for name in sorted({each.producer for each in self.sent})}
        for sent in sorted(self.sent, key=lambda one: one.sequence):
            book = books[sent.producer]
            assert list(book.send(1, sent.at)) == [sent.sequence], "sequences have no gaps"
            if sent.fate == ACKNOWLEDGED and sent.offset is not None:
                book.acknowledge(sent.sequence, sent.at + 0.5, made.place(*P0), sent.offset)
            elif sent.fate == ACKNOWLEDGED:
                book.acknowledge(sent.sequence, sent.at + 0.5)
            elif sent.fate == REFUSED:
                book.refuse(sent.sequence)
        for name in sorted({each.reader for each in self.seen}):
            got = made.reader(name, "n2", all_of="t" if name == "exact" else "")
            for seen in self.seen:
                if seen.reader == name:
                    got.got(seen.session, made.place(*P0), seen.offset, made.message(seen.value.encode()), seen.at)
        for one in self.served:
            offsets = range(one.first, one.first + len(one.values))
            messages = [made.message(value.encode()) for value in one.values]
            made.add_copy(one.node, made.place(*P0), one.digest, content(offsets, messages))
        return made


def serve(told: Told, values: list[str]) -> None:
    told.served = [Served(node, values) for node in NODES]


def change(told: Told, node: int, values: list[str], *, first: int = 0, digest: str = "other") -> None:
    told.served[node] = Served(NODES[node], values, digest, first)


def tail(end: int, *, began: float, reader: str = "tails") -> TailRead:
    return TailRead(reader, "n3", P0, began, began + 0.1, end)


STORED = ["p/0", "p/1", "p/2", "text/0", "text/3"]


@pytest.fixture
def told() -> Told:
    """Three acknowledged messages, one unknown that is there, one that is not, one refused; and readers."""
    made = Told()
    made.sent = [Sent("p", number, float(number), offset=number) for number in range(3)]
    made.sent += [
        Sent("text", 0, 1.1, UNKNOWN),
        Sent("text", 1, 1.2, UNKNOWN),
        Sent("text", 2, 1.3, REFUSED),
        Sent("text", 3, 1.4),
    ]
    serve(made, STORED)
    made.seen = [Seen(0, "p/0"), Seen(1, "p/1"), Seen(2, "p/2"), Seen(1, "p/1", session=2)]
    made.seen += [Seen(offset, value, 10.0, "exact", 1 + offset // 3) for offset, value in enumerate(STORED)]
    made.seen += [Seen(NOWHERE, value, reader="text", session=2) for value in STORED[1:4]]
    made.tails = [tail(1, began=0.6), tail(5, began=11.0)]
    made.cursors = [
        CursorEvent("c", "n1", P0, "moved", 1.0, 1.1, 2),
        CursorEvent("c", "n2", P0, "found", 1.2, 1.3, 2),
    ]
    made.leaders = {("t/0", 3): {"n1"}, ("t/0", 4): {"n2"}}
    return made


def test_clean_history_is_clean(told: Told) -> None:
    verdict = check(told.history())
    assert verdict.is_clean and verdict.examples == []
    assert list(verdict.counts) == list(CHECKS), "every check says that it was made"
    assert check(History()).is_clean


def lose_everywhere(told: Told) -> None:
    serve(told, ["p/0", "p/1", "text/0", "text/3"])
    told.seen, told.tails = [], []


def lose_text(told: Told) -> None:
    serve(told, ["p/0", "p/1", "p/2", "text/0"])
    told.tails = []


def lose_on_one(told: Told) -> None:
    change(told, 1, ["p/0", "p/1"])
    told.seen = []


def swap(told: Told) -> None:
    serve(told, ["p/1", "p/0", "p/2", "text/0", "text/3"])


def invent(told: Told) -> None:
    serve(told, ["p/0", "p/1", "p/2", "text/0", "text/3", "nobody/1"])


def invent_for_a_reader(told: Told) -> None:
    told.seen.append(Seen(3, "nobody/1", reader="other"))


def repeat(told: Told) -> None:
    serve(told, ["p/0", "p/1", "p/2", "text/0", "text/3", "p/1"])


def repeat_without_id(told: Told) -> None:
    serve(told, ["p/0", "p/1", "p/2", "text/0", "text/3", "text/0"])


def store_refused(told: Told) -> None:
    serve(told, ["p/0", "p/1", "p/2", "text/0", "text/3", "text/2"])


def leave_a_gap(told: Told) -> None:
    for node in range(3):
        change(told, node, ["p/0", "p/1", "p/2", "text/0", "text/3"], first=1, digest="same")


def differ_in_bytes(told: Told) -> None:
    told.served[2] = replace(told.served[2], digest="other")


def differ_in_length(told: Told) -> None:
    change(told, 2, ["p/0", "p/1", "p/2", "text/0", "text/3", "text/1"])


def serve_nothing_of_a_partition(told: Told) -> None:
    told.served.pop()


def go_back_in_time(told: Told) -> None:
    told.sent.append(Sent("late", 0, 20.0, offset=0))


def show_and_take_away(told: Told) -> None:
    told.seen.append(Seen(5, "text/1", reader="other"))


def show_something_else(told: Told) -> None:
    told.seen.append(Seen(3, "text/1", reader="other"))


def skip(told: Told) -> None:
    told.seen.append(Seen(3, "text/0", session=2))


def show_twice(told: Told) -> None:
    told.seen.append(Seen(2, "p/2", session=1))


def read_behind_an_acknowledgement(told: Told) -> None:
    told.tails.append(tail(1, began=1.6))


def read_behind_another_reader(told: Told) -> None:
    told.tails.append(tail(4, began=12.0))


def read_behind_a_subscriber(told: Told) -> None:
    told.seen.append(Seen(4, "text/3", at=10.2, reader="other"))
    told.tails.append(tail(4, began=10.3))


def deliver_nothing_of_one(told: Told) -> None:
    told.seen = [each for each in told.seen if (each.reader, each.value) != ("exact", "text/3")]


def deliver_nothing_at_all(told: Told) -> None:
    told.seen = [Seen(0, "p/0", reader="exact")]


def deliver_again_in_another_session(told: Told) -> None:
    told.seen.append(Seen(0, "p/0", 12.0, "exact", 3))


def lead_one_term_twice(told: Told) -> None:
    told.leaders["t/0", 4].add("n3")


def show_a_text_subscriber_one_twice(told: Told) -> None:
    told.seen += [Seen(NOWHERE, value, reader="text") for value in ("p/1", "p/1", "p/2")]


def skip_one_for_a_text_subscriber(told: Told) -> None:
    told.seen += [Seen(NOWHERE, value, reader="text") for value in ("p/0", "p/2")]


def show_a_text_subscriber_what_is_gone(told: Told) -> None:
    told.seen.append(Seen(NOWHERE, "text/1", reader="text"))


def move_a_cursor_back(told: Told) -> None:
    told.cursors.append(CursorEvent("c", "n3", P0, "found", 2.0, 2.1, 1))


def stand_still(told: Told) -> None:
    told.stalls.append("nothing was acknowledged for 30 s")


PLANTED: list[tuple[Callable[[Told], None], str]] = [
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
    (show_a_text_subscriber_one_twice, "reader out of order"),
    (skip_one_for_a_text_subscriber, "reader out of order"),
    (show_a_text_subscriber_what_is_gone, "seen and gone"),
    (read_behind_an_acknowledgement, "stale read"),
    (read_behind_another_reader, "stale read"),
    (read_behind_a_subscriber, "stale read"),
    (deliver_nothing_of_one, "acknowledged and not delivered"),
    (deliver_nothing_at_all, "acknowledged and not delivered"),
    (deliver_again_in_another_session, "delivered twice"),
    (lead_one_term_twice, "two leaders of one term"),
    (move_a_cursor_back, "cursor went back"),
    (stand_still, "did not go on"),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=lambda given: getattr(given, "__name__", None))
def test_planted_violation_is_found(told: Told, plant: Callable[[Told], None], kind: str) -> None:
    plant(told)
    verdict = check(told.history())
    assert not verdict.is_clean
    assert verdict.counts[kind] >= 1, verdict.as_json()
    assert any(each.kind == kind and each.detail for each in verdict.examples)
    assert check(told.history(), [kind]).counts == {kind: verdict.counts[kind]}, "the same by itself"


def test_every_check_has_a_planted_violation() -> None:
    assert {kind for _, kind in PLANTED} == set(CHECKS)


def test_many_violations_are_counted_and_a_few_told(told: Told) -> None:
    told.stalls = ["again"] * 1000
    verdict = check(told.history())
    assert verdict.counts["did not go on"] == 1000
    assert len(verdict.examples) == EXAMPLES_MAX


def test_message_that_stands_in_another_topic_was_not_sent_there(told: Told) -> None:
    history = told.history()
    history.add_copy("n1", history.place("other", 0), "d", content([0], [history.message(b"p/0")]))
    assert check(history).counts["never sent"] == 1


def test_message_that_stands_in_another_partition_is_not_where_it_was_acknowledged(told: Told) -> None:
    told.seen, told.tails = [], []
    told.sent.append(Sent("q", 0, 5.0, offset=5))
    history = told.history()
    for node in NODES:
        history.add_copy(node, history.place("t", 1), "d", content([0], [history.message(b"q/0")]))
    verdict = check(history)
    assert {kind for kind, count in verdict.counts.items() if count} == {"not where it was acknowledged"}
    assert verdict.counts["not where it was acknowledged"] == len(NODES)


def test_topic_of_another_workload_is_looked_at_only_for_what_all_nodes_serve(tmp_path: Path) -> None:
    history = History(members=("n1", "n2"), foreign_topics={"queue-1"})
    for node in history.members:
        history.add_copy(node, history.place("queue-1", 0), "same", content([0], [FOREIGN]))
    assert check(history).is_clean
    assert records.read(records.write(history, tmp_path)[1]) == []
    history.copies[1] = history.copies[1]._replace(digest="other")
    assert [each.kind for each in check(history).examples] == ["nodes differ"]


def test_values_that_a_database_has_are_checked_in_their_order() -> None:
    history = History()
    book = history.producer("p", "t")
    for sequence in book.send(3, 1.0):
        book.acknowledge(sequence, 2.0)
    history.add_values("database", P0, [b"p/0 x", b"p/2", b"p/1", b"p/1", b"p/9"])
    found = {kind: count for kind, count in check(history).counts.items() if count}
    assert found == {"never sent": 1, "stored twice": 1, "out of order of a producer": 2}


def test_times_without_an_acknowledgement_are_told() -> None:
    history = History()
    book = history.producer("p", "t")
    for at in (1.0, 1.5, 4.0, 4.2):
        book.acknowledge(book.send(1, at)[0], at)
    assert gap_list(history, 1.0) == [(1.5, 4.0)]
    assert rates(history, 0.0, 5.0, 1.0) == [0.0, 2.0, 0.0, 0.0, 2.0]


def test_record_files_are_what_an_audit_needs(told: Told, tmp_path: Path) -> None:
    history = told.history()
    history.epoch_s = 1000.0
    sent, received = map(records.read, records.write(history, tmp_path))
    assert sent[1] == {
        "topic": "t",
        "id": "p/1",
        "sequence": 1,
        "time_ms": 1_001_000,
        "acknowledged": True,
        "partition": 0,
    }
    assert len(sent) == history.sent and "partition" not in sent[-1]
    assert [line["acknowledged"] for line in sent].count(True) == history.acknowledged
    of_sessions = [line for line in received if line["receiver"] == "r-1"]
    assert of_sessions[1] == {
        "topic": "t",
        "id": "p/1",
        "time_ms": 1_010_000,
        "broker": "n2",
        "receiver": "r-1",
        "partition": 0,
        "offset": 1,
    }
    assert len([line for line in received if line["receiver"] == "exact"]) == len(STORED), "over all its sessions"
    logs = {line["receiver"]: line["broker"] for line in received if line["receiver"].startswith("log of ")}
    assert logs == {f"log of {node}": node for node in NODES}


def test_value_is_known_by_its_first_word() -> None:
    history = History()
    history.producer("p", "t").send(18, 1.0)
    assert history.named(history.message(b"p/17 xxxxxxxx")) == "p/17"
    assert history.named(history.message(b"\xff")) == "\\xff"

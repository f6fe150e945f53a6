"""The checker of long runs finds what the one of short runs finds, in columns instead of objects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chaos import checker
from chaos.history import History
from chaos.mixed.judge import CHECKS, gap_list, judge, rates
from chaos.mixed.ledger import ACKNOWLEDGED, FOREIGN, REFUSED, UNKNOWN, Ledger, content
from chaos.mixed.registry import LOADS, TROUBLES
from chaos.mixed.script import Episode, episodes, goes_with, must_go_on
from chaos.mixed.troubles import ALL

from tests.cluster.test_chaos_checker import PLANTED, history

__all__ = ["history"]  # the fixture

FATES = {"unknown": UNKNOWN, "acknowledged": ACKNOWLEDGED, "refused": REFUSED}


def in_columns(told: History) -> Ledger:
    """The same history as a ledger."""
    ledger = Ledger(members=told.members)
    books = {name: ledger.producer(name, "t") for name in sorted({each.producer for each in told.sent})}
    for each in sorted(told.sent, key=lambda one: one.sequence):
        book = books[each.producer]
        assert list(book.send(1, each.sent_at)) == [each.sequence], "sequences have no gaps"
        book.fate[each.sequence] = FATES[each.fate]
        book.acknowledged += each.fate == "acknowledged"
        book.answered_at[each.sequence] = each.answered_at
        if each.place is not None and each.offset is not None:
            book.place[each.sequence], book.offset[each.sequence] = ledger.place(*each.place), each.offset
    for name in sorted({each.reader for each in told.seen}):
        got = ledger.reader(name, "n2")
        for each in told.seen:
            if each.reader == name:
                place = ledger.place(*each.place)
                got.got(each.session, place, each.offset, ledger.message(each.value.encode()), each.at)
    for one in told.served:
        messages = [ledger.message(record.value.encode()) for record in one.records]
        offsets = [record.offset for record in one.records]
        ledger.add_copy(one.node, ledger.place(*one.place), one.digest, content(offsets, messages))
    ledger.rare = told
    return ledger


def test_clean_history_is_clean(history: History) -> None:
    verdict = judge(in_columns(history))
    assert verdict.is_clean and verdict.examples == []
    assert list(verdict.counts) == list(CHECKS), "every check says that it was made"
    assert set(CHECKS) - set(checker.CHECKS) == {"two leaders of one term"}


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=lambda given: getattr(given, "__name__", None))
def test_planted_violation_is_found_as_often(history: History, plant: Callable[[History], None], kind: str) -> None:
    plant(history)
    expected, verdict = checker.check(history), judge(in_columns(history))
    assert verdict.counts[kind] >= 1
    assert {kind: count for kind, count in verdict.counts.items() if count} == {
        kind: count for kind, count in expected.counts.items() if count
    }
    assert any(each.kind == kind and each.detail for each in verdict.examples)


def test_second_leader_of_a_term_is_found(history: History) -> None:
    ledger = in_columns(history)
    ledger.leaders = {("orders/0", 3): {"n1"}, ("orders/0", 4): {"n2", "n3"}}
    verdict = judge(ledger)
    assert [each.detail for each in verdict.examples] == ["orders/0: n2, n3 led in term 4"]


def test_message_that_stands_in_another_topic_was_not_sent_there(history: History) -> None:
    ledger = in_columns(history)
    ledger.add_copy("n1", ledger.place("other", 0), "d", content([0], [ledger.message(b"p/0")]))
    assert judge(ledger).counts["never sent"] == 1


def test_topic_of_another_load_is_looked_at_only_for_what_all_nodes_serve() -> None:
    ledger = Ledger(members=("n1", "n2"), foreign_topics={"queue-1"})
    for node in ledger.members:
        ledger.add_copy(node, ledger.place("queue-1", 0), "same", content([0], [FOREIGN]))
    assert judge(ledger).is_clean
    ledger.copies[1] = ledger.copies[1]._replace(digest="other")
    assert [each.kind for each in judge(ledger).examples] == ["nodes differ"]


def test_times_without_an_acknowledgement_are_told() -> None:
    ledger = Ledger()
    book = ledger.producer("p", "t")
    for at in (1.0, 1.5, 4.0, 4.2):
        book.acknowledge(book.send(1, at)[0], at)
    assert gap_list(ledger, 1.0) == [(1.5, 4.0)]
    assert rates(ledger, 0.0, 5.0, 1.0) == [0.0, 2.0, 0.0, 0.0, 2.0]


def test_nothing_at_all_is_judged_too() -> None:
    assert judge(Ledger()).is_clean


# --- the script -------------------------------------------------------------------------------------------------------


def some(seed: int, count: int = 60) -> list[Episode]:
    script = episodes(seed, TROUBLES, 5)
    return [next(script) for _ in range(count)]


def test_same_seed_brings_the_same_troubles_and_every_kind_comes_in_turn() -> None:
    assert some(7) == some(7)
    assert some(7) != some(8)
    dealt = [act.name for episode in some(7) for act in episode.acts]
    assert set(dealt[: len(TROUBLES)]) == set(TROUBLES), "each comes once before any comes again"


def test_troubles_of_one_episode_never_break_more_than_was_promised() -> None:
    overlaps = 0
    for seed in range(200):
        for episode in some(seed, 20):
            kinds = [TROUBLES[act.name] for act in episode.acts]
            overlaps += len(kinds) > 1
            for index, kind in enumerate(kinds):
                assert goes_with(kind, kinds[:index], 5)
            assert not any(kind.alone for kind in kinds) or len(kinds) == 1, "a lost disk has all others well"
            of_nodes = [kind for kind in kinds if kind.layer == "nodes"]
            assert len(of_nodes) == 1 or sum(kind.hurts for kind in of_nodes) <= 5
            assert not any(kind.hurts == ALL for kind in of_nodes) or len(of_nodes) == 1
            for layer in ("network", "weather", "clocks"):
                assert sum(kind.layer == layer for kind in kinds) <= 1
            if must_go_on(episode.acts, TROUBLES, 5):
                assert all(kind.leaves_majority for kind in kinds)
    assert overlaps > 1000, "most episodes are of several troubles"


def test_every_trouble_and_every_load_is_found_by_its_name() -> None:
    assert all(name == kind.name for name, kind in {**TROUBLES, **LOADS}.items())
    assert "publish and read" in LOADS

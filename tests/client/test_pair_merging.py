"""Two brokers' messages as one stream: each once, in order, and no waiting for a broker that is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.merging import HANDOVER_S, Merge, Pong
from holdfast.wire.text_answers import Delivered


def message(number: int) -> Delivered:
    return Delivered(f"0-{number}", "t", b"%d" % number)


def come(merge: Merge, broker: int, *numbers: int, now: float = 0.0) -> None:
    for number in numbers:
        merge.came(broker, message(number), now)


def taken(merge: Merge, now: float = 0.0) -> list[tuple[int, int]]:
    """Everything that is to be had now: which broker, which message."""
    found = []
    while (one := merge.next(now)) is not None:
        found.append((one[0], int(one[1].value)))
    return found


def pair() -> Merge:
    merge = Merge(2)
    for broker in (0, 1):
        merge.connected(broker, 0.0)
    return merge


def test_backup_goes_on_at_once_when_the_primary_is_gone_and_repeats_nothing() -> None:
    merge = pair()
    come(merge, 0, 1, 2, 3)
    assert taken(merge) == [(0, 1), (0, 2), (0, 3)]
    merge.lost(0)
    come(merge, 1, 2, 3, 4)
    assert taken(merge) == [(1, 4)]
    assert merge.duplicates == 2


def test_last_messages_of_the_old_primary_are_not_overtaken() -> None:
    """They are on this machine already, and only not read yet."""
    merge = pair()
    come(merge, 0, 1)
    assert taken(merge) == [(0, 1)]
    come(merge, 1, 3, 4)
    assert taken(merge) == [], "message 2 may be on its way"
    come(merge, 0, 2)
    merge.lost(0)
    assert taken(merge) == [(0, 2), (1, 3), (1, 4)]


def test_living_broker_is_asked_whether_it_has_something_older() -> None:
    merge = pair()
    merge.pinged(0)
    come(merge, 0, 1)
    come(merge, 1, 3)
    assert taken(merge) == [(0, 1)]
    assert merge.asks() == 0
    merge.pinged(0)
    assert merge.asks() is None, "it is asked once"
    merge.came(0, Pong(), 0.0)
    assert taken(merge) == [], "that was the answer to an older question"
    come(merge, 0, 2)
    merge.came(0, Pong(), 0.0)
    assert taken(merge) == [(0, 2), (1, 3)]


def test_silent_broker_is_waited_for_a_moment_and_no_longer() -> None:
    merge = pair()
    come(merge, 1, 1, now=5.0)
    assert taken(merge, 5.0) == []
    wakes_at = merge.wakes_at()
    assert wakes_at == 5.0 + HANDOVER_S
    assert taken(merge, 5.0 + HANDOVER_S / 2) == []
    assert taken(merge, wakes_at) == [(1, 1)]
    assert merge.wakes_at() is None


def test_broker_that_could_not_be_heard_was_not_silent() -> None:
    merge = pair()
    come(merge, 1, 2)
    assert taken(merge, 0.0) == []
    merge.heard(0, 5.0)
    assert taken(merge, 5.0) == []
    come(merge, 0, 1, now=5.01)
    assert taken(merge, 5.01) == [(0, 1)]


def test_repeated_messages_of_the_other_broker_need_no_question() -> None:
    merge = pair()
    come(merge, 0, 1, 2)
    come(merge, 1, 1, 2)
    assert taken(merge) == [(0, 1), (0, 2)]
    assert merge.asks() is None and merge.wakes_at() is None and merge.duplicates == 2


def test_message_right_behind_the_answer_to_a_ping_is_not_thrown_away_with_it() -> None:
    """A broker that is connected to anew answers the greeting's ping and delivers in one breath."""
    merge = pair()
    come(merge, 0, 1)
    assert taken(merge) == [(0, 1)]
    merge.lost(0)
    merge.lost(1)
    merge.connected(1, 1.0)
    merge.came(1, Pong(), 1.0)
    come(merge, 1, 2, 3, now=1.0)
    assert taken(merge, 1.0) == [(1, 2), (1, 3)]
    assert merge.duplicates == 0


def test_topic_made_anew_may_use_its_ids_again() -> None:
    merge = Merge(1)
    merge.connected(0, 0.0)
    come(merge, 0, 1)
    taken(merge)
    merge.forget_ids()
    come(merge, 0, 1)
    assert taken(merge) == [(0, 1)]


def test_bytes_that_nobody_took_are_counted_and_uncounted() -> None:
    merge = pair()
    come(merge, 0, 1, 2)
    come(merge, 1, 1)
    assert merge.waiting_bytes(0) > 0 < merge.waiting_bytes(1)
    taken(merge)
    assert merge.waiting_bytes(0) == merge.waiting_bytes(1) == 0


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.booleans()), min_size=1, max_size=30), st.data())
def test_failovers_back_and_forth_give_each_message_once_and_in_order(
    reigns: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    """Each reign: a broker delivers what is new, dies or falls silent, and the other repeats the last few."""
    merge = pair()
    got: list[int] = []
    end, current, now = 0, 0, 0.0
    for new, repeated, falls_silent in reigns:
        numbers = range(max(0, end - repeated), end + new)
        end += new
        for number in numbers:
            now += 0.001
            if data.draw(st.booleans()):
                merge.came(current, Pong(), now)
            come(merge, current, number, now=now)
            if data.draw(st.booleans()):
                got += [found for _, found in taken(merge, now)]
        if falls_silent:
            now += 1.0
            got += [found for _, found in taken(merge, now)]
            now += 1.0
            got += [found for _, found in taken(merge, now)]
        else:
            merge.lost(current)
        merge.connected(1 - current, now)
        current = 1 - current
    now += 1.0
    got += [found for _, found in taken(merge, now)]
    got += [found for _, found in taken(merge, now + 1.0)]
    assert got == list(range(end))


@pytest.mark.parametrize("form", ["5f0c91aa0b7d22e4-{}", "{:032x}+"], ids=["numbered", "random"])
def test_a_long_split_is_delivered_once(form: str) -> None:
    """Both sides take and deliver messages, and then one gives the other what only it had."""
    count = 30_000
    sides = [[form.format(number) for number in range(count)], [f"0-3-{number}" for number in range(count)]]
    merge = pair()
    for first in range(0, count, 1_000):
        for broker, ids in enumerate(sides):
            for message_id in ids[first : first + 1_000]:
                merge.came(broker, Delivered(message_id, "t", b""), 0.0)
            merge.lost(1 - broker)
            while merge.next(0.0) is not None:
                pass
            merge.connected(1 - broker, 0.0)
    assert merge.duplicates == 0
    for message_id in sides[0]:
        merge.came(1, Delivered(message_id, "t", b""), 0.0)
    merge.came(1, Delivered("new", "t", b""), 0.0)
    merge.lost(0)
    found = merge.next(0.0)
    assert found is not None and found[1].message_id == "new"
    assert merge.duplicates == count

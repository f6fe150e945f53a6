"""A cursor may only move behind messages that are all done."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import ack_ranges
from holdfast.client.ack_ranges import AckRanges, TooManyOpenRanges


@given(st.permutations(range(12)), st.integers(0, 12))
def test_no_unacknowledged_message_is_skipped_whatever_the_order(order: list[int], stop_after: int) -> None:
    ranges = AckRanges(100)
    done: set[int] = set()
    for number in order[:stop_after]:
        ranges.done(100 + number, 101 + number)
        done.add(number)
        first_open = next(n for n in range(13) if n not in done)
        assert ranges.done_below == 100 + first_open


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.randoms())
def test_ranges_of_any_length_grow_together(lengths: list[int], dice: random.Random) -> None:
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    pieces = list(zip(starts, lengths, strict=True))
    dice.shuffle(pieces)
    ranges = AckRanges(0)
    for start, length in pieces:
        ranges.done(start, start + length)
    assert ranges.done_below == sum(lengths)
    assert ranges.open_ranges == 0


def test_acknowledging_everything_closes_what_was_open() -> None:
    ranges = AckRanges(0)
    ranges.done(3, 4)
    ranges.done(7, 9)
    ranges.all_done_below(7)
    assert ranges.done_below == 9
    assert ranges.open_ranges == 0


def test_what_is_done_already_stays_done() -> None:
    ranges = AckRanges(5)
    ranges.done(2, 4)
    ranges.all_done_below(3)
    assert ranges.done_below == 5


def test_one_forgotten_message_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_ranges, "ACK_RANGES_MAX", 3)
    ranges = AckRanges(0)
    for offset in (2, 4, 6):
        ranges.done(offset, offset + 1)
    with pytest.raises(TooManyOpenRanges, match="offset 0"):
        ranges.done(8, 9)
    ranges.done(7, 8)
    ranges.done(0, 1)
    ranges.done(1, 2)
    assert ranges.done_below == 3

"""The terms of a log, also where damage took the beginning of it."""

from __future__ import annotations

from holdfast.consensus.log_shape import LogShape
from holdfast.model.ids import LogIndex, Term


def test_log_whose_first_entries_are_damaged_does_not_end_the_node() -> None:
    """No run of terms covers them; the log is as long as it was."""
    shape = LogShape.of_runs(LogIndex(4), Term(2), [(LogIndex(8), Term(3))], LogIndex(9))
    assert [shape.term_at(LogIndex(index)) for index in range(3, 11)] == [None, 2, 2, 2, 2, 3, 3, None]
    assert shape.place_at_or_below(LogIndex(9), Term(2)) == (7, 2)


def test_log_of_which_nothing_is_left_but_its_length_does_not_end_the_node() -> None:
    shape = LogShape.of_runs(LogIndex(0), Term(0), [], LogIndex(3))
    assert shape.last_term == 0
    assert [shape.term_at(LogIndex(index)) for index in range(5)] == [0, 0, 0, 0, None]
    shape.append(Term(1))
    assert shape.term_at(LogIndex(4)) == 1

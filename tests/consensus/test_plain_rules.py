"""The rules of a plain pair: who gives way, what may be acknowledged, and what is delivered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consensus.plain_marks import NAMES_MAX, Marks, Names, name_of_id, name_of_value
from holdfast.consensus.plain_sending import IN_FLIGHT_MAX, NEAR, BadConfirmation, Mode, Sending
from holdfast.consensus.plain_standing import NO_REIGN, Reign, Role, Standing, Verdict, common_end, decide

reigns = st.builds(Reign, st.integers(0, 3), st.sampled_from("ab"))


def standing(token: str, role: Role, reign: Reign, end: int = 0, base: int = 0, previous: Reign = NO_REIGN) -> Standing:
    return Standing(role, token, reign, previous, base, 0, end, 0)


@given(st.sampled_from(Role), reigns, st.integers(0, 3), st.sampled_from(Role), reigns, st.integers(0, 3))
def test_two_that_meet_never_both_serve_on_nor_both_give_way(
    role: Role, reign: Reign, end: int, other_role: Role, other_reign: Reign, other_end: int
) -> None:
    one, other = standing("a", role, reign, end), standing("b", other_role, other_reign, other_end)
    verdicts = {decide(one, other), decide(other, one)}
    both = (decide(one, other), decide(other, one))
    serve = (Verdict.SERVE, Verdict.SEND)
    if reign != other_reign and Role.BACKUP not in (role, other_role):
        assert Verdict.GIVE_WAY in verdicts and verdicts & set(serve), "exactly one of two primaries stays"
    assert both.count(Verdict.GIVE_WAY) < 2 and both.count(Verdict.TAKE_OVER) < 2
    if role is other_role is Role.BACKUP and NO_REIGN not in (reign, other_reign):
        assert both.count(Verdict.TAKE_OVER) == 1, "one of two backups serves"


def test_only_what_the_winner_cannot_have_is_given() -> None:
    first, second, third = Reign(1, "a"), Reign(2, "b"), Reign(3, "a")
    old = standing("a", Role.PRIMARY, first, end=100)
    assert common_end(old, standing("b", Role.PRIMARY, second, 150, base=98, previous=first)) == 98
    assert common_end(old._replace(end=90), standing("b", Role.PRIMARY, second, 150, base=98, previous=first)) == 90
    # Both went on from the same reign: what is common ends where the first of them did.
    one = standing("b", Role.BACKUP, second, 150, base=98, previous=first)
    assert common_end(one, standing("a", Role.PRIMARY, third, 200, base=100, previous=first)) == 98
    # Nothing is known to be common: everything is given.
    assert common_end(one, standing("c", Role.PRIMARY, Reign(9, "c"), 9, base=5, previous=Reign(8, "d"))) == 0
    assert common_end(standing("b", Role.BACKUP, NO_REIGN, 7), standing("a", Role.PRIMARY, first, 9, base=7)) == 0


def sending(**changes: int) -> Sending:
    positions = {"stored": 0, "committed": 0, "confirmed": 0, **changes}
    return Sending(**positions, requires_backup=False)


def test_together_nothing_is_committed_before_it_is_confirmed() -> None:
    primary = sending()
    primary.opened(0, confirms=True)
    assert primary.mode is Mode.TOGETHER
    primary.stored_to(3)
    assert (primary.committed, primary.next_to_send()) == (0, (0, 3))
    primary.sent_to(3)
    primary.confirm(2)
    assert primary.committed == 2
    primary.closed()
    assert (primary.committed, primary.mode) == (2, Mode.TOGETHER), "a broken connection proves nothing"
    primary.gone()
    assert (primary.committed, primary.mode) == (3, Mode.ALONE)


def test_what_was_committed_alone_is_confirmed_before_it_counts_as_together() -> None:
    primary = sending()
    primary.gone()
    primary.stored_to(5)
    primary.opened(1, confirms=True)
    primary.stored_to(7)
    assert (primary.mode, primary.committed) == (Mode.CATCHING_UP, 5), "new ones wait already"
    primary.sent_to(7)
    primary.confirm(4)
    assert primary.mode is Mode.CATCHING_UP
    primary.confirm(5)
    assert (primary.mode, primary.committed) == (Mode.TOGETHER, 5)
    primary.opened(2, confirms=True)
    assert primary.mode is Mode.CATCHING_UP, "its disk is another one"


def test_a_backup_far_behind_holds_nobody_up_and_is_not_drowned() -> None:
    primary = sending()
    primary.gone()
    primary.stored_to(NEAR + IN_FLIGHT_MAX + 10)
    primary.opened(0, confirms=True)
    assert primary.mode is Mode.ALONE and primary.next_to_send() == (0, IN_FLIGHT_MAX)
    primary.sent_to(IN_FLIGHT_MAX)
    assert primary.next_to_send() is None
    primary.confirm(IN_FLIGHT_MAX)
    primary.sent_to(primary.stored)
    primary.confirm(primary.stored)
    assert [primary.mode] == [Mode.TOGETHER]


def test_confirmations_of_what_was_never_sent_are_refused() -> None:
    primary = sending(stored=2)
    primary.opened(0, confirms=True)
    primary.sent_to(1)
    with pytest.raises(BadConfirmation):
        primary.confirm(2)
    primary.closed()
    with pytest.raises(BadConfirmation):
        primary.confirm(1)


def test_one_that_never_confirms_leaves_the_primary_alone_and_gets_everything_once() -> None:
    primary = sending(stored=2)
    primary.opened(0, confirms=True)
    primary.sent_to(2)
    primary.never_confirms()
    assert (primary.mode, primary.committed) == (Mode.ALONE, 2)
    primary.read_to(2)
    primary.stored_to(4)
    assert primary.next_to_send() == (2, 4) and primary.mode is Mode.ALONE


def test_with_a_required_backup_nothing_is_committed_alone() -> None:
    primary = Sending(stored=0, committed=0, confirmed=0, requires_backup=True)
    primary.gone()
    primary.stored_to(2)
    assert primary.committed == 0
    primary.opened(0, confirms=True)
    primary.sent_to(2)
    primary.confirm(2)
    assert (primary.committed, primary.mode) == (2, Mode.TOGETHER)


@given(st.permutations(range(12)), st.integers(0, 12))
def test_marks_in_any_order_are_one_mark_in_the_end(order: list[int], count: int) -> None:
    marks = Marks(0)
    for position in order[:count]:
        marks.add(position)
        marks.add(position)
    assert [marks.has(position) for position in range(12)] == [position in order[:count] for position in range(12)]
    assert marks.mark == next((position for position in range(12) if position not in order[:count]), 12)
    again = Marks(marks.mark, marks.apart)
    assert [again.has(position) for position in range(12)] == [marks.has(position) for position in range(12)]


def test_names_are_found_by_number_and_bounded() -> None:
    names = Names()
    names.add(name_of_id("x"), 0, 1)
    names.add(name_of_id("x"), 1, 2)
    assert names.find(name_of_id("x"), 2) == 1 and names.find(name_of_id("x"), 3) is None
    assert names.take(name_of_id("x"), 2) == 1 and names.take(name_of_id("x"), 2) is None
    assert names.take(name_of_id("x"), 1) == 0 and names.count == 0
    names.add(name_of_id("y"), 7, None)
    assert names.find(name_of_id("y"), 4) is None and names.unnumbered(name_of_id("y")) == [7]
    names.number(name_of_id("y"), 7, 4)
    assert names.find(name_of_id("y"), 4) == 7 and names.unnumbered(name_of_id("y")) == []
    assert names.take(name_of_id("y"), 4) == 7 and names.count == 0
    for position in range(NAMES_MAX + 5):
        names.add(name_of_value("t", b"%d" % (position % 7 if position < 7 else position)), position, None)
    assert names.count <= NAMES_MAX

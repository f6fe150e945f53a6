"""Rows of members: what a command may change, what it refuses, and what a late copy of it does."""

from __future__ import annotations

import pytest

from holdfast.consensus.members import ReplicaId
from holdfast.consensus.membership import Change, Kind, Membership, Place
from holdfast.model.errors import BadValue, HoldfastError
from holdfast.model.member_errors import MembershipChanging, NodeNotFound, WouldLoseQuorum

FOUNDERS = tuple(ReplicaId(f"n{number}.a") for number in (1, 2, 3))


class Rows:
    """A membership and the numbers of its commands."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.number = 0

    def make(self, kind: Kind, node: str, other: str = "", *, lives: tuple[str, ...] = ("a",)) -> Change:
        change = Change(kind, node, self.membership.number_of(node), 0, other)
        self.again(change, lives=lives)
        return change

    def again(self, change: Change, *, lives: tuple[str, ...] = ("a",)) -> None:
        self.number += 1
        self.membership.apply(change, self.number, FOUNDERS, lives)

    def place(self, node: str) -> Place | None:
        return self.membership.place_of(node, FOUNDERS)


def test_node_goes_through_all_places_and_its_old_disk_never_counts_again() -> None:
    rows = Rows()
    rows.make(Kind.JOIN, "n4", lives=())
    assert rows.membership.wanted(FOUNDERS) == {"n1", "n2", "n3", "n4"}
    rows.make(Kind.SETTLE, "n4")
    rows.make(Kind.LEAVE, "n4", lives=("a",))
    assert rows.membership.goes(ReplicaId("n4.a")) and not rows.membership.is_removed(ReplicaId("n4.a"))
    assert not rows.membership.may_lead("n4") and "n4" not in rows.membership.wanted(FOUNDERS)
    rows.make(Kind.GONE, "n4", lives=("a",))
    assert rows.membership.is_removed(ReplicaId("n4.a")) and not rows.membership.goes(ReplicaId("n4.b"))
    rows.make(Kind.JOIN, "n4", lives=())
    rows.make(Kind.SETTLE, "n4", lives=("b",))
    assert rows.place("n4") is Place.VOTER
    assert rows.membership.goes(ReplicaId("n4.a")) and not rows.membership.goes(ReplicaId("n4.b"))


def test_late_copy_of_a_removal_does_not_remove_the_node_that_has_come_back() -> None:
    rows = Rows()
    leave = rows.make(Kind.LEAVE, "n3")
    rows.again(leave)
    assert rows.place("n3") is Place.LEAVING
    rows.make(Kind.GONE, "n3")
    rows.make(Kind.JOIN, "n3")
    with pytest.raises(MembershipChanging):
        rows.again(leave)
    rows.make(Kind.SETTLE, "n3")
    with pytest.raises(MembershipChanging):
        rows.again(leave)
    assert rows.place("n3") is Place.VOTER


def test_replaced_node_leaves_in_the_step_in_which_the_other_one_has_joined() -> None:
    rows = Rows()
    rows.make(Kind.JOIN, "n4", lives=())
    rows.make(Kind.REPLACE, "n4", "n3")
    assert rows.place("n3") is Place.VOTER
    rows.make(Kind.SETTLE, "n4")
    assert (rows.place("n4"), rows.place("n3")) == (Place.VOTER, Place.LEAVING)
    assert rows.membership.under_way is not None and rows.membership.under_way.node == "n3"


def test_join_that_never_ends_is_taken_back() -> None:
    rows = Rows()
    rows.make(Kind.JOIN, "n4", lives=())
    rows.make(Kind.REPLACE, "n4", "n3")
    rows.make(Kind.LEAVE, "n4", lives=("asked",))
    rows.make(Kind.GONE, "n4", lives=("noted",))
    assert rows.place("n3") is Place.VOTER and rows.membership.under_way is None
    # With the disk that it asked with it does not come back by itself.
    assert all(rows.membership.is_removed(ReplicaId(f"n4.{life}")) for life in ("asked", "noted"))


def test_removal_that_is_taken_back_leaves_the_node_its_disk() -> None:
    rows = Rows()
    rows.make(Kind.LEAVE, "n3", lives=("before",))
    rows.make(Kind.GONE, "n3", lives=("before",))
    rows.make(Kind.JOIN, "n3", lives=())
    rows.make(Kind.SETTLE, "n3")
    rows.make(Kind.LEAVE, "n3", lives=("now",))
    gone = Change(Kind.GONE, "n3", rows.membership.number_of("n3"), 0)
    keep = rows.make(Kind.KEEP, "n3", lives=("now",))
    assert rows.place("n3") is Place.JOINING and "n3" in rows.membership.wanted(FOUNDERS)
    assert not rows.membership.goes(ReplicaId("n3.now")) and rows.membership.is_removed(ReplicaId("n3.before"))
    with pytest.raises(MembershipChanging):
        rows.again(gone)
    rows.make(Kind.SETTLE, "n3")
    rows.again(keep)
    assert rows.place("n3") is Place.VOTER
    rows.make(Kind.LEAVE, "n3", lives=("now",))
    rows.make(Kind.GONE, "n3", lives=("now",))
    with pytest.raises(NodeNotFound):
        rows.make(Kind.KEEP, "n3")


@pytest.mark.parametrize(
    ("kind", "node", "other", "expected"),
    [
        (Kind.LEAVE, "n9", "", NodeNotFound),
        (Kind.LEAVE, "n3", "", MembershipChanging),
        (Kind.JOIN, "n5", "", MembershipChanging),
        (Kind.KEEP, "n9", "", NodeNotFound),
        (Kind.DRAIN, "n9", "", NodeNotFound),
        (Kind.SETTLE, "n9", "", NodeNotFound),
        (Kind.GONE, "n4", "", MembershipChanging),
        (Kind.REPLACE, "n9", "n1", NodeNotFound),
        (Kind.REPLACE, "n4", "n9", NodeNotFound),
        (Kind.REPLACE, "n1", "n1", BadValue),
        (Kind.REPLACE, "n1", "n2", MembershipChanging),
    ],
)
def test_refused_change_changes_nothing(kind: Kind, node: str, other: str, expected: type[HoldfastError]) -> None:
    rows = Rows()
    rows.make(Kind.JOIN, "n4", lives=())
    before = dict(rows.membership.rows)
    with pytest.raises(expected):
        rows.make(kind, node, other)
    assert rows.membership.rows == before


def test_last_node_neither_leaves_nor_is_drained() -> None:
    rows = Rows()
    for node in ("n1", "n2"):
        rows.make(Kind.LEAVE, node)
        rows.make(Kind.GONE, node)
    for kind in (Kind.LEAVE, Kind.DRAIN):
        with pytest.raises(WouldLoseQuorum):
            rows.make(kind, "n3")


def test_node_that_leaves_hands_over_to_drained_ones_rather_than_stay_for_ever() -> None:
    rows = Rows()
    for kind, node in ((Kind.DRAIN, "n1"), (Kind.DRAIN, "n2"), (Kind.LEAVE, "n3")):
        rows.make(kind, node)
    may_lead = rows.membership.may_lead
    assert [may_lead(node) for node in ("n1", "n2", "n3")] == [False] * 3
    assert [may_lead(node, at_need=True) for node in ("n1", "n2", "n3")] == [True, True, False]

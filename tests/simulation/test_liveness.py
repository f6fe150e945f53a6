"""Sleeping groups learn from the silence of a node that their leader is gone."""

from __future__ import annotations

from holdfast.consensus.liveness import Liveness


def ticks(liveness: Liveness[str], count: int) -> list[str]:
    return [node for _ in range(count) for node in liveness.tick()]


def test_silent_node_is_reported_once() -> None:
    liveness: Liveness[str] = Liveness(3)
    liveness.heard("a")
    assert ticks(liveness, 2) == []
    assert ticks(liveness, 5) == ["a"]
    assert not liveness.is_heard("a")


def test_node_that_speaks_is_not_reported_and_falls_silent_again() -> None:
    liveness: Liveness[str] = Liveness(3)
    for _ in range(5):
        liveness.heard("a")
        assert ticks(liveness, 2) == []
    assert ticks(liveness, 3) == ["a"]
    liveness.heard("a")
    assert liveness.is_heard("a")
    assert ticks(liveness, 3) == ["a"]


def test_broken_link_is_reported_though_the_node_is_back_at_once() -> None:
    liveness: Liveness[str] = Liveness(3)
    liveness.heard("a")
    liveness.lost("a")
    liveness.heard("a")
    assert liveness.tick() == ["a"]
    assert liveness.tick() == []


def test_node_that_was_never_heard_of_is_not_waited_for() -> None:
    assert ticks(Liveness[str](3), 10) == []

"""Which nodes are heard of: one watch per node, however many groups it is in.

Groups that sleep exchange nothing, so what tells them that their leader is gone is its node's silence.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

NodeT = TypeVar("NodeT", bound=Hashable)


class Liveness(Generic[NodeT]):
    """Any message counts as a sign of life. Time is counted in ticks."""

    def __init__(self, timeout_ticks: int) -> None:
        self._timeout_ticks = timeout_ticks
        self._silent_ticks: dict[NodeT, int] = {}
        self._lost: dict[NodeT, None] = {}

    def heard(self, node: NodeT) -> None:
        """It said something; from now on it is watched."""
        self._silent_ticks[node] = 0

    def lost(self, node: NodeT) -> None:
        """Its link broke: reported by the next `tick`, even if it is back by then, for it may be a new process."""
        self._lost[node] = None

    def tick(self) -> list[NodeT]:
        """A unit of time has passed; the nodes that fell silent with it, each of them once per silence."""
        fallen = list(self._lost)
        self._lost.clear()
        for node, ticks in self._silent_ticks.items():
            self._silent_ticks[node] = ticks + 1
            if ticks + 1 >= self._timeout_ticks:
                fallen.append(node)
        for node in fallen:
            self._silent_ticks.pop(node, None)
        return list(dict.fromkeys(fallen))

    def is_heard(self, node: NodeT) -> bool:
        """Whether it said something within the timeout and its link has not broken since."""
        return node in self._silent_ticks and node not in self._lost

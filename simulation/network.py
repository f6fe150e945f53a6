"""What nodes say to each other, and how it gets lost, doubled, late, out of order, or stuck one way only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from simulation.world import World

Packet = tuple[Any, ...]

CALM_DELAY_MS = 2.0


class Network:
    """Links between all pairs of nodes. A blocked direction swallows what is under way, too."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._receivers: dict[int, Callable[[int, int, Packet], None]] = {}
        self.blocked: Counter[tuple[int, int]] = Counter()
        self.loss = 0.0
        self.duplication = 0.0
        self.delay_ms = CALM_DELAY_MS

    def attach(self, node: int, receive: Callable[[int, int, Packet], None]) -> None:
        self._receivers[node] = receive

    def send(self, sender: int, boot: int, receiver: int, packet: Packet) -> None:
        """`boot` says which run of the sending node it was, as a TCP connection would."""
        world = self._world
        dice = world.dice
        if self.loss and dice.random() < self.loss:
            world.counts["messages lost"] += 1
            return
        world.after(self._delay(), self._deliver, sender, boot, receiver, packet)
        if self.duplication and dice.random() < self.duplication:
            world.counts["messages doubled"] += 1
            world.after(self._delay() * 3, self._deliver, sender, boot, receiver, packet)

    def _delay(self) -> float:
        # Each message has its own delay, so they overtake each other.
        return 0.1 + self.delay_ms * self._world.dice.random() ** 3

    def _deliver(self, sender: int, boot: int, receiver: int, packet: Packet) -> None:
        if self.blocked and self.blocked[sender, receiver] > 0:
            self._world.counts["messages cut off"] += 1
            return
        self._receivers[receiver](sender, boot, packet)

    def block(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self.blocked[pair] += 1

    def unblock(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self.blocked[pair] -= 1

    def calm(self) -> None:
        """All is well again."""
        self.blocked.clear()
        self.loss = self.duplication = 0.0
        self.delay_ms = CALM_DELAY_MS

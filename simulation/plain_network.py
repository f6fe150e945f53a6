"""The two connections of a plain pair, each dialled by one of the two: in order, late, and sometimes dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.world import World

if TYPE_CHECKING:
    from simulation.plain_node import PlainNode

Packet = tuple[Any, ...]


class Connection:
    """From one that dialled to one that listens. A dead one takes everything and brings nothing."""

    def __init__(self, world: World, dialler: PlainNode, listener: PlainNode) -> None:
        self._world = world
        self.dialler = dialler
        self.listener = listener
        self.is_open = True
        self.is_dead = False
        self._lives = (dialler.life, listener.life)
        self._arrivals = [0.0, 0.0]
        self.session = listener.accept(self)

    def say(self, packet: Packet) -> None:
        self._send(0, packet)

    def answer(self, packet: Packet) -> None:
        self._send(1, packet)

    def _send(self, direction: int, packet: Packet) -> None:
        delay = self._world.dice.uniform(0.2, 3.0) if not self._world.chance(0.02) else self._world.dice.uniform(3, 80)
        arrival = max(self._arrivals[direction], self._world.now_ms + delay)
        self._arrivals[direction] = arrival
        self._world.after(arrival - self._world.now_ms, self._arrive, direction, packet)

    def _arrive(self, direction: int, packet: Packet) -> None:
        if not self.is_open or self.is_dead or self._lives != (self.dialler.life, self.listener.life):
            return
        if direction == 0:
            self.session.take(packet)
        else:
            self.dialler.hear(self, packet)

    def close(self) -> None:
        """Both ends learn of it soon, unless the network is cut."""
        if self.is_open:
            self.is_open = False
            self._world.after(self._world.dice.uniform(0.1, 1.0), self.dialler.lost, self)


class Network:
    """Between the two; clients may be cut off from one side, too."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_cut = False
        self.connections: list[Connection] = []

    def dial(self, dialler: PlainNode, listener: PlainNode) -> Connection | None:
        """`None` if nobody answers; raises `ConnectionRefusedError` where nobody listens."""
        self.connections = [each for each in self.connections if each.is_open]
        if self.is_cut:
            return None
        if not listener.is_up:
            raise ConnectionRefusedError
        made = Connection(self.world, dialler, listener)
        self.connections.append(made)
        return made

    def cut(self) -> None:
        self.is_cut = True
        for each in self.connections:
            each.is_dead = True

    def heal(self) -> None:
        self.is_cut = False

    def drop(self) -> None:
        """A moment's trouble: connections break, and new ones are possible at once."""
        for each in self.connections:
            each.close()

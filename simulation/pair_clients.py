"""Who publishes to a pair: one with the product's own failover logic and ids, one without either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.client.failover import Failover
from simulation.requests import Answer, Ask, Request

if TYPE_CHECKING:
    from simulation.pair_cluster import PairCluster
    from simulation.pair_node import PairNode

_CONNECTION: Final = 1_000_000
_WAY_MS: Final = 0.2
_LOOK_MS: Final = 20.0
_CONNECT_MS_MAX: Final = 500.0
_UNACKNOWLEDGED_MAX: Final = 12


class Publisher:
    """Publishes with ids through whichever broker answers, and sends again what may not be stored."""

    def __init__(self, number: int, cluster: PairCluster, pause_ms: float) -> None:
        self.number = number
        self._cluster = cluster
        self._world = cluster.world
        self._pause_ms = pause_ms
        self._failover = Failover(patience_s=1e9, unacknowledged_max=_UNACKNOWLEDGED_MAX)
        self._published = 0
        # The connection: which one it is, whose process is at the other end, and its lines.
        self._connection = 0
        self._boot = 0
        self._lines: list[str] = []
        self._answers: set[int] = set()
        self._answered = 0
        self.is_stopped = False

    def begin(self) -> None:
        self._world.after(self._world.dice.random() * self._pause_ms, self._think)
        self._world.after(_LOOK_MS, self._look)
        self._connect(self._connection)

    @property
    def unacknowledged(self) -> int:
        return self._failover.unacknowledged

    @property
    def _now_s(self) -> float:
        return self._world.now_ms / 1000

    @property
    def _node(self) -> PairNode:
        return self._cluster.nodes[self._failover.current]

    def _think(self) -> None:
        if not self.is_stopped and self._failover.has_room(1):
            self.publish()
        self._world.after(self._world.dice.random() * self._pause_ms * 2, self._think)

    def publish(self) -> None:
        group = 1 + self._world.dice.randrange(self._cluster.topics)
        name = f"p{self.number}-{self._published}"
        self._published += 1
        kept = self._failover.accept(name, f"{group} {name}".encode(), self._now_s)
        if self._failover.is_connected:
            self._send(kept.line)

    # --- the connection -----------------------------------------------------------------------------

    def _connect(self, connection: int) -> None:
        if connection != self._connection:
            return
        node = self._node
        if self._world.is_traced:
            self._world.note(f"publisher {self.number} connects to n{node.number}")
        if node.wire.is_off[node.number]:
            self._world.after(_CONNECT_MS_MAX, self._failed, connection)
        elif not node.is_up:
            self._world.after(_WAY_MS, self._failed, connection)
        else:
            self._boot = node.boot
            self._lines, self._answers, self._answered = [], set(), 0
            for line in self._failover.connected(self._now_s):
                self._send(line)

    def _send(self, line: bytes) -> None:
        group, _, name = line.decode().partition(" ")
        operation = self._connection * _CONNECTION + len(self._lines)
        self._lines.append(name)
        request = Request(self.number, operation, Ask.PUBLISH, int(group), name, name, 1)
        self._world.after(_WAY_MS, self._node.request, request)

    def _failed(self, connection: int) -> None:
        if connection != self._connection:
            return
        self._connection += 1
        pause_ms = self._failover.failed() * 1000
        self._world.after(pause_ms + _WAY_MS, self._connect, self._connection)

    def answered(self, answer: Answer) -> None:
        connection, place = divmod(answer.operation, _CONNECTION)
        if connection != self._connection:
            return
        if not answer.is_done:
            self._failed(connection)
            return
        self._answers.add(place)
        while self._answered in self._answers:
            self._answered += 1
            kept = self._failover.acknowledged(self._now_s)
            if kept is not None:
                self._cluster.checker.told_publisher(kept.id, int(kept.line.split()[0]))

    def _look(self) -> None:
        self._world.after(_LOOK_MS, self._look)
        if not self._failover.is_connected:
            return
        node = self._node
        is_lost = (node.boot != self._boot or not node.is_up) and not node.wire.is_off[node.number]
        if is_lost or self._failover.is_overdue(self._now_s):
            self._failed(self._connection)


class PlainPublisher:
    """One message at a time, without an id and without a second try: what is acknowledged counts all the same."""

    def __init__(self, number: int, cluster: PairCluster, pause_ms: float) -> None:
        self.number = number
        self._cluster = cluster
        self._world = cluster.world
        self._pause_ms = pause_ms
        self._operation = 0
        self._group = 1
        self._broker = 0
        self.unacknowledged = 0
        self.is_stopped = False

    def begin(self) -> None:
        self._world.after(self._world.dice.random() * self._pause_ms, self._think)

    def _think(self) -> None:
        self._world.after(self._pause_ms * (0.2 + self._world.dice.random()), self._think)
        if self.is_stopped:
            return
        if self.unacknowledged:
            self._broker = 1 - self._broker  # no answer: nobody knows what became of it
        self._operation += 1
        self.unacknowledged = 1
        self._group = 1 + self._world.dice.randrange(self._cluster.topics)
        name = f"p{self.number}-{self._operation}"
        request = Request(self.number, self._operation, Ask.PUBLISH, self._group, name, "", 1)
        self._world.after(_WAY_MS, self._cluster.nodes[self._broker].request, request)

    def answered(self, answer: Answer) -> None:
        if answer.operation != self._operation or not self.unacknowledged:
            return
        self.unacknowledged = 0
        if answer.is_done:
            self._cluster.checker.told_publisher(f"p{self.number}-{self._operation}", self._group)
        else:
            self._broker = 1 - self._broker

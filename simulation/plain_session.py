"""One connection of the other one of a plain pair, as the one that listens sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.consensus.plain_standing import Reign
from simulation.plain_network import Connection, Packet

if TYPE_CHECKING:
    from simulation.plain_node import PlainNode


class Session:
    """One connection of the other one, as the one that listens sees it."""

    def __init__(self, node: PlainNode, connection: Connection) -> None:
        self._node = node
        self._life = node.life
        self.connection = connection
        self._reign: Reign | None = None
        self._answers: list[tuple[int, Packet]] = []
        self._is_broken = False

    def take(self, packet: Packet) -> None:
        node = self._node
        if node.life != self._life:
            return
        if packet[0] == "role":
            self._reign = packet[1].reign
            self._answers.append((0, ("role", node.standing)))
        elif packet[0] == "beat":
            self._answers.append((0, ("beat",)))
        elif node.phase != "following" or node.following is None or self._reign != node.disk.reign:
            self._is_broken |= packet[0] == "replicate"
            self._answers.append((0, ("error", "not_backup")))
        elif packet[0] == "replicate":
            node.watch.heard(node.world.now_ms / 1000)
            self._store(packet)
        elif packet[2] <= node.disk.end:
            node.marks.add(packet[2] - 1)
        self.flush()

    def _store(self, packet: Any) -> None:
        _, message_id, number, topic = packet
        disk = self._node.disk
        if self._is_broken or number - 1 > disk.end or self._node.checks.refuses(message_id):
            self._is_broken = True
            self._answers.append((0, ("error", "refused")))
            return
        if number - 1 == disk.end:
            disk.append(topic, message_id)
        self._answers.append((number, ("replicated", number)))

    def flush(self) -> None:
        while self._answers and self._answers[0][0] <= self._node.disk.synced:
            self.connection.answer(self._answers.pop(0)[1])

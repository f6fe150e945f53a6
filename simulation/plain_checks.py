"""What must hold of a plain pair, checked while it happens and when all is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.consensus.plain_sending import Mode
from holdfast.consensus.plain_standing import Reign
from simulation.plain_disk import TOPICS, Stored
from simulation.world import Violation, World

if TYPE_CHECKING:
    from simulation.plain_node import PlainNode

# What a backup may hold once nothing is under way any more: the newest, whose mark is on its way.
HELD_MAX = 5


class Checks:
    """Everything anybody was told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.acked: dict[str, str] = {}
        self.seen: set[str] = set()
        self.stalled: set[str] = set()
        self.refused: set[str] = set()
        self._last_delivered: dict[tuple[str, int, Reign, str], tuple[int, set[str]]] = {}

    def stalls(self, topic: str) -> bool:
        """Whether a subscriber of this topic does not read at the moment."""
        return topic in self.stalled

    def refuses(self, message_id: str) -> bool:
        """Whether a backup refuses this message at the moment."""
        return message_id in self.refused

    def acknowledged(self, node: PlainNode, message_id: str) -> None:
        self.world.counts["acknowledged"] += 1
        self.acked.setdefault(message_id, node.name)
        if not node.disk.has(message_id):
            raise Violation("acknowledged is stored", f"{node.name} acknowledged {message_id} and does not have it")
        assert node.sending is not None
        if node.sending.mode is Mode.TOGETHER and not node.other.disk.has(message_id):
            raise Violation("together is on both", f"{node.name} acknowledged {message_id}, which is not at the backup")

    def put(self, node: PlainNode, topic: str, stored: Stored) -> None:
        """A primary made a message visible."""
        before = node.disk.topics[topic][:-1]
        if any((each.reign, each.message_id) == (stored.reign, stored.message_id) for each in before):
            raise Violation("stored once", f"{stored} is in {topic} of {node.name} twice")

    def delivered(self, node: PlainNode, topic: str, stored: Stored) -> None:
        self.world.counts["delivered"] += 1
        self.seen.add(stored.message_id)
        reign = (node.name, node.life, node.disk.reign, topic)
        last, ids = self._last_delivered.setdefault(reign, (-1, set()))
        if stored.message_id in ids:
            raise Violation("delivered once", f"{node.name} delivered {stored.message_id} twice in {reign}")
        if stored.reign == node.disk.reign and stored.position <= last:
            raise Violation("in order", f"{node.name} delivered {stored} behind {last}")
        ids.add(stored.message_id)
        self._last_delivered[reign] = (stored.position, ids)

    def at_the_end(self, primary: PlainNode) -> None:
        """One serves, and everything that anybody was promised is there, and was delivered."""
        stored = {each.message_id for topic in TOPICS for each in primary.disk.topics[topic]}
        lost = [message_id for message_id in self.acked if message_id not in stored]
        if lost:
            raise Violation("nothing is lost", f"{primary.name} does not have {lost[:5]} of {len(lost)}")
        missed = [message_id for message_id in self.acked if message_id not in self.seen]
        if missed:
            raise Violation("everything is delivered", f"nobody delivered {missed[:5]} of {len(missed)}")

    def of_backup(self, backup: PlainNode, primary: PlainNode) -> None:
        """What a backup holds is what its primary has, and is gone when that is delivered."""
        held = backup.disk.end - backup.marks.mark
        if held > HELD_MAX:
            raise Violation("a backup is bounded", f"{backup.name} holds {held} messages, all of which are delivered")
        first = max(backup.disk.start, primary.disk.start)
        theirs, ours = primary.disk.read(first, backup.disk.end), backup.disk.read(first, backup.disk.end)
        if theirs != ours:
            raise Violation("a beginning", f"{backup.name} has {ours[-3:]}, and {primary.name} has {theirs[-3:]}")

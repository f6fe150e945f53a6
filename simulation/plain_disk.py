"""What one of a plain pair has on its disk: journal, topics, cursors, a note; a crash takes what was not synced."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from holdfast.consensus.plain_standing import NO_REIGN, Reign

TOPICS = ("t", "u")


class Entry(NamedTuple):
    position: int
    topic: str
    message_id: str


class Stored(NamedTuple):
    """A message in a topic, with the reign in which it was put there and its place in the journal."""

    reign: Reign
    position: int
    message_id: str


class Disk:
    def __init__(self, role: str, token: str) -> None:
        self.note: dict[str, Any] = {
            "role": role,
            "token": token,
            "has_met": False,
            "reign": NO_REIGN,
            "previous": NO_REIGN,
            "base": 0,
            "drained": 0,
            "apart": [],
            "kept": 0,
            "cut": None,
            "given": (NO_REIGN, 0),
            "void": [],
        }
        self.start = 0
        self.synced = 0
        self.entries: list[Entry] = []
        self.topics: dict[str, list[Stored]] = {topic: [] for topic in TOPICS}
        self.topics_synced = dict.fromkeys(TOPICS, 0)
        self.cursors = dict.fromkeys(TOPICS, 0)
        self.cursors_synced = dict.fromkeys(TOPICS, 0)

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    @property
    def reign(self) -> Reign:
        found: Reign = self.note["reign"]
        return found

    def write(self, **changes: Any) -> None:
        """The note is replaced as a whole, and synced."""
        self.note = {**self.note, **changes}

    def append(self, topic: str, message_id: str) -> int:
        self.entries.append(Entry(self.end, topic, message_id))
        return self.end - 1

    def read(self, first: int, behind: int) -> list[Entry]:
        return self.entries[max(0, first - self.start) : max(0, behind - self.start)]

    def cut(self, position: int) -> None:
        if position < self.start or position > self.end:
            self.start, self.entries = position, []
        else:
            del self.entries[position - self.start :]
        self.synced = self.end

    def prune(self, position: int) -> None:
        keep_from = min(position, self.synced)
        if keep_from > self.start:
            del self.entries[: keep_from - self.start]
            self.start = keep_from

    def sync(self) -> None:
        self.synced = self.end

    def sync_topics(self) -> None:
        self.topics_synced = {topic: len(stored) for topic, stored in self.topics.items()}

    def has(self, message_id: str) -> bool:
        """Whether a message is on this disk for good."""
        return any(entry.message_id == message_id for entry in self.read(self.start, self.synced)) or any(
            stored.message_id == message_id
            for topic in TOPICS
            for stored in self.topics[topic][: self.topics_synced[topic]]
        )

    def crash(self, dice: Random) -> None:
        """What was not synced is there or not, up to a point."""
        del self.entries[dice.randint(self.synced, self.end) - self.start :]
        self.synced = self.end
        for topic in TOPICS:
            del self.topics[topic][dice.randint(self.topics_synced[topic], len(self.topics[topic])) :]
        self.sync_topics()
        self.cursors = dict(self.cursors_synced)

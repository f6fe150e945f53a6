"""What a broker knows of topics and partitions, without asking: told by its own writes, by notices, and by catching up.

Everything here is committed. An end may be behind what the database has, never ahead of it; unless another
server takes its place that does not have everything (`went_back`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from holdfast.broker.backend import Unwatch
from holdfast.model.errors import TopicNotFound, Unavailable
from holdfast.model.ids import Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.topics import Topic, TopicConfig

# More are not deleted while one question is under way.
_GONE_MAX: Final = 1000


class PartitionState:
    """One partition: from where to where it goes, and who wants to know when that changes."""

    def __init__(self, topic_id: int, partition: PartitionId) -> None:
        self.topic_id = topic_id
        self.id = partition
        self.start = Offset(0)
        self.end = Offset(0)
        self.size_bytes = 0
        # Where the end went back to, each time; a server takes the place of another hardly ever.
        self.cuts: list[Offset] = []
        self._watchers: dict[object, Callable[[], None]] = {}

    def reached(self, end: Offset) -> None:
        """Everything below `end` is committed."""
        if end > self.end:
            self.end = end
            self.tell()

    def went_back(self, start: int, end: int, size_bytes: int) -> None:
        """The database has less than was committed: that is what there is now."""
        self.start, self.end, self.size_bytes = Offset(start), Offset(end), size_bytes
        self.cuts.append(self.end)
        self.tell()

    def tell(self) -> None:
        for on_commit in list(self._watchers.values()):
            on_commit()

    def watch(self, on_commit: Callable[[], None]) -> Unwatch:
        mark = object()
        self._watchers[mark] = on_commit
        return lambda: (self._watchers.pop(mark, None), None)[1]


class KnownBefore(NamedTuple):
    """What a broker knew of the store at one moment."""

    topics: tuple[Topic, ...]
    ends: dict[PartitionState, Offset]
    gone: frozenset[int]


class KnownTopics:
    """All topics of the store, as far as this broker has heard."""

    def __init__(self) -> None:
        # Whether the store was read at least once: before that, nobody can say what is not there.
        self.is_loaded = False
        self.by_name: dict[TopicName, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.partitions: dict[PartitionId, PartitionState] = {}
        self.watchers: list[Callable[[Topic], None]] = []
        self.deletion_watchers: list[Callable[[Topic], None]] = []
        # Topics that are gone: whoever asked for one before that may be answered after it.
        self.gone: deque[int] = deque(maxlen=_GONE_MAX)

    def as_it_is(self) -> KnownBefore:
        ends = {state: state.end for state in self.partitions.values()}
        return KnownBefore(tuple(self.by_id.values()), ends, frozenset(self.gone))

    def found(self, partition: PartitionId) -> PartitionState:
        """Raises `TopicNotFound`, or `Unavailable` while nothing is known at all."""
        state = self.partitions.get(partition)
        if state is None:
            if not self.is_loaded:
                raise Unavailable("the database was not reached since this broker started")
            raise TopicNotFound(f"there is no partition {partition}")
        return state

    def state(self, topic_id: int, number: int) -> PartitionState | None:
        topic = self.by_id.get(topic_id)
        return None if topic is None else self.partitions.get(PartitionId(topic.name, number))

    def add(self, topic: Topic, partitions: Iterable[Any]) -> None:
        """A topic, with the rows of its partitions; one of the same name that was there before is gone."""
        if topic.id in self.gone:
            return
        known = self.by_name.get(topic.name)
        if known is not None and known.id != topic.id:
            if known.id > topic.id:
                return  # old news
            self.forget(known.id)
        is_new = topic.id not in self.by_id
        if is_new:
            self.by_name[topic.name] = self.by_id[topic.id] = topic
            for number in range(topic.config.partitions):
                partition = PartitionId(topic.name, number)
                self.partitions[partition] = PartitionState(topic.id, partition)
        for row in partitions:
            self.told(*row)
        if is_new:
            for on_topic in self.watchers:
                on_topic(topic)

    def told(self, topic_id: int, number: int, start: int, end: int, size_bytes: int) -> None:
        """What the database says of a partition."""
        state = self.state(topic_id, number)
        if state is not None:
            state.start = Offset(max(state.start, start))
            state.size_bytes = size_bytes
            state.reached(Offset(end))

    def deleted(self, topic_id: int) -> None:
        """It was deleted, whether it was known here or not."""
        self.gone.append(topic_id)
        self.forget(topic_id)

    def no_longer_gone(self, topic_ids: frozenset[int]) -> None:
        """Whoever asked before these were gone was answered; another server may have topics of the same numbers."""
        still = [topic_id for topic_id in self.gone if topic_id not in topic_ids]
        self.gone.clear()
        self.gone.extend(still)

    def forget(self, topic_id: int) -> None:
        topic = self.by_id.pop(topic_id, None)
        if topic is None:
            return
        del self.by_name[topic.name]
        gone = [self.partitions.pop(PartitionId(topic.name, number)) for number in range(topic.config.partitions)]
        for on_deleted in self.deletion_watchers:
            on_deleted(topic)
        for state in gone:
            state.tell()


def topic_of(row: Any) -> Topic:
    """A row of `holdfast.topics`."""
    topic_id, name, token, partitions, retention_ms, retention_bytes, created_ms = row
    config = TopicConfig(partitions=partitions, retention_ms=retention_ms, retention_bytes=retention_bytes)
    return Topic(name=TopicName(name), config=config, created_ms=TimestampMs(created_ms), id=topic_id, token=token)

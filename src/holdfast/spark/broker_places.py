"""What the driver asks the brokers: which partitions there are, where they begin and end, where a time is.

Driver only: this uses the client, which executors do not have.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from holdfast.client import BlockingClient, ConnectionLost, RemoteError, TopicDescription, connect_blocking
from holdfast.spark.errors import BadOption, BrokerAway, with_code
from holdfast.spark.options import EARLIEST, LATEST, Place, Places, SourceOptions

# Questions under way at once: what one client has connections for.
_QUESTIONS_AT_ONCE = 8
# What one node has to answer when all are asked in turn.
_ONE_NODE_S = 3.0
# A node that says so cannot answer just now.
_AWAY_STATUSES = frozenset((502, 503, 504))
# Before nodes that did not answer are asked again.
_PAUSE_S = 0.5


class PartitionPlace(NamedTuple):
    """One partition as it is now; `created_ms` tells its topic from another of the same name."""

    topic: str
    number: int
    created_ms: int
    start: int
    end: int
    size_bytes: int


class BrokerPlaces:
    """One query's view of the brokers; the connection is made at first use and kept."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: BlockingClient | None = None

    @property
    def client(self) -> BlockingClient:
        if self._client is None:
            self._client = connect_blocking(self._options.url, timeout_s=self._options.broker_timeout_s)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- partitions -------------------------------------------------------------------------------

    def partitions(
        self, *, is_missing_fine: bool = False, known_created_ms: Mapping[str, int] | None = None
    ) -> list[PartitionPlace]:
        """All partitions that the options choose, with what a node knows of their ends at the moment.

        `known_created_ms`: a topic that this node does not know, or knows as another one, is looked for at every node.
        """
        described_topics: dict[str, TopicDescription] = {
            described.topic: described for described in self._topics(is_missing_fine=is_missing_fine)
        }
        for topic, created_ms in (known_created_ms or {}).items():
            if not self._options.chooses(topic):
                continue
            if topic not in described_topics or described_topics[topic].created_ms != created_ms:
                described_topics.pop(topic, None)
                newest = self._newest(topic, created_ms)
                if newest is not None:
                    described_topics[topic] = newest
        found = []
        for described in described_topics.values():
            chosen = None if self._options.assigned is None else self._options.assigned[described.topic]
            numbers = {partition.partition for partition in described.partitions}
            missing = [] if chosen is None else [number for number in chosen if number not in numbers]
            if missing:
                raise with_code(BadOption, f"the topic {described.topic} has no partition {missing[0]}")
            found += [
                PartitionPlace(
                    described.topic,
                    partition.partition,
                    described.created_ms,
                    partition.start_offset,
                    partition.end_offset,
                    partition.size_bytes,
                )
                for partition in described.partitions
                if chosen is None or partition.partition in chosen
            ]
        return found

    def _topics(self, *, is_missing_fine: bool) -> list[TopicDescription]:
        if self._options.pattern is not None:
            pattern = re.compile(self._options.pattern)
            return [described for described in self.client.topics() if pattern.fullmatch(described.topic)]
        described = []
        for topic in self._options.topics or tuple(self._options.assigned or ()):
            try:
                described.append(self.client.describe(topic))
            except RemoteError as error:
                if error.code != "topic_not_found" or not is_missing_fine:
                    raise with_code_of(error) from error
        return described

    def _newest(self, topic: str, known_created_ms: int) -> TopicDescription | None:
        """A topic as the node knows it that has heard of it last: one that was away may know an older one, or none.

        That there is none, or an older one only, is believed when every node says so.
        """
        deadline = time.monotonic() + self._options.broker_timeout_s
        while True:
            found, away = self._asked_of_all(topic)
            newest = max(found, key=lambda described: described.created_ms, default=None)
            if not away or (newest is not None and newest.created_ms >= known_created_ms):
                return newest
            if time.monotonic() > deadline:
                raise with_code(
                    BrokerAway,
                    f"the topic {topic} is not known to the brokers that answer, and {', '.join(away)} did not answer "
                    f"within {self._options.broker_timeout_s:g} s (brokerTimeout): it may be there. Bring every broker "
                    "of servers back, or leave those out that are gone for good",
                )
            time.sleep(_PAUSE_S)

    def _asked_of_all(self, topic: str) -> tuple[list[TopicDescription], list[str]]:
        """What each node says of a topic that it knows, and the nodes that do not answer."""
        found, away = [], []
        for server in self._options.servers:
            try:
                with connect_blocking(self._options._replace(servers=(server,)).url, timeout_s=_ONE_NODE_S) as node:
                    found.append(node.describe(topic))
            except RemoteError as error:
                if error.http_status in _AWAY_STATUSES:
                    away.append(f"{server[0]}:{server[1]} ({error.code})")
                elif error.code != "topic_not_found":
                    raise with_code_of(error) from error
            except ConnectionLost:
                away.append(f"{server[0]}:{server[1]}")
        return found, away

    # --- places -----------------------------------------------------------------------------------

    def certain_ends(self, partitions: list[PartitionPlace]) -> dict[tuple[str, int], int]:
        """The ends, with all that any node has acknowledged before this was asked."""
        return self._all_at(partitions, dict.fromkeys(((each.topic, each.number) for each in partitions), LATEST))

    def resolve(self, places: Places, partitions: list[PartitionPlace], default: str) -> dict[tuple[str, int], int]:
        """The offset at which each partition is to begin or end."""
        known = {(each.topic, each.number) for each in partitions}
        for topic, numbers in (places.by_partition or {}).items():
            for number in numbers:
                if (topic, number) not in known:
                    raise with_code(BadOption, f"offsets are given for {topic}/{number}, which is not read")
        wanted: dict[tuple[str, int], Place] = {}
        for each in partitions:
            given = (places.by_partition or {}).get(each.topic, {}).get(each.number)
            wanted[each.topic, each.number] = given if given is not None else places.everywhere or default
        time_ms = places.timestamp_ms
        if places.ago_ms is not None:
            time_ms = int(time.time() * 1000) - places.ago_ms
        return self._all_at(partitions, wanted) if time_ms is None else self._all_at_time(partitions, time_ms)

    def _all_at(
        self, partitions: list[PartitionPlace], wanted: dict[tuple[str, int], Place]
    ) -> dict[tuple[str, int], int]:
        def ask(each: PartitionPlace) -> int:
            place = wanted[each.topic, each.number]
            if isinstance(place, int):
                return place
            if place == EARLIEST:
                return each.start
            return self.client.offset_at(each.topic, place, each.number)

        return _for_all(partitions, ask)

    def _all_at_time(self, partitions: list[PartitionPlace], time_ms: int) -> dict[tuple[str, int], int]:
        return _for_all(partitions, lambda each: self.client.offset_at(each.topic, time_ms, each.number))

    # --- cursors ----------------------------------------------------------------------------------

    def kept_places(self, group_id: str, topics: set[str]) -> dict[tuple[str, int], int]:
        """Where the group's cursors stand; topics in which it has none are left out."""
        kept: dict[tuple[str, int], int] = {}
        for topic in sorted(topics):
            try:
                cursor = self.client.cursor(topic, group_id)
            except RemoteError as error:
                if error.code != "cursor_not_found":
                    raise with_code_of(error) from error
                continue
            kept |= {(topic, place.partition): int(place.offset) for place in cursor.partitions}
        return kept

    def keep_places(self, group_id: str, places: dict[tuple[str, int], int]) -> None:
        for (topic, number), offset in places.items():
            self.client.seek(topic, group_id, offset, number)


def _for_all(partitions: list[PartitionPlace], ask: Callable[[PartitionPlace], int]) -> dict[tuple[str, int], int]:
    with ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
        return dict(zip(((each.topic, each.number) for each in partitions), pool.map(ask, partitions), strict=True))


@contextlib.contextmanager
def broker_places(options: SourceOptions) -> Iterator[BrokerPlaces]:
    places = BrokerPlaces(options)
    try:
        yield places
    finally:
        places.close()


def with_code_of(error: RemoteError) -> RemoteError:
    """The broker's error with its code in the text, which is all that Spark passes on."""
    return RemoteError(error.code, f"[{error.code}] {error.message}", error.http_status)

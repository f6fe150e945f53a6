"""What the driver asks the brokers: which partitions there are, where they begin and end, where a time is.

Driver only: this uses the client, which executors do not have.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

from holdfast.client import (
    BlockingClient,
    ConnectionLost,
    CursorDescription,
    RemoteError,
    TopicDescription,
    WrongPort,
    connect_blocking,
)
from holdfast.model.errors import HoldfastError
from holdfast.spark.broker_calls import address_of, is_foreign, is_passing
from holdfast.spark.errors import BadOption, BrokerAway, with_code
from holdfast.spark.offsets import StreamOffsets
from holdfast.spark.options import EARLIEST, LATEST, Place, Places, SourceOptions

# Questions under way at once: what one client has connections for.
_QUESTIONS_AT_ONCE = 8
# What one node has to answer when all are asked in turn.
_ONE_NODE_S = 3.0
# Before nodes that did not answer are asked again.
_PAUSE_S = 0.5
# What a node says of a partition whose topic was deleted, or made anew with fewer of them.
_GONE_CODES = frozenset(("topic_not_found", "partition_not_found"))


_NOTHING_KNOWN = StreamOffsets({}, {})


class PartitionPlace(NamedTuple):
    """One partition as it is now; `created_ms` tells its topic from another of the same name."""

    topic: str
    number: int
    created_ms: int
    start: int
    end: int
    size_bytes: int


P = ParamSpec("P")
T = TypeVar("T")


def _told_with_code(ask: Callable[P, T]) -> Callable[P, T]:
    """Errors of the client and of brokers with their codes in the texts, which are all that Spark passes on."""

    @functools.wraps(ask)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return ask(*args, **kwargs)
        except ConnectionLost as error:
            raise _away(error) from error
        except WrongPort as error:
            raise with_code(WrongPort, error.message) from error
        except RemoteError as error:
            if is_foreign(error.code):
                raise _away(error) from error
            raise with_code_of(error) from error

    return asked


def _away(error: ConnectionLost | RemoteError) -> HoldfastError:
    return with_code(
        BrokerAway,
        f"{error.message}. Start the broker, or correct the option servers; brokerTimeout says how long one may be "
        "away",
    )


class BrokerPlaces:
    """One query's view of the brokers; the connection is made at first use and kept."""

    def __init__(self, options: SourceOptions, connect: Callable[..., BlockingClient] = connect_blocking) -> None:
        self._options = options
        self._connect = connect
        self._client: BlockingClient | None = None

    @property
    def client(self) -> BlockingClient:
        if self._client is None:
            self._client = self._connect(self._options.url, timeout_s=self._options.broker_timeout_s)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- partitions -------------------------------------------------------------------------------

    @_told_with_code
    def partitions(
        self, *, is_missing_fine: bool = False, known: StreamOffsets = _NOTHING_KNOWN
    ) -> list[PartitionPlace]:
        """All partitions that the options choose, with what a node knows of their ends at the moment.

        A topic of `known` that this node does not know, or knows as another one, is looked for at every node, unless it
        was gone already.
        """
        described_topics: dict[str, TopicDescription] = {
            described.topic: described for described in self._topics(is_missing_fine=is_missing_fine)
        }
        for topic, created_ms in known.created_ms.items():
            seen = described_topics.get(topic)
            is_sure = topic in known.gone if seen is None else seen.created_ms == created_ms
            if is_sure or not self._options.chooses(topic):
                continue
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
                    raise
        return described

    def _newest(self, topic: str, known_created_ms: int) -> TopicDescription | None:
        """A topic as the node knows it that has heard of it last: one that was away may know an older one, or none.

        That there is none, or an older one only, is believed when every node says so.
        """
        deadline = time.monotonic() + self._options.broker_timeout_s
        while True:
            found, away = self._asked_of_all(lambda node: node.describe(topic))
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

    def _asked_of_all(self, ask: Callable[[BlockingClient], T]) -> tuple[list[T], list[str]]:
        """What each node says that knows the topic it is asked for, and the nodes that do not answer."""
        found, away = [], []
        for server in self._options.servers:
            try:
                with self._connect(self._options._replace(servers=(server,)).url, timeout_s=_ONE_NODE_S) as node:
                    found.append(ask(node))
            except RemoteError as error:
                if is_passing(error.http_status, error.code):
                    away.append(f"{address_of(server)} ({error.code})")
                elif error.code != "topic_not_found":
                    raise
            except ConnectionLost:
                away.append(address_of(server))
        return found, away

    # --- places -----------------------------------------------------------------------------------

    @_told_with_code
    def certain_ends(self, partitions: list[PartitionPlace]) -> dict[tuple[str, int], int]:
        """The ends, with all that any node has acknowledged before this was asked.

        Those of a topic that went since are left out: whoever plans the next batch finds out, and tells.
        """

        def ask(each: PartitionPlace) -> int | None:
            try:
                return self.client.offset_at(each.topic, LATEST, each.number)
            except RemoteError as error:
                if error.code not in _GONE_CODES:
                    raise
                return None

        return {place: end for place, end in _for_all(partitions, ask).items() if end is not None}

    @_told_with_code
    def certain_ends_anywhere(self, partitions: list[PartitionPlace]) -> dict[tuple[str, int], int]:
        """The same of partitions that were found at some node, where the one that is asked first may not know them."""
        ends = {(each.topic, each.number): each.end for each in partitions}
        for topic in sorted({each.topic for each in partitions}):
            found, _ = self._asked_of_all(
                functools.partial(_ends_of, [each for each in partitions if each.topic == topic])
            )
            for known in found:
                ends |= {place: max(end, ends[place]) for place, end in known.items()}
        return ends

    @_told_with_code
    def resolve(self, places: Places, partitions: list[PartitionPlace], default: str) -> dict[tuple[str, int], int]:
        """The offset at which each partition is to begin or end."""
        known = {(each.topic, each.number) for each in partitions}
        for topic, numbers in (places.by_partition or {}).items():
            for number in numbers:
                if (topic, number) not in known:
                    raise with_code(BadOption, f"offsets are given for {topic}/{number}, which is not read")
        wanted = {(each.topic, each.number): places.at(each.topic, each.number, default) for each in partitions}
        self._check_named(wanted, partitions)
        time_ms = places.timestamp_ms
        if places.ago_ms is not None:
            time_ms = int(time.time() * 1000) - places.ago_ms
        return self._all_at(partitions, wanted) if time_ms is None else self._all_at_time(partitions, time_ms)

    def _check_named(self, wanted: dict[tuple[str, int], Place], partitions: list[PartitionPlace]) -> None:
        """Refuse an offset behind the end: nobody could tell whether it is a mistake, or waited for."""
        named = {place: offset for place, offset in wanted.items() if isinstance(offset, int)}
        # A node may be behind; only where it matters the others are asked.
        unsure = [each for each in partitions if named.get((each.topic, each.number), 0) > each.end]
        for (topic, number), end in self.certain_ends(unsure).items():
            if named[topic, number] > end:
                raise with_code(
                    BadOption,
                    f"offset {named[topic, number]} is given for {topic}/{number}, which ends at {end}; give one up to "
                    "that, or latest",
                )

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

    @_told_with_code
    def kept_places(self, group_id: str, topics: set[str]) -> dict[tuple[str, int], int]:
        """Where the group's cursors stand; topics in which it has none are left out."""
        kept: dict[tuple[str, int], int] = {}
        for topic in sorted(topics):
            try:
                cursor = self.client.cursor(topic, group_id)
            except RemoteError as error:
                if error.code != "cursor_not_found":
                    raise
                continue
            kept |= _of_cursor(topic, cursor)
        return kept

    @_told_with_code
    def has_own_cursors(self, topic: str) -> bool:
        """Whether cursors of a topic stand in the topic itself.

        Those of a topic with a processor stand in what the processor makes, where offsets of the topic mean nothing.
        """
        return self.client.describe(topic).delivers_from == topic

    @_told_with_code
    def keep_everywhere(self, group_id: str, topic: str, word: str) -> dict[tuple[str, int], int]:
        """Make the group's cursor in a topic, at the same word in all of its partitions, and say where that is.

        In one step: a cursor of which only some partitions were ever placed would stand at the start of the others.
        """
        return _of_cursor(topic, self.client.seek(topic, group_id, word))

    @_told_with_code
    def keep_places(self, group_id: str, places: dict[tuple[str, int], int]) -> None:
        for (topic, number), offset in places.items():
            self.client.seek(topic, group_id, offset, number)


def _of_cursor(topic: str, cursor: CursorDescription) -> dict[tuple[str, int], int]:
    return {(topic, place.partition): int(place.offset) for place in cursor.partitions}


def _ends_of(partitions: list[PartitionPlace], node: BlockingClient) -> dict[tuple[str, int], int]:
    """The ends of partitions of one topic, if that is the topic which the node knows."""
    if node.describe(partitions[0].topic).created_ms != partitions[0].created_ms:
        return {}
    return {(each.topic, each.number): node.offset_at(each.topic, LATEST, each.number) for each in partitions}


def _for_all(partitions: list[PartitionPlace], ask: Callable[[PartitionPlace], T]) -> dict[tuple[str, int], T]:
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
    """The broker's error with its code in the text, once."""
    code = f"[{error.code}] "
    return RemoteError(error.code, code + error.message.removeprefix(code), error.http_status)

"""What a transaction stores: which messages of the writes that wait are new, and where each will stand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.backends.postgres import copying, rows
from holdfast.backends.postgres.state import PartitionState
from holdfast.broker import results, stamped
from holdfast.model.ids import Offset
from holdfast.model.messages import BatchPublished, Published
from holdfast.wire import record_batch, stamps
from holdfast.wire.push_batch import Pushed, PushedBatch, TimedPush

# A partition: the number of its topic, and its own.
Key = tuple[int, int]
# By partition, what ids are recognised by, and the offsets of their messages.
Offsets = dict[Key, dict[str, int]]


class Write:
    """A batch on its way: taken apart when it comes in, and what became of it.

    It has one of `values` (messages that are nothing else), `pushed` (columns) and `messages` (whatever they may have).
    `batch` is empty where it came as columns.
    """

    __slots__ = (
        "batch",
        "count",
        "floor",
        "future",
        "has_ids",
        "key",
        "keys",
        "messages",
        "pushed",
        "since_s",
        "stamp",
        "state",
        "time",
        "values",
    )

    def __init__(
        self, state: PartitionState, given: bytearray | TimedPush, future: asyncio.Future[BatchPublished]
    ) -> None:
        self.state = state
        self.key: Key = (state.topic_id, state.id.number)
        self.batch = bytearray() if isinstance(given, TimedPush) else given
        self.future = future
        self.since_s = time.monotonic()
        self.values: list[bytes] | None = None
        self.pushed: Pushed | None = None
        self.messages: Sequence[rows.Message] = ()
        # What each message is recognised by, if it has an id; of a pushed one that is the id itself.
        self.keys: Sequence[str | None] = ()
        # A transaction is recognised as a whole; the ids of its messages are not compared.
        self.stamp: stamps.Stamp | None = None
        self.floor = Offset(0)
        if isinstance(given, TimedPush):
            self.pushed, time_ms = given
            self.count = len(self.pushed.ids)
        else:
            head = record_batch.header(given)
            self.count, time_ms = head.record_count, head.base_timestamp_ms
            self.pushed = given.pushed if isinstance(given, PushedBatch) else None
            self.stamp, self.floor = stamps.stamp_of(given), stamps.floor_of(given)
        self.time = rows.timestamp(time_ms)
        if self.pushed is not None:
            self.keys = self.pushed.ids
        else:
            self.values = record_batch.plain_values(self.batch)
            if self.values is None:
                self.messages = rows.messages_of(self.batch)
                self.keys = [None if each.id is None else rows.id_key(each.id) for each in self.messages]
        self.has_ids = self.stamp is None and any(self.keys)

    @property
    def is_looked_up(self) -> bool:
        """Whether it may have been stored before: not what was given its id a moment ago."""
        return self.has_ids and (self.pushed is None or not self.pushed.is_fresh)

    def refuse(self, error: BaseException) -> None:
        results.refuse(self.future, error)


class Stored(NamedTuple):
    """One write's part of a transaction: its new rows from `base` on, and what its publisher is told."""

    write: Write
    base: int
    fresh: int
    size: int
    published: BatchPublished
    # For the driver, or columns of their own; and what is recognised from now on, with its offsets.
    rows: rows.Rows
    pushed: Pushed | None = None
    keys: Sequence[str] = ()
    key_offsets: Sequence[int] = ()


def repeated(write: Write) -> Stored:
    """A batch of a transaction that is there already."""
    published = stamped.repeated(write.key[1], write.count, write.floor)
    return Stored(write, write.floor, 0, 0, published, iter(()))


def are_all_different(writes: Sequence[Write]) -> bool:
    """Whether no two messages have the same id. Where only some of a batch have one, nobody looks closer."""
    keys = list(chain.from_iterable(write.keys for write in writes if write.has_ids))
    return len(set(keys)) == len(keys)


def planned(write: Write, next_offset: int, known: dict[str, int], fresh: dict[str, int]) -> Stored:
    """Which of a write's messages are new, and where each stands.

    `known` is what was stored before, `fresh` what this transaction stores; it gets the new ones.
    """
    if not write.has_ids:
        return planned_as_new(write, next_offset)
    number = write.key[1]
    told, places = _told(write.keys, number, next_offset, known, fresh)
    if len(places) == write.count:
        return planned_as_new(write, next_offset)
    published = results.summary(number, told)
    if not places:
        return Stored(write, next_offset, 0, 0, published, iter(()))
    if write.pushed is not None:
        return _pushed(write, write.pushed.only(places), next_offset, published)
    messages, keys = [write.messages[place] for place in places], [write.keys[place] for place in places]
    return _full(write, messages, keys, next_offset, published)


def planned_as_new(write: Write, next_offset: int) -> Stored:
    """All of a write's messages, which are known to be new."""
    topic_id, number = write.key
    published = results.regular(number, Offset(next_offset), write.count)
    if write.pushed is not None:
        return _pushed(write, write.pushed, next_offset, published)
    if write.values is None:
        return _full(write, write.messages, write.keys if write.has_ids else (), next_offset, published)
    made = rows.plain_rows(topic_id, number, next_offset, write.time, write.values)
    return Stored(write, next_offset, write.count, sum(map(len, write.values)), published, made)


def _pushed(write: Write, pushed: Pushed, base: int, published: BatchPublished) -> Stored:
    count = len(pushed.ids)
    offsets = range(base, base + count)
    return Stored(write, base, count, rows.pushed_size(pushed), published, iter(()), pushed, pushed.ids, offsets)


def _full(
    write: Write, messages: Sequence[rows.Message], keys: Sequence[str | None], base: int, published: BatchPublished
) -> Stored:
    noted = {key: offset for offset, key in enumerate(keys, base) if key is not None}
    made = rows.full_rows(*write.key, base, messages)
    size = rows.size_of(messages)
    return Stored(write, base, len(messages), size, published, made, None, list(noted), list(noted.values()))


def _told(
    keys: Sequence[str | None], number: int, next_offset: int, known: dict[str, int], fresh: dict[str, int]
) -> tuple[list[Published], list[int]]:
    """What is told of each message, and the places of those that are new."""
    told: list[Published] = []
    places: list[int] = []
    for place, key in enumerate(keys):
        offset = None if key is None else known.get(key, fresh.get(key))
        if offset is None:
            offset = next_offset + len(places)
            if key is not None:
                fresh[key] = offset
            places.append(place)
            told.append(Published(partition=number, offset=Offset(offset)))
        else:
            told.append(Published(partition=number, offset=Offset(offset), duplicate=True))
    return told, places


def driver_rows(stored: Sequence[Stored]) -> rows.Rows:
    """The rows of all parts but pushes, made as the driver takes them."""
    return chain.from_iterable(part.rows for part in stored)


def pushed_rows(stored: Sequence[Stored]) -> Iterator[bytes]:
    """Those of pushes, one part after the other."""
    for part in stored:
        if part.pushed is not None:
            yield copying.message_rows(*part.write.key, part.base, part.write.time, part.pushed)


def key_rows(stored: Sequence[Stored]) -> Iterator[bytes]:
    """The ids of all parts."""
    for part in stored:
        if part.keys:
            yield copying.key_rows(*part.write.key, part.keys, part.key_offsets)

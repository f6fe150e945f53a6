"""Where steps end depends on the rows alone; and whoever is overtaken stores nothing twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.spill import batches, events
from holdfast.backends.spill.events import BadLine, Event
from holdfast.model.errors import BadMessage
from holdfast.model.ids import PartitionId, TopicName
from holdfast.recovery import merging, steps
from holdfast.recovery.errors import RecoveryChanged
from holdfast.recovery.steps import Events, Overtaken, Stream
from holdfast.wire import batch_builder, record_batch

Row = tuple[str, int, int, int, int, bytes]


def line_of(value: bytes) -> bytes:
    return events.lines_of(PartitionId(TopicName("t"), 0), batch_builder.build_values([value], 5), 5)[0]


def batches_of(rows: list[Row], dice: random.Random) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are cut anyhow."""
    first = 0
    while first < len(rows):
        some = rows[first : first + dice.randint(1, 9)]
        first += len(some)
        columns = list(zip(*some, strict=True))
        types = (pa.string(), *[pa.int32()] * 4, pa.large_binary())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=merging.SCHEMA.names)


def some_rows(dice: random.Random) -> list[Row]:
    lines = count()
    return [
        (
            *(queue, number, dice.choice((1, 1, 1, 2)), 7, next(lines)),
            line_of(b"x" * dice.randint(0, 300) + b" %d" % serial),
        )
        for queue in ("a", "b")
        for number in (0, 1)
        for serial in range(dice.randint(0, 40))
    ]


def test_steps_are_the_same_however_rows_come() -> None:
    dice = random.Random(3)
    for _ in range(30):
        rows = some_rows(dice)
        found = [list(steps.steps_of(batches_of(rows, dice), 10, 2_000)) for _ in range(3)]
        told = [[(step.queue, step.number, step.begin, step.end, step.lines) for step in each] for each in found]
        assert told[0] == told[1] == told[2]
        assert b"".join(step.lines for step in found[0]) == b"".join(row[5] for row in rows)
        for step in found[0]:
            assert len(step.copies) <= 10
            assert len(step.lines[: step.lines.rstrip(b"\n").rfind(b"\n") + 1]) < 2_000, "one line may lead over it"


class MemoryStore:
    """Stores, and at random finds that another task, with the same rows, was faster."""

    def __init__(self, dice: random.Random, rows: list[Row]) -> None:
        self.values: dict[Stream, list[bytes]] = {}
        self.numbers: dict[Stream, int] = {}
        self._dice = dice
        self.fresh: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        for queue, number, copy, _, _, line in rows:
            [event], _ = events.events_of(line)
            assert event is not None
            self.fresh.setdefault((queue, number), []).append((copy, event.value))

    def reached(self, stream: Stream) -> int:
        return self.numbers.get(stream, 0)

    def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
        if before == self.reached(stream) and self._dice.random() < 0.3:
            self._somebody_else(stream, self._dice.randint(before, after))
        if before != self.reached(stream):
            raise Overtaken
        self.numbers[stream] = after
        self.values.setdefault(stream, []).extend(event.value for event in events)
        return len(events)

    def _somebody_else(self, stream: Stream, after: int) -> None:
        rows = self.fresh[stream.queue, stream.number][self.reached(stream) : after]
        self.values.setdefault(stream, []).extend(value for copy, value in rows if copy == 1)
        self.numbers[stream] = after

    def close(self) -> None: ...


class MemoryAside:
    def __init__(self) -> None:
        self.lines: dict[tuple[int, int], BadLine] = {}

    def known(self, sources: Any, lines: Any) -> Any:
        return np.array([pair in self.lines for pair in zip(sources.tolist(), lines.tolist(), strict=True)], bool)

    def keep(self, source: int, bad: BadLine) -> None:
        assert (source, bad.place) not in self.lines, "it is known"
        self.lines[source, bad.place] = bad


class Choosy(MemoryStore):
    """Does not take some messages, and says so of the whole step."""

    def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
        if any(b"7" in event.value for event in events):
            raise BadMessage("a seven")
        return super().store(stream, before, after, events)


@pytest.mark.parametrize("kind", [MemoryStore, Choosy])
def test_overtaken_task_stores_nothing_twice_and_what_is_refused_is_set_aside(kind: type[MemoryStore]) -> None:
    dice = random.Random(5)
    for _ in range(20):
        rows = some_rows(dice)
        store, aside = kind(dice, rows), MemoryAside()
        told = pa.Table.from_batches(
            steps.stored(batches_of(rows, dice), store, uuid4(), lambda _: None, aside), schema=steps.RESULT
        ).to_pylist()
        assert bool(aside.lines) is (kind is Choosy)
        by_line = {row[5]: row for row in rows}
        for pair, bad in aside.lines.items():
            assert pair == by_line[bad.line + b"\n"][3:5] and "a seven" in bad.reason
        found = {(stream.queue, stream.number): values for stream, values in store.values.items()}
        for place, rows_of_place in store.fresh.items():
            expected = [value for copy, value in rows_of_place if copy == 1]
            if kind is Choosy:
                # Another task may have stored some of them through another broker.
                expected = [value for value in expected if b"7" not in value]
                found[place] = [value for value in found.get(place, []) if b"7" not in value]
            assert found.get(place, []) == expected
        assert sum(row["events"] for row in told) + len(aside.lines) == len(rows)
        assert all(row["events"] == row["stored"] + row["duplicates"] + row["already_stored"] for row in told)


class Frozen(BaseException):
    """A task sleeps, before its step reaches the store."""


class RisingStore:
    """Does what brokers do: takes any step whose number is above the last. Refuses messages; and tasks freeze in it."""

    def __init__(self, dice: random.Random) -> None:
        self.values: list[bytes] = []
        self.number = 0
        self.asleep: list[tuple[int, Events]] = []
        self.dice: random.Random | None = dice

    def reached(self, stream: Stream) -> int:
        return self.number

    def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
        if self.dice is not None and self.asleep and self.dice.random() < 0.3:
            with suppress(Overtaken, BadMessage):
                self._take(*self.asleep.pop(self.dice.randrange(len(self.asleep))))
        if self.dice is not None and self.dice.random() < 0.15:
            self.asleep.append((after, events))
            raise Frozen
        return self._take(after, events)

    def refuses(self, event: Event) -> bool:
        return event.value.endswith(b"!")

    def _take(self, after: int, events: Events) -> int:
        if after <= self.number:
            raise Overtaken
        if any(map(self.refuses, events)):
            raise BadMessage("loud")
        self.number = after
        self.values += [event.value for event in events]
        return len(events)

    def close(self) -> None: ...


def test_tasks_that_freeze_and_wake_up_store_nothing_twice_though_the_store_refuses_messages() -> None:
    dice = random.Random(6)
    recovery = uuid4()
    for case in range(200):
        loud = {dice.randrange(40) for _ in range(dice.randint(0, 3))}
        values = [b"%d%s" % (serial, b"!" * (serial in loud)) for serial in range(dice.randint(1, 40))]
        rows = [("t", 0, 1, 0, serial, line_of(value)) for serial, value in enumerate(values)]
        store, aside = RisingStore(dice), MemoryAside()
        for task in range(9):
            if task == 8:
                store.dice = None
            with suppress(Frozen):
                [told] = steps.stored(batches_of(rows, dice), store, recovery, lambda _: None, aside)
        quiet = [value for value in values if not value.endswith(b"!")]
        assert store.values == quiet, f"case {case}"
        assert set(aside.lines) == {(0, at) for at in loud if at < len(values)}
        [counts] = told.to_pylist()
        assert counts["events"] == len(quiet) == counts["stored"] + counts["already_stored"]


def test_message_that_was_refused_is_not_stored_as_well_when_the_store_takes_it_later() -> None:
    """It is too new today, the recovery is killed, and tomorrow it is not."""
    rows = [("t", 0, 1, 0, serial, line_of(b"%d" % serial + b"!" * (serial == 2))) for serial in range(4)]

    class Killed(RisingStore):
        def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
            if before == 2 and not events:
                raise Frozen
            return super().store(stream, before, after, events)

    class Later(RisingStore):
        def refuses(self, event: Event) -> bool:
            return False

    dice = random.Random(1)
    aside, recovery = MemoryAside(), uuid4()
    killed, later = Killed(dice), Later(dice)
    killed.dice = later.dice = None
    with pytest.raises(Frozen):
        list(steps.stored(batches_of(rows, dice), killed, recovery, lambda _: None, aside))
    later.values, later.number = killed.values, killed.number
    list(steps.stored(batches_of(rows, dice), later, recovery, lambda _: None, aside))
    assert later.values == [b"0", b"1", b"3"] and list(aside.lines) == [(0, 2)]


@pytest.mark.parametrize("name", ["_decode_line", "_decode_lines"])
def test_line_that_could_be_read_and_cannot_be_any_more_is_set_aside_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How deep values may be nested depends on how deep the task is in its calls, and on the Python that it has."""
    for each in {"_decode_lines", name}:
        decode = getattr(steps, each)

        def limited(data: bytes, decode: Any = decode) -> Any:
            if b"[[[" in data:
                raise RecursionError
            return decode(data)

        monkeypatch.setattr(steps, each, limited)
    rows = [("t", 0, 1, 0, serial, line_of(b"[[[%d]]]" % serial if serial == 2 else b"1")) for serial in range(4)]
    dice = random.Random(1)
    store, aside = RisingStore(dice), MemoryAside()
    store.dice = None
    list(steps.stored(batches_of(rows, dice), store, uuid4(), lambda _: None, aside))
    is_too_deep = name == "_decode_line"
    assert store.values == ([b"1"] * 3 if is_too_deep else [b"1", b"1", b"[[[2]]]", b"1"])
    assert list(aside.lines) == ([(0, 2)] if is_too_deep else [])


def test_store_that_goes_back_in_time_is_told_at_once() -> None:
    class Forgetful(RisingStore):
        def reached(self, stream: Stream) -> int:
            return 2 if not self.values else 1

        def store(self, stream: Stream, before: int, after: int, events: Events) -> int:
            self.values = [b"failed over"]
            raise Overtaken

    rows = [("t", 0, 1, 0, serial, line_of(b"%d" % serial)) for serial in range(4)]
    dice = random.Random(1)
    with pytest.raises(RecoveryChanged, match="gone back"):
        list(steps.stored(batches_of(rows, dice), Forgetful(dice), uuid4(), lambda _: None, MemoryAside()))


def test_plain_messages_keep_their_order_and_times_in_batches_by_time() -> None:
    partition = PartitionId(TopicName("t"), 0)
    lines = b"".join(
        events.lines_of(partition, batch_builder.build_values([b"%d" % n for n in range(size)], time_ms), 5)[0]
        for size, time_ms in ((9, 5), (30, 6), (1, 7), (20, 6), (7, 9))
    )
    read = [event for event in events.events_of(lines)[0] if event is not None]
    made = list(batches.run_of(read, 1_000, is_for_rows=True))
    assert len(made) == 5 and len(list(batches.run_of(read, 1_000))) == 1
    found = [
        (record_batch.header(batch).base_timestamp_ms + record.timestamp_delta, record.value)
        for batch in made
        if isinstance(batch, bytearray)
        for record in record_batch.decode_records(batch)
    ]
    assert found == [(event.time, event.value) for event in read]

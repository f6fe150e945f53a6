"""What tasks decode in bulk is what the broker's own reader reads one by one, whatever the messages look like."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from testkit.batches import ForeignRecord, foreign_batch, foreign_records, resealed
from testkit.sizes import examples

from holdfast.model.errors import BadBatch
from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage, StoredMessage
from holdfast.spark import record_starts
from holdfast.spark.decoding import decode, made_ids
from holdfast.spark.schema import arrow_schema
from holdfast.wire import batch_builder, record_batch
from tests.spark import readers
from tests.wire.test_batch_against_aiokafka import foreign_record_lists, messages

SCHEMA = arrow_schema(readers.schema(with_headers=True))
EVERYTHING = (0, 1 << 62)
ATTRIBUTES_AT = 21
TIMES_AT = 27
CONTROL = 0x20


def placed(batches: list[bytearray | bytes], first_offset: int = 0) -> bytes:
    """Batches one behind the other, as a log has them."""
    log = bytearray()
    for batch in batches:
        stored = bytearray(batch)
        record_batch.place(stored, Offset(first_offset), 1)
        first_offset = record_batch.header(stored).next_offset
        log += stored
    return bytes(log)


def rows(decoded: pa.RecordBatch) -> list[dict[str, Any]]:
    return [
        {**row, "timestamp": round(row["timestamp"].timestamp() * 1000), "value": row["value"] or b""}
        for row in decoded.to_pylist()
    ]


def row(message: StoredMessage, partition: int) -> dict[str, Any]:
    return {
        "key": message.key,
        "value": message.value,
        "topic": "orders",
        "partition": partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "id": message.id,
        "headers": [{"key": name, "value": value} for name, value in message.headers],
    }


def expected(log: bytes, partition: int = 3) -> list[dict[str, Any]]:
    return [
        row(message, partition)
        for batch in record_batch.split_batches(log)
        for message in record_batch.decode(batch, partition)
    ]


@examples(60, 2_000)
@given(st.lists(st.lists(messages, min_size=1, max_size=20), max_size=8), st.integers(0, 2**40))
@example([[NewMessage(value=b"")]], 0)
def test_every_message_comes_as_it_was_stored(batches: list[list[NewMessage]], first_offset: int) -> None:
    log = placed([batch_builder.build_batch(batch, 1_789_000_000_000) for batch in batches], first_offset)
    assert rows(decode(log, "orders", 3, *EVERYTHING, SCHEMA)) == expected(log)


@examples(60, 2_000)
@given(st.lists(foreign_record_lists(), min_size=1, max_size=4))
def test_what_kafka_clients_write_comes_as_they_read_it(batches: list[list[ForeignRecord]]) -> None:
    log = placed([foreign_batch(batch) for batch in batches])
    decoded = decode(log, "orders", 0, *EVERYTHING, SCHEMA)
    assert rows(decoded) == expected(log, 0)
    # A null value stays null, which the broker's own reader does not tell from an empty one.
    assert decoded.column("value").to_pylist() == [record.value for record in foreign_records(log)]


@pytest.mark.parametrize("shape", ["equal", "text", "bytes", "zeros", "keys", "deceptive"])
def test_batches_of_every_size_and_shape(shape: str) -> None:
    dice = random.Random(shape)
    # Records within values: each looks as if the batch had a record there.
    inner = bytes(batch_builder.build_values([b"abc"] * 300, 0)[record_batch.HEADER_BYTES :])
    makers = {
        "equal": lambda: NewMessage(value=b"v" * 90),
        "text": lambda: NewMessage(value=b"v" * dice.randrange(200)),
        "bytes": lambda: NewMessage(value=dice.randbytes(dice.randrange(200))),
        "zeros": lambda: NewMessage(value=bytes(dice.randrange(200))),
        "keys": lambda: NewMessage(value=b"v" * dice.randrange(90), key=b"k", id=str(dice.random())),
        "deceptive": lambda: NewMessage(value=inner[: dice.randrange(len(inner))]),
    }
    for count, batch_messages in (
        (500, 1),
        (2_000, 63),
        (3_000, 300),
        (20_000 if shape != "deceptive" else 4_000, 20_000),
    ):
        made = [makers[shape]() for _ in range(count)]
        batches = [made[first : first + batch_messages] for first in range(0, len(made), batch_messages)]
        log = placed([batch_builder.build_batch(batch, 5) for batch in batches])
        decoded = decode(log, "orders", 3, *EVERYTHING, SCHEMA)
        assert decoded.column("value").to_pylist() == [message.value for message in made]
        assert decoded.column("key").to_pylist() == [message.key for message in made]
        assert decoded.column("offset").to_pylist() == list(range(len(made)))


def test_long_batches_are_not_walked_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"x" * random.Random(number).randrange(150, 250) for number in range(20_000)]
    log = placed([batch_builder.build_values(values, 5)])
    monkeypatch.setattr(record_starts, "_walk", lambda *_: pytest.fail("one step for each record"))
    assert decode(log, "orders", 3, *EVERYTHING, SCHEMA).column("value").to_pylist() == values


@examples(60, 2_000)
@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 20_000), max_size=30), st.integers(0, 1000))
def test_ids_are_made_as_the_client_makes_them(offsets: list[int], partition: int) -> None:
    offsets.sort()
    made = made_ids(partition, np.array(offsets, np.int64)).to_pylist()
    assert made == [record_batch.default_id(partition, Offset(offset), None) for offset in offsets]


def test_equal_records_are_found_where_they_are_and_not_elsewhere() -> None:
    """Numbers of one byte, of two and of three, in front of the record and in it."""
    sizes = [(value_bytes, count) for value_bytes in (0, 50, 58, 59, 60, 200) for count in (63, 64, 65, 8_191, 8_193)]
    sizes += [(value_bytes, count) for value_bytes in (8_180, 8_190) for count in (63, 64, 65)] + [(8_180, 8_193)]
    for value_bytes, count in sizes:
        log = np.frombuffer(placed([batch_builder.build_values([b"v" * value_bytes] * count, 5)]), np.uint8)
        body, end = np.empty(count, np.int64), np.empty(count, np.int64)
        assert record_starts.find_equal_records(log, record_batch.HEADER_BYTES, len(log), body, end)
        assert (log[end - 1] == 0).all() and (log[body] == 0).all() and end[-1] == len(log)
        values = [b"v" * value_bytes] * (count - 2) + [b"v" * (value_bytes + 1), b"v" * max(0, value_bytes - 1)]
        mixed = np.frombuffer(placed([batch_builder.build_values(values, 5)]), np.uint8)
        assert not record_starts.find_equal_records(mixed, record_batch.HEADER_BYTES, len(mixed), body, end)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (7, 23), (10, 20), (29, 99), (40, 50)])
def test_a_slice_holds_its_offsets_and_no_others(start: int, end: int) -> None:
    log = placed([batch_builder.build_values([b"%d" % number for number in range(10)], 5) for _ in range(3)], 0)
    found = decode(log, "orders", 0, start, end, SCHEMA).column("offset").to_pylist()
    assert found == [offset for offset in range(30) if start <= offset < end]


def test_the_brokers_own_notes_are_no_messages() -> None:
    batches = [bytearray(batch_builder.build_values([b"a", b"b"], 5)) for _ in range(3)]
    batches[1][ATTRIBUTES_AT + 1] |= CONTROL
    log = placed([resealed(batch) for batch in batches])
    assert decode(log, "orders", 0, *EVERYTHING, SCHEMA).column("offset").to_pylist() == [0, 1, 4, 5]


@examples(100, 3_000)
@given(st.lists(messages, min_size=1, max_size=20), st.data())
def test_bent_bytes_are_refused_and_never_read_as_something_else_outside(
    batch: list[NewMessage], data: st.DataObject
) -> None:
    log = bytearray(placed([batch_builder.build_batch(batch, 5)]))
    for _ in range(data.draw(st.integers(1, 4))):
        log[data.draw(st.integers(record_batch.HEADER_BYTES, len(log) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(log, "orders", 0, *EVERYTHING, SCHEMA)
    except BadBatch:
        return


@pytest.mark.parametrize("time_ms", [-(1 << 63), -(1 << 62), -1, 0, 1 << 62])
def test_times_that_microseconds_do_not_reach_are_the_last_ones_they_do(time_ms: int) -> None:
    """And not 1970, where the product would come out after an overflow."""
    batch = bytearray(batch_builder.build_values([b"a"], 0))
    batch[TIMES_AT : TIMES_AT + 16] = time_ms.to_bytes(8, "big", signed=True) * 2
    found = decode(placed([resealed(batch)]), "orders", 0, *EVERYTHING, SCHEMA).column("timestamp")
    reached_ms = (2**63 - 1) // 1000
    assert found.cast("int64").to_pylist() == [max(-reached_ms, min(reached_ms, time_ms)) * 1000]


def test_half_a_batch_is_refused() -> None:
    log = placed([batch_builder.build_values([b"abc"] * 10, 5)])
    for size in (1, 60, 61, len(log) - 1):
        with pytest.raises(BadBatch):
            decode(log[:size], "orders", 0, *EVERYTHING, SCHEMA)

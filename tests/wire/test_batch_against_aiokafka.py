"""What we write a Kafka client can read, what it writes we can read, byte for byte where both may choose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from testkit.batches import ForeignRecord, foreign_batch, foreign_records, foreign_values
from testkit.sizes import examples

from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder, record_batch

# Bytes with many high bits, since those are what varints are confused with.
some_bytes = st.one_of(
    st.binary(max_size=40), st.integers(0, 40).map(lambda n: b"\xff" * n), st.integers(0, 40).map(lambda n: b"\x80" * n)
)
# The id's own header is kept apart: admission decides about messages that bring it themselves.
some_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda name: name != record_batch.ID_HEADER
)
timestamps = st.integers(0, 2**43)
headers = st.lists(st.tuples(some_text, some_bytes), max_size=4)
messages = st.builds(
    NewMessage,
    value=some_bytes,
    key=st.none() | some_bytes,
    id=st.none() | st.text("abc-é", min_size=1, max_size=10),
    headers=headers,
)


@st.composite
def foreign_record_lists(draw: st.DrawFn) -> list[ForeignRecord]:
    base_ms = draw(st.integers(10_000, 2**40))
    shapes = st.tuples(
        st.integers(-10_000, 10_000) | st.just(0),
        st.none() | some_bytes,
        some_bytes,
        st.lists(st.tuples(some_text, st.none() | some_bytes), max_size=3),
    )
    one_shape = st.lists(shapes, min_size=1, max_size=3)
    repeated = st.tuples(one_shape, st.integers(1, 30)).map(lambda drawn: drawn[0] * drawn[1])
    drawn = draw(st.lists(shapes, min_size=1, max_size=30) | repeated)
    first_delta = drawn[0][0]
    return [
        ForeignRecord(index, base_ms + delta - first_delta, key, value, list(record_headers))
        for index, (delta, key, value, record_headers) in enumerate(drawn)
    ]


@examples(80, 2_000)
@given(st.lists(some_bytes, min_size=1, max_size=80), timestamps)
@example([b""], 0)
@example([b"x" * 40] * 64, 1)
@example([b"x" * 40] * 65, 1)
def test_values_are_byte_for_byte_what_a_kafka_client_would_send(values: list[bytes], timestamp_ms: int) -> None:
    ours = bytes(batch_builder.build_values(values, timestamp_ms))
    assert ours == foreign_batch([ForeignRecord(i, timestamp_ms, None, value, []) for i, value in enumerate(values)])
    assert record_batch.checked(ours)[1] == values


# The length of each value: by its place, and by how many there are.
LENGTHS: dict[str, Callable[[int, int], int]] = {
    "equal": lambda i, count: 10,
    "empty": lambda i, count: 0,
    "alternating": lambda i, count: 60 + i % 10,
    "growing": lambda i, count: i % 300,
    "one differs": lambda i, count: 9 if i == count - 1 else 10,
}


@pytest.mark.parametrize("lengths", LENGTHS)
def test_batch_of_any_length_is_read_alike_by_both(lengths: str) -> None:
    """Offset deltas get one byte longer at 64 and 8192: where tables and runs of records must agree."""
    for count in (1, 2, 63, 64, 65, 127, 128, 8191, 8192, 8193, 16385):
        check_read_alike([LENGTHS[lengths](i, count) for i in range(count)])


def check_read_alike(lengths: list[int]) -> None:
    count = len(lengths)
    values = [(b"%d|" % i * (length // 2 + 1))[:length] for i, length in enumerate(lengths)]
    ours = bytes(batch_builder.build_values(values, 77))
    assert foreign_values(ours) == values
    assert ours == foreign_batch([ForeignRecord(i, 77, None, value, []) for i, value in enumerate(values)])
    head, decoded = record_batch.checked(ours)
    assert decoded == values
    assert (head.record_count, head.last_offset_delta, head.base_offset) == (count, count - 1, 0)


@examples(100, 3_000)
@given(st.lists(messages, min_size=1, max_size=20), timestamps)
def test_kafka_client_reads_keys_headers_and_ids_we_stored(given_messages: list[NewMessage], timestamp_ms: int) -> None:
    ours = bytes(batch_builder.build_batch(given_messages, timestamp_ms))
    expected = [
        ForeignRecord(
            i,
            timestamp_ms,
            message.key,
            message.value,
            [*message.headers, *([(record_batch.ID_HEADER, message.id.encode())] if message.id is not None else [])],
        )
        for i, message in enumerate(given_messages)
    ]
    assert foreign_records(ours) == expected
    assert ours == foreign_batch(expected)
    _, values = record_batch.checked(ours)
    assert values == [message.value for message in given_messages]
    stored = record_batch.decode(ours, 3)
    assert [m.key for m in stored] == [m.key for m in given_messages]
    assert [m.value for m in stored] == values
    ids = [m.id if m.id is not None else f"3-{i}" for i, m in enumerate(given_messages)]
    assert [m.id for m in stored] == ids
    assert [list(m.headers) for m in stored if m.id in ids] == [list(m.headers) for m in given_messages]


@examples(100, 3_000)
@given(st.lists(st.tuples(messages, timestamps), min_size=1, max_size=20))
def test_kafka_client_reads_the_time_of_each_message(timed: list[tuple[NewMessage, int]]) -> None:
    ours = bytes(batch_builder.build_timed([message for message, _ in timed], [time_ms for _, time_ms in timed]))
    times_ms = [time_ms for _, time_ms in timed]
    assert [(record.timestamp_ms, record.value) for record in foreign_records(ours)] == [
        (time_ms, message.value) for message, time_ms in timed
    ]
    assert [message.timestamp_ms for message in record_batch.decode(ours, 3)] == times_ms
    head = record_batch.header(ours)
    assert (head.base_timestamp_ms, head.max_timestamp_ms) == (times_ms[0], max(times_ms))


@examples(200, 5_000)
@given(foreign_record_lists())
@example([ForeignRecord(i, 1_000, b"\xff" * 12, b"value", []) for i in range(5)])
@example([ForeignRecord(i, 1_000 + 5_000 * i, None, b"\xff" * 12, []) for i in range(5)])
@example([ForeignRecord(i, 1_000, b"", b"v", [("h", None)]) for i in range(70)])
def test_batch_of_a_kafka_client_is_taken_and_read_as_it_was_meant(records: list[ForeignRecord]) -> None:
    theirs = foreign_batch(records)
    head, values = record_batch.checked(theirs)
    assert head.record_count == len(records)
    assert head.base_timestamp_ms == records[0].timestamp_ms
    assert head.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert values == [record.value for record in records]
    decoded = record_batch.decode(theirs, 0)
    assert [m.timestamp_ms for m in decoded] == [record.timestamp_ms for record in records]
    assert [m.key for m in decoded] == [record.key for record in records]
    assert [m.value for m in decoded] == [record.value for record in records]
    given_headers = [[(name, value or b"") for name, value in record.headers] for record in records]
    kept = [
        [pair for pair in pairs if pair[0] != record_batch.ID_HEADER]
        if any(name == record_batch.ID_HEADER for name, _ in pairs)
        else pairs
        for pairs in given_headers
    ]
    assert [list(m.headers) for m in decoded] == kept


@examples(60, 1_000)
@given(foreign_record_lists(), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_placing_a_batch_changes_its_offsets_and_nothing_else(
    records: list[ForeignRecord], base_offset: int, epoch: int
) -> None:
    theirs = foreign_batch(records)
    placed = bytearray(theirs)
    record_batch.place(placed, Offset(base_offset), epoch)
    assert bytes(placed[8:12]) == theirs[8:12] and bytes(placed[16:]) == theirs[16:]
    expected = [record._replace(offset=base_offset + i) for i, record in enumerate(records)]
    assert foreign_records(bytes(placed)) == expected
    assert [m.offset for m in record_batch.decode(placed, 0)] == [record.offset for record in expected]


def test_batches_behind_one_another_are_split_where_a_kafka_client_splits_them() -> None:
    parts = [bytes(batch_builder.build_values([b"a" * n] * (n + 1), n)) for n in range(5)]
    assert [bytes(part) for part in record_batch.split_batches(b"".join(parts))] == parts
    assert foreign_values(b"".join(parts)) == [b"a" * n for n in range(5) for _ in range(n + 1)]

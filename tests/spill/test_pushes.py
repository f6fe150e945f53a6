"""Lines of pushes are made in bulk: they tell what those of one message after the other would."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.backends.postgres import copying
from holdfast.backends.postgres.rows import timestamp
from holdfast.backends.spill import batches, events, pushes, stretches
from holdfast.backends.spill.stretches import Stretch
from holdfast.frontends.http import push as push_calls
from holdfast.frontends.http import schema
from holdfast.frontends.http.push_columns import Columns, Outcomes
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.push_ids import is_uuid, push_ids
from holdfast.wire import batch_builder, push_batch, record_batch
from holdfast.wire.push_batch import Pushed

ORDERS = TopicName("orders")
LONG = 'long \\ " é 😀 \x01' * 3000

# Whatever text can be: quotes, backslashes, control characters, characters of two to four bytes, nothing at all.
hostile = st.one_of(
    st.text(st.sampled_from('"\\/\0\x01\b\n\r\t\x1f\x7f\x85\u2028é€😀\U0010ffffaz09-'), max_size=12),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(["", "tx-1", "0191e2cd-09aa-70ca-a04c-6567f4442e96", LONG]),
)
json_texts = st.one_of(
    st.recursive(
        st.none() | st.integers() | st.floats() | hostile, lambda each: st.lists(each, max_size=3), max_leaves=4
    )
    .flatmap(lambda value: st.sampled_from([json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)]))
    .map(str.encode),
    # Halves of surrogates, as far as the parser takes them; numbers that have to stay as they were written.
    st.sampled_from(
        [b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\ud800x\\u0041"', b'"\\udc00\\ud800"', b"1.50", b"1E400", b"-0"]
    ),
    st.sampled_from([b"{}", b"[ ]", b'{"a" : 1}', b'{"a":\n1}', b"[1,\t2]", b'"\\n"', b'"\\/\\u007f"', b'"\x7f"']),
)
values = st.one_of(
    json_texts, st.binary(max_size=20), hostile.map(str.encode), st.sampled_from([b"", b"1,2", b"] [", b'"x'])
)
items = st.tuples(hostile, values, hostile, hostile, st.none() | hostile.filter(bool))


def told(lines: bytes) -> list[tuple[object, ...]]:
    """What stands in lines, whatever way it is written."""
    read, bad = events.events_of(lines)
    assert not bad
    return [
        (each.queue, each.partition, each.number, each.time, each.at, each.tried, each.message())
        for each in read
        if each
    ]


def one_by_one(numbers: dict[str, int | None], pushed: Pushed, time_ms: int, at_ms: int, tried: str | None) -> bytes:
    lines = []
    for message, name in zip(pushed.messages(), pushed.names, strict=True):
        number = numbers[name]
        place = PartitionId(ORDERS, 0 if number is None else number)
        batch = batch_builder.build_batch([message], time_ms)
        lines.append(events.lines_of(place, batch, at_ms, is_chosen=number is not None, tried=tried)[0])
    return b"".join(lines)


@settings(max_examples=150)
@given(st.lists(items, min_size=1, max_size=8), st.data())
def test_lines_made_in_bulk_tell_what_those_made_one_by_one_do(given_items: list[tuple], data: st.DataObject) -> None:  # type: ignore[type-arg]
    names, contents, ids, transactions, traces = map(list, zip(*given_items, strict=True))
    pushed = Pushed(names, contents, ids, transactions, traces)
    numbers = {name: data.draw(st.none() | st.integers(0, 1023)) for name in names}
    tried = data.draw(st.none() | hostile)
    lines = pushes.lines_of(ORDERS, numbers, pushed, 17, 18, tried)
    assert told(lines) == told(one_by_one(numbers, pushed, 17, 18, tried))
    read, bad = events.events_of(lines)
    assert not bad
    assert [(event.partition, event.value, event.id, event.tried) for event in read if event] == [
        (name, value, message_id, tried) for name, value, message_id in zip(names, contents, ids, strict=True)
    ]
    for line, name in zip(lines.split(b"\n"), names, strict=False):
        assert json.loads(line)["partition"] == name, "anybody's JSON parser reads it"


@given(st.lists(items, min_size=1, max_size=5))
def test_batch_that_carries_its_columns_makes_lines_that_tell_what_its_bytes_do(given_items: list[tuple]) -> None:  # type: ignore[type-arg]
    names, contents, ids, transactions, traces = zip(*given_items, strict=True)
    batch = push_batch.build(Pushed(names, contents, ids, transactions, traces), 17)
    place = PartitionId(ORDERS, 3)
    (short, short_count), (whole, whole_count) = (
        events.lines_of(place, each, 18) for each in (batch, bytearray(batch))
    )
    assert told(short) == told(whole) and short_count == whole_count


@settings(max_examples=150)
@given(st.lists(json_texts, min_size=1, max_size=6), st.sampled_from([b"", b" ", b"\n", b"\t "]))
def test_payloads_of_a_request_are_kept_as_they_were_written(texts: list[bytes], blank: bytes) -> None:
    body = b",".join(b'{"queue":"orders","payload":%b%b%b}' % (blank, text, blank) for text in texts)
    try:
        asked = msgspec.json.decode(b'{"items":[%b]}' % body, type=schema.Push)
    except msgspec.DecodeError:
        return  # a half of a surrogate: refused before it comes here
    pushed = Columns.of(asked.items).pushed()
    assert list(pushed.values) == texts, "without the blanks around them"
    lines = pushes.lines_of(ORDERS, {"Default": 1}, pushed, 17, 18)
    assert lines == pushes.lines_of(ORDERS, {"Default": 1}, pushed._replace(has_json=False), 17, 18)
    assert told(lines) == told(one_by_one({"Default": 1}, pushed, 17, 18, None))
    read, bad = events.events_of(lines)
    assert not bad and [event.value for event in read if event] == texts


@given(
    st.lists(st.tuples(hostile, hostile), min_size=1, max_size=6),
    st.sampled_from(["queued", "buffered"]),
    st.booleans(),
)
def test_answers_made_in_bulk_are_those_made_one_by_one(pairs: list[tuple[str, str]], status: str, mixed: bool) -> None:
    transactions, ids = zip(*pairs, strict=True)
    statuses = [status] * len(pairs)
    statuses[0] = "duplicate" if mixed else status
    expected = [schema.PushResult(*row) for row in zip(range(len(pairs)), transactions, ids, statuses, strict=False)]
    outcomes = Outcomes(transactions, ids, statuses)
    assert outcomes.text() == msgspec.json.encode(expected)
    assert push_calls.response_of(outcomes).body == msgspec.json.encode(expected)


def test_answer_of_many_items_numbers_them_all() -> None:
    ids = push_ids(["p"] * 3000, [f"t{place}" for place in range(3000)])
    told = json.loads(Outcomes(ids, ids, ["buffered"] * 3000).text())
    assert [each["index"] for each in told] == list(range(3000))
    assert [each["message_id"] for each in told] == ids


@settings(max_examples=150)
@given(st.lists(items, min_size=1, max_size=8), st.integers(1, 4), st.booleans(), st.data())
def test_what_was_pushed_comes_back_as_it_was_whether_its_columns_can_be_kept_or_not(
    given_items: list[tuple[Any, ...]],
    messages_max: int,
    has_uuids: bool,
    data: st.DataObject,
) -> None:
    names, contents, ids, transactions, traces = map(list, zip(*given_items, strict=True))
    if has_uuids:
        ids = push_ids(names, transactions)
    pushed = Pushed(names, contents, ids, transactions, traces)
    numbers = {name: data.draw(st.integers(0, 2)) for name in names}
    read, bad = events.events_of(pushes.lines_of(ORDERS, dict(numbers), pushed, 17, 18))
    assert not bad
    found: dict[int, list[record_batch.Record]] = {}
    for place, made in batches.batches_of(
        [each for each in read if each], lambda _: PartitionId(ORDERS, 9), messages_max
    ):
        batch = push_batch.as_batch(made)
        assert record_batch.header(batch).base_timestamp_ms == 17
        assert record_batch.header(batch).record_count <= messages_max
        found.setdefault(place.number, []).extend(record_batch.decode_records(batch))
        if isinstance(made, push_batch.TimedPush):
            assert all(map(is_uuid, made.pushed.ids)), "as a column of UUIDs takes them"
            assert "\0" not in "".join((*made.pushed.transaction_ids, *filter(None, made.pushed.trace_ids)))
    for number in set(numbers.values()):
        expected = [each for each, name in zip(pushed.messages(), names, strict=True) if numbers[name] == number]
        records = record_batch.decode_records(batch_builder.build_batch(expected, 17))
        assert [(each.key, each.value, each.headers) for each in found[number]] == [
            (each.key, each.value, each.headers) for each in records
        ]


def test_push_with_usual_ids_comes_back_as_columns() -> None:
    names, transactions = ["a", "b", "a"], ["t1", "0191e2cd-09aa-70ca-a04c-6567f4442e96", "t3"]
    pushed = Pushed(
        names, [b"1", b"not JSON", b"\xff"], push_ids(names, transactions), transactions, [None, "tr", None]
    )
    read, _ = events.events_of(pushes.lines_of(ORDERS, {"a": 0, "b": 0}, pushed, 17, 18))
    [(_, made)] = batches.batches_of([each for each in read if each], lambda _: PartitionId(ORDERS, 9), 100)
    assert isinstance(made, push_batch.TimedPush)
    assert made.pushed[:5] == pushed[:5] and made.time_ms == 17


def test_pushes_of_different_times_become_columns_together() -> None:
    """Of which some are stored, each with its own time, as a batch of them has it."""
    names, transactions = ["a", "b"], ["t1", "t2"]
    pushed = Pushed(names, [b"1", b"2"], push_ids(names, transactions), transactions, [None, None])
    lines = b"".join(pushes.lines_of(ORDERS, {"a": 0, "b": 0}, pushed, time_ms, time_ms) for time_ms in (17, 20))
    read, _ = events.events_of(lines)
    [(_, made)] = batches.batches_of([each for each in read if each], lambda _: PartitionId(ORDERS, 9), 100)
    assert isinstance(made, push_batch.TimedPush)
    assert made.time_ms == 17 and made.pushed.times_ms == [17, 17, 20, 20]
    assert made.pushed.only([1, 2]).times_ms == (17, 20)
    records = record_batch.decode_records(push_batch.as_batch(made))
    assert [record.timestamp_delta for record in records] == [0, 0, 3, 3]
    assert [record.value for record in records] == [b"1", b"2", b"1", b"2"]
    rows = copying.message_rows(1, 0, 0, timestamp(17), made.pushed.only([1, 2]))
    alone = [
        copying.message_rows(1, 0, place, timestamp(at), made.pushed.only([each])._replace(times_ms=None))
        for place, (each, at) in enumerate(((1, 17), (2, 20)))
    ]
    assert rows == b"".join(alone)


@pytest.mark.parametrize(
    "changed",
    [
        {"push": False, "key": "another"},
        {"push": False, "headers": [["transaction-id", None, "/w=="]]},
        {"id": None},
        {"id": "no UUID"},
        {"id": "0191E2CD-09AA-70CA-A04C-6567F4442E96"},
        {"transaction_id": "t\0"},
        {"trace_id": "t\0"},
    ],
)
def test_what_is_more_than_a_push_is_not_taken_for_one(changed: dict[str, object]) -> None:
    pushed = Pushed(["a"] * 2, [b"1", b"2"], push_ids(["a"] * 2, ["t1", "t2"]), ["t1", "t2"], [None, None])
    read, _ = events.events_of(pushes.lines_of(ORDERS, {"a": 0}, pushed, 17, 18))
    first, second = [each for each in read if each]
    assert batches.pushed_of([first, second]) is not None
    for name, value in changed.items():
        setattr(second, name, value)
    assert batches.pushed_of([first, second]) is None
    found = [
        each
        for _, batch in batches.batches_of([first, second], lambda _: PartitionId(ORDERS, 9), 100)
        for each in record_batch.decode_records(push_batch.as_batch(batch))
    ]
    expected = record_batch.decode_records(batch_builder.build_batch([first.message(), second.message()], 17))
    assert [(each.key, each.value, each.headers) for each in found] == [
        (each.key, each.value, each.headers) for each in expected
    ]


@given(st.lists(st.binary(max_size=6).map(lambda each: each.replace(b"\n", b"")), max_size=12), st.integers(0, 12))
def test_lines_are_taken_some_at_a_time_and_none_is_left_out(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    taken = list(events.some_lines(data, size))
    assert b"".join(taken) == data and all(each.endswith(b"\n") for each in taken)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_stretches_are_joined_and_split_without_losing_a_line(sizes: list[int], data: st.DataObject) -> None:
    names = [f"p{place}" for place in range(sum(sizes))]
    pushed = Pushed(names, [b"1"] * len(names), push_ids(names, names), names, [None] * len(names))
    read, _ = events.events_of(pushes.lines_of(ORDERS, dict.fromkeys(names, 0), pushed, 17, 18))
    waiting: deque[Stretch] = deque()
    place = 0
    for size in sizes:
        waiting.append(Stretch.made(read[place : place + size], 3))
        place += size
    found: list[str] = []
    while waiting:
        stretch = stretches.next_of(waiting, data.draw(st.integers(1, 12)))
        stretch = stretch.first(data.draw(st.integers(1, len(stretch.events))))
        some = [event.partition for event in stretch.events if event]
        assert stretch.counts == {PartitionId(ORDERS, 0): len(some)}
        if stretch.batches is not None:
            made = [push_batch.as_batch(batch) for _, batch in stretch.batches]
            records = [each for batch in made for each in record_batch.decode_records(batch)]
            assert [each.key for each in records] == [name.encode() for name in some]
        found += some
        stretches.drop(waiting, len(some))
    assert found == names


def test_text_that_no_file_can_hold_is_refused_in_bulk_as_it_is_alone() -> None:
    pushed = Pushed(["p"], [b"1"], ["id"], ["\ud800"], [None])
    with pytest.raises(UnicodeEncodeError):
        pushes.lines_of(ORDERS, {"p": 1}, pushed, 17, 18)
    with pytest.raises(UnicodeEncodeError):
        one_by_one({"p": 1}, pushed, 17, 18, None)

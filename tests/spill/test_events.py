"""A line of the spill: whatever a message holds comes back as it was, and jq can read it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.spill import batches, events, sums
from holdfast.model.ids import PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import Topic, TopicConfig
from holdfast.wire import batch_builder, push_batch, record_batch
from holdfast.wire.push_batch import Pushed

ORDERS = PartitionId(TopicName("orders"), 2)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.one_of(
    st.binary(max_size=40),
    texts.map(str.encode),
    st.sampled_from(
        [
            b"",
            b"1",
            b" 1",
            b"1 ",
            b"1,2",
            b'{"a": 1}',
            b'{"a":\n1}',
            b'"x',
            b'x"',
            b"[1",
            b"2]",
            b"\xff",
            b"null",
            b"1.50",
        ]
    ),
    st.recursive(st.none() | st.integers() | texts, lambda each: st.lists(each, max_size=3), max_leaves=5).map(
        lambda value: json.dumps(value).encode()
    ),
)
messages = st.builds(
    NewMessage,
    value=values,
    key=st.none() | st.binary(max_size=8),
    id=st.none() | st.text("abc-é", min_size=1, max_size=8),
    headers=st.lists(
        st.tuples(st.sampled_from(["trace-id", "transaction-id", "task", "h"]), st.binary(max_size=8)), max_size=3
    ),
)


@given(st.lists(values, min_size=1, max_size=12), st.booleans())
def test_plain_values_come_back_as_they_were(given_values: list[bytes], is_chosen: bool) -> None:
    lines, count = events.lines_of(ORDERS, batch_builder.build_values(given_values, 17), 18, is_chosen=is_chosen)
    assert count == lines.count(b"\n") == len(given_values), "wc -l counts messages"
    for line in lines.splitlines(keepends=True):
        assert json.loads(line)["queue"] == "orders"
    read, bad = events.events_of(lines)
    assert not bad
    assert [event.value for event in read if event is not None] == given_values
    assert {(event.number, event.time, event.at) for event in read if event} == {(2 if is_chosen else None, 17, 18)}


@pytest.mark.parametrize("name", ['say "hi"', "a\\b", "grün/☃"])
def test_line_names_its_topic_whatever_that_is_called(name: str) -> None:
    partition = PartitionId(TopicName(name), 0)
    pushed = Pushed(["p"], [b"1"], ["019a0c11-7fe8-7000-8000-000000000000"], ["tx"], [None])
    given_batches = [
        batch_builder.build_values([b"1"], 17),
        batch_builder.build_batch([NewMessage(value=b"1", key=b"k")], 17),
        push_batch.build(pushed, 17),
    ]
    for batch in given_batches:
        lines, _ = events.lines_of(partition, batch, 18)
        [event], bad = events.events_of(lines)
        assert not bad and event is not None and event.queue == json.loads(lines)["queue"] == name


@given(st.lists(messages, min_size=1, max_size=8), st.integers(1, 3))
def test_messages_come_back_in_order_with_all_they_have(given_messages: list[NewMessage], batch_max: int) -> None:
    batch = batch_builder.build_batch(given_messages, 17)
    lines, _ = events.lines_of(ORDERS, batch, 18, tried="w:1")
    read, bad = events.events_of(lines)
    assert not bad
    made = batches.batches_of([event for event in read if event], lambda event: ORDERS, batch_max)
    assert {partition for partition, _ in made} == {ORDERS}
    found = [record for _, each in made for record in record_batch.decode_records(push_batch.as_batch(each))]
    expected = record_batch.decode_records(batch)
    assert [(each.key, each.value) for each in found] == [(each.key, each.value) for each in expected]
    assert [sorted(each.headers) for each in found] == [sorted(each.headers) for each in expected]


def test_line_has_the_words_of_queen_mq() -> None:
    message = NewMessage(
        value=b'{"id": 1}', key=b"customer-123", headers=[("transaction-id", b"tx-1"), ("trace-id", b"trace-1")]
    )
    lines, _ = events.lines_of(ORDERS, batch_builder.build_batch([message], 17), 18)
    told = json.loads(lines)
    assert {name: told[name] for name in ("queue", "partition", "payload", "transaction_id", "trace_id")} == {
        "queue": "orders",
        "partition": "customer-123",
        "payload": {"id": 1},
        "transaction_id": "tx-1",
        "trace_id": "trace-1",
    }
    assert told["namespace"] == told["task"] == ""


@given(st.lists(values, min_size=2, max_size=6), st.data())
def test_damage_to_one_byte_costs_one_line(given_values: list[bytes], data: st.DataObject) -> None:
    lines, _ = events.lines_of(ORDERS, batch_builder.build_values(given_values, 17), 18)
    whole = lines.splitlines(keepends=True)
    hit = data.draw(st.integers(0, len(whole) - 1))
    place = data.draw(st.integers(0, len(whole[hit]) - 2))
    changed = bytearray(whole[hit])
    changed[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (changed[place], 10)))
    read, bad = events.events_of(b"".join([*whole[:hit], bytes(changed), *whole[hit + 1 :]]))
    assert [each.place for each in bad] in ([hit], []), "nothing but that line"
    for place, (event, value) in enumerate(zip(read, given_values, strict=True)):
        assert event is None if [place] == [each.place for each in bad] else event is not None and event.value == value


@given(st.lists(values, min_size=1, max_size=6), st.data())
def test_torn_end_is_cut_behind_the_last_whole_line(given_values: list[bytes], data: st.DataObject) -> None:
    lines, _ = events.lines_of(ORDERS, batch_builder.build_values(given_values, 17), 18)
    cut = data.draw(st.integers(0, len(lines)))
    kept = sums.whole_bytes(lines[:cut])
    assert kept == lines.rfind(b"\n", 0, cut) + 1
    assert sums.whole_bytes(lines[:cut] + bytes(data.draw(st.integers(1, 50)))) == kept, "pages that never came"


@pytest.mark.parametrize(("key", "partition"), [(b"a", 3), (b"b", 1), (None, 0)])
def test_message_to_an_unknown_topic_goes_where_its_key_belongs(key: bytes | None, partition: int) -> None:
    batch = batch_builder.build_batch([NewMessage(value=b"1", key=key)], 17)
    lines, _ = events.lines_of(PartitionId(TopicName("t"), 0), batch, 18, is_chosen=False)
    [event], _ = events.events_of(lines)
    assert event is not None
    topic = Topic(name=TopicName("t"), config=TopicConfig(partitions=4), created_ms=0)  # type: ignore[arg-type]
    assert batches.chosen_partition(event, topic).number == partition

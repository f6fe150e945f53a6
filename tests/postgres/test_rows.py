"""A message comes out of the table as it went in, whatever it is made of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testkit.batches import ForeignRecord, foreign_batch, foreign_records
from testkit.postgres import database_for

from holdfast.model.errors import BadMessage, BadMessageId
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.wire import batch_builder, record_batch, varint
from tests.postgres.conftest import Open
from tests.postgres.stores import now_ms, open_store, query

T = PartitionId(TopicName("t"), 0)


headers = st.lists(
    st.tuples(
        st.sampled_from(["transaction-id", "trace-id", "other", "ä", ""]) | st.text(max_size=5), st.binary(max_size=9)
    ),
    max_size=4,
)
printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
ids = st.none() | st.text(printable, min_size=1, max_size=9)
messages = st.lists(
    st.builds(NewMessage, value=st.binary(max_size=20), key=st.none() | st.binary(max_size=5), id=ids, headers=headers)
    | st.builds(NewMessage, value=st.binary(max_size=20)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(messages, min_size=1, max_size=6))
def test_any_message_comes_back_as_it_was(tmp_path: Path, batches: list[list[NewMessage]]) -> None:
    url = database_for(tmp_path)

    async def publish_and_read() -> None:
        store = await open_store(url)
        try:
            if store.backend.topic(T.topic) is None:
                await store.create()
            expected = {}
            for batch in batches:
                for message, told in zip(batch, await store.broker.publish("t", batch), strict=True):
                    if not told.duplicate:
                        expected[told.offset] = message
            live = {message.offset: message for message in await store.read()}
            store.backend.reading.tails.forget(T)
            stored = {message.offset: message for message in await store.read()}
            for offset, message in expected.items():
                found = stored[offset]
                assert (found.value, found.key, list(found.headers)) == (
                    message.value,
                    message.key,
                    list(message.headers),
                )
                assert found.id == (message.id if message.id is not None else f"0-{offset}")
                if offset in live:
                    assert live[offset] == found
        finally:
            await store.backend.stop()

    asyncio.run(publish_and_read())


async def test_times_of_a_foreign_client_stay_as_they_are(opened: Open) -> None:
    store = await opened()
    await store.create()
    told = [1_000, 1_001, 1_001, 5, -1, 1_700_000_000_123]
    records = [ForeignRecord(i, time, None, b"%d" % i, [("h", b"x")] if i == 2 else []) for i, time in enumerate(told)]
    await store.broker.publish_batches("t", 0, [foreign_batch(records)])
    store.backend.reading.tails.forget(T)
    read = await store.backend.read(T, Offset(0), 1 << 20)
    assert [(r.offset, r.timestamp_ms, r.value) for batch in read for r in foreign_records(bytes(batch))] == [
        (i, time, b"%d" % i) for i, time in enumerate(told)
    ]


async def test_clock_that_no_database_can_hold_does_not_stop_the_others(opened: Open) -> None:
    store = await opened()
    await store.create()
    batch = bytearray(foreign_batch([ForeignRecord(0, 0, None, b"odd", [])]))
    for time_ms in (-(1 << 62), 1 << 62):
        batch[27:35] = batch[35:43] = time_ms.to_bytes(8, "big", signed=True)
        store.backend.forward(T, bytearray(batch), has_ids=False)
    await store.publish(b"fine")
    assert [message.value for message in await store.read()] == [b"odd", b"odd", b"fine"]


def batch_with_id(message_id: bytes) -> bytearray:
    """The length of the header's name is written with a byte more than it needs."""
    body = b"\0\0\0" + varint.encode(-1) + varint.encode(1) + b"v" + varint.encode(1)
    body += bytes((0x80 | 2 * len(record_batch.ID_HEADER), 0)) + record_batch.ID_HEADER.encode()
    body += varint.encode(len(message_id)) + message_id
    return batch_builder.sealed([varint.encode(len(body)) + body], 1, now_ms())


@pytest.mark.parametrize("message_id", [b"a\0b", b"a\nb", b"\xff", b"x" * 251])
async def test_id_that_is_none_is_refused_however_it_is_written(opened: Open, message_id: bytes) -> None:
    store = await opened()
    await store.create()
    with pytest.raises(BadMessageId):
        await store.broker.publish_batches("t", 0, [batch_with_id(message_id)])
    for _ in range(2):
        await store.broker.publish_batches("t", 0, [batch_with_id(b"good")])
    assert [message.id for message in await store.read()] == ["good"]


async def test_what_the_database_does_not_take_is_refused_alone(opened: Open) -> None:
    store = await opened()
    await store.create()
    first = store.broker.publish_values("t", [b"1"])
    refused = store.backend.forward(T, batch_with_id(b"a\0b"), has_ids=True)
    last = store.broker.publish_values("t", [b"2"])
    assert [await first.offset, await last.offset] == [0, 1]
    with pytest.raises(BadMessage):
        await refused
    assert [message.value for message in await store.read()] == [b"1", b"2"]


async def test_person_finds_messages_with_sql(opened: Open, url: str) -> None:
    store = await opened()
    await store.create("orders", partitions=2)
    await store.broker.publish(
        "orders",
        [
            NewMessage(
                value=b'{"total": 42}',
                id="o-1",
                key=b"k",
                headers=[("transaction-id", b"tx-7"), ("trace-id", b"tr-9"), ("other", b"x")],
            ),
            NewMessage(value=b"\xff\x00", headers=[("transaction-id", b"\xff"), ("trace-id", b"a\0b")]),
        ],
        partition=1,
    )
    rows = await query(url, 'SELECT * FROM holdfast.queue_messages ORDER BY "offset"')
    first, second = (dict(row) for row in rows)
    assert first["created_at"].tzinfo is not None
    assert {name: first[name] for name in first if name != "created_at"} == {
        "queue": "orders",
        "partition": 1,
        "offset": 0,
        "id": "o-1",
        "transaction_id": "tx-7",
        "trace_id": "tr-9",
        "key": "k",
        "payload": '{"total": 42}',
        "payload_bytes": b'{"total": 42}',
    }
    assert (second["id"], second["payload"], second["payload_bytes"]) == ("1-1", None, b"\xff\x00")
    assert (second["transaction_id"], second["trace_id"]) == (None, None)
    totals = await query(
        url,
        "SELECT (payload::jsonb ->> 'total')::int FROM holdfast.queue_messages WHERE queue = $1 AND id = $2",
        "orders",
        "o-1",
    )
    assert totals == [(42,)]
    stored = [header for message in await store.read("orders", 1) for header in message.headers]
    assert ("transaction-id", b"\xff") in stored, "what no text can hold is still in the message"


async def test_row_that_somebody_deleted_by_hand_is_a_hole_that_readers_are_taken_past(opened: Open, url: str) -> None:
    store = await opened()
    await store.create()
    await store.publish(*[b"%d" % number for number in range(10)])
    await query(url, 'DELETE FROM holdfast.messages WHERE "offset" IN (3, 4)')
    store.backend.reading.tails.forget(T)
    follower = store.broker.follow("t", {0: Offset(0)})
    values: list[bytes] = []
    while follower.positions[0] < 10:
        delivery = await follower.next(1 << 20)
        values += [value for batch in delivery.batches for value in record_batch.decode_values(batch)]
    follower.close()
    assert values == [b"%d" % number for number in range(10) if number not in (3, 4)]
    assert store.broker.stats.skipped_damaged == 2

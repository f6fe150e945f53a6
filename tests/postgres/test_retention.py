"""What is too old or too much goes, and nothing of a deleted topic stays."""

from __future__ import annotations

import pytest

from holdfast.model.errors import OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId, TopicName
from tests.postgres.conftest import Open
from tests.postgres.stores import now_ms, query, until
from tests.support.batches import values_batch

T = PartitionId(TopicName("t"), 0)


async def test_old_messages_go_and_their_offsets_are_not_used_again(opened: Open, url: str) -> None:
    one, two = await opened("n1"), await opened("n2")
    await one.create(retention_ms=60_000)
    await two.backend.catch_up_cursors()
    for age_s in (3600, 600, 120, 30, 0):
        values = [b"%d" % age_s] * 7000
        await one.backend.append(T, values_batch(*values, timestamp_ms=now_ms() - 1000 * age_s))
    assert await two.backend.retention.expire() == 21_000
    assert await one.backend.retention.expire() == 0
    await one.backend.catch_up(T)
    for each in (one, two):
        assert (each.backend.start_offset(T), each.backend.end_offset(T)) == (21_000, 35_000)
        with pytest.raises(OffsetOutOfRange):
            await each.backend.read(T, Offset(20_999), 100)
    assert (await two.read())[0].value == b"30"
    assert await query(url, 'SELECT min("offset"), count(*) FROM holdfast.messages') == [(21_000, 14_000)]
    assert [each.offset for each in await one.publish(b"next")] == [35_000]


async def test_partition_keeps_as_much_as_it_may(opened: Open, url: str) -> None:
    store = await opened()
    await store.create(retention_bytes=100_000)
    for number in range(400):
        await store.publish(b"%03d" % number + bytes(997))
    assert await store.backend.retention.expire() == 300
    assert await store.backend.retention.expire() == 0
    described = store.backend.describe_partition(T)
    assert (described.start_offset, described.size_bytes) == (300, 100_000)
    assert [message.value[:3] for message in await store.read()] == [b"%03d" % number for number in range(300, 400)]


async def test_deleted_topic_leaves_no_row_behind(opened: Open, url: str) -> None:
    store = await opened()
    await store.create()
    await store.create("kept")
    await store.publish(*[b"x"] * 8000, ids=[str(number) for number in range(8000)])
    await store.publish(b"y", topic="kept", ids=["1"])
    await store.backend.delete_topic(T.topic)
    assert await query(url, "SELECT DISTINCT queue FROM holdfast.queue_messages") == [("kept",)]
    await until(lambda: not store.backend._sweeping, "the rows are gone")
    for table in ("messages", "id_keys", "partitions", "topics"):
        counted = await query(url, f"SELECT count(DISTINCT topic_id) FROM holdfast.{table}")
        assert counted == [(1,)], table
    assert await query(url, "SELECT count(*) FROM holdfast.deleted_topics") == [(0,)]

"""What is too old or too much goes, and nothing of a deleted topic stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from testkit.batches import values_batch
from testkit.wait import until

from holdfast.backends.postgres import retention
from holdfast.model.errors import OffsetOutOfRange
from holdfast.model.ids import CursorName, Offset, PartitionId, TopicName
from holdfast.model.waiting import NOBODY, RetentionWait
from tests.postgres.conftest import Open
from tests.postgres.stores import now_ms, query

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


async def test_what_a_reader_has_not_passed_is_kept_for_as_long_as_it_is_told(opened: Open) -> None:
    store = await opened()
    await store.create(retention_ms=60_000)
    for age_s in (3600, 600, 120, 0):
        await store.backend.append(T, values_batch(*[b"%d" % age_s] * 10, timestamp_ms=now_ms() - 1000 * age_s))
    archive = CursorName("archive")
    await store.backend.set_cursor(T.topic, archive, {0: Offset(5)})
    retention = store.backend.retention
    retention.wait = RetentionWait((archive,), wait_ms=24 * 3600 * 1000)
    assert await retention.expire() == 5, "nothing behind the cursor"
    retention.wait = RetentionWait((archive,), wait_ms=600_000)
    assert await retention.expire() == 5, "but what is too old for anybody"
    await store.backend.set_cursor(T.topic, archive, {0: Offset(17)})
    assert await retention.expire() == 7
    retention.wait = NOBODY
    assert await retention.expire() == 13
    assert store.backend.start_offset(T) == 30


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


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_large_messages_go_in_steps_that_end_in_time(opened: Open, url: str, is_deleted: bool) -> None:
    store = await opened()
    await store.create(retention_ms=60_000)
    old_ms = now_ms() - 120_000
    for size in (3_000_000, 1, 1, 3_000_000, 1, 20_000_000, 9_000_000, 9_000_000):
        await store.backend.append(T, values_batch(bytes(size), timestamp_ms=old_ms))
    deleted: list[int] = []
    connection = store.backend.database.connection

    @contextlib.asynccontextmanager
    async def counting(**given: bool) -> AsyncIterator[Any]:
        before = await query(url, "SELECT octet_length(value) FROM holdfast.messages")
        async with connection(**given) as used:
            yield used
        after = await query(url, "SELECT octet_length(value) FROM holdfast.messages")
        deleted.append(sum(size for (size,) in before) - sum(size for (size,) in after))

    await store.backend.holding.stop()
    store.backend.database.connection = counting  # type: ignore[method-assign]
    if is_deleted:
        await store.backend.delete_topic(T.topic)
        await until(lambda: not store.backend._sweeping, "the rows are gone")
    else:
        assert await store.backend.retention.expire() == 8
        assert store.backend.start_offset(T) == 8
    assert await query(url, "SELECT FROM holdfast.messages") == []
    assert sum(deleted) == 44_000_003
    assert max(deleted) <= 26_000_003


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


async def test_rows_that_another_broker_did_not_come_to_delete_go_later(
    opened: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_STEP", 2)
    store = await opened()
    await store.create()
    await store.publish(*[b"x"] * 5)
    other = await asyncpg.connect(url)
    try:
        # Another broker is in the middle of a step, and is lost right after it.
        await other.execute('BEGIN; DELETE FROM holdfast.messages WHERE "offset" < 2')
        await store.backend.delete_topic(T.topic)
        await asyncio.sleep(0.2)
        await other.execute("COMMIT")
    finally:
        await other.close()
    await until(lambda: not store.backend._sweeping, "it went through")
    await store.backend.retention.sweep()
    for table in ("messages", "deleted_topics"):
        assert await query(url, f"SELECT FROM holdfast.{table}") == [], table

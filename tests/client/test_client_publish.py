"""Publishing to a real broker and reading back what is there."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from zlib import crc32

import pytest
from testkit.processes import BrokerProcess

from holdfast.client import (
    CallerError,
    Client,
    NewMessage,
    PublishManyRefused,
    RemoteError,
    WrongPort,
    connect,
)
from holdfast.model.limits import MESSAGE_BYTES_MAX


async def all_messages(broker: Client, topic: str, partition: int = 0) -> list[bytes]:
    return [message.value for message in await broker.read(topic, partition, messages_max=10**6)]


async def test_a_message_comes_back_with_all_it_was_given(broker: Client, topic: str) -> None:
    published = await broker.publish(
        topic, {"total": 17}, key="customer-1", id="order-17", headers={"trace": "é", "raw": b"\xff"}
    )
    (message,) = await broker.read(topic)
    assert (published.partition, published.offset, published.duplicate) == (0, 0, False)
    assert (message.topic, message.partition, message.offset) == (topic, 0, 0)
    assert (message.id, message.key, message.value) == ("order-17", b"customer-1", b'{"total":17}')
    assert message.text == '{"total":17}'
    assert message.json() == {"total": 17}
    assert message.json(dict[str, int]) == {"total": 17}
    assert message.headers == {"trace": "é", "raw": "\udcff"}
    age = datetime.now(UTC) - datetime.fromtimestamp(message.timestamp_ms / 1000, UTC)
    assert timedelta(seconds=-1) < age < timedelta(minutes=1)


async def test_a_message_that_is_sent_twice_is_stored_once(broker: Client, topic: str) -> None:
    first = await broker.publish(topic, "v", id="same")
    await broker.publish(topic, "w")
    again = await broker.publish(topic, "v", id="same")
    assert (again.offset, again.duplicate) == (first.offset, True)
    both = await asyncio.gather(broker.publish(topic, "x", id="new"), broker.publish(topic, "v", id="same"))
    assert [(each.offset, each.duplicate) for each in both] == [(2, False), (0, True)]
    assert await all_messages(broker, topic) == [b"v", b"w", b"x"]


async def test_many_with_some_known_ids_say_where_each_one_stands(broker: Client, topic: str) -> None:
    await broker.publish_many(topic, [NewMessage(value=b"a", id="a"), NewMessage(value=b"b", id="b")])
    results = await broker.publish_many(
        topic,
        [
            NewMessage(value=b"c", id="c"),
            NewMessage(value=b"a", id="a"),
            b"plain",
            NewMessage(value=b"c", id="c"),
        ],
        partition=0,
    )
    assert [(each.offset, each.duplicate) for each in results] == [(2, False), (0, True), (3, False), (2, True)]
    assert await all_messages(broker, topic) == [b"a", b"b", b"c", b"plain"]


async def test_keys_and_ids_pick_the_partition_the_broker_would_pick(broker: Client, topic: str) -> None:
    await broker.create_topic(topic, partitions=5)
    keys = [f"key-{number}" for number in range(20)]
    published = [await broker.publish(topic, "v", key=key) for key in keys]
    many = await broker.publish_many(topic, [NewMessage(value=b"v", key=key.encode()) for key in keys])
    with_ids = await broker.publish_many(topic, [NewMessage(value=b"v", id=f"only-{key}") for key in keys])
    expected = [crc32(key.encode()) % 5 for key in keys]
    assert [each.partition for each in published] == expected
    assert [each.partition for each in many] == expected
    assert [each.partition for each in with_ids] == [crc32(f"only-{key}".encode()) % 5 for key in keys]


async def test_one_publisher_is_stored_in_the_order_it_published(broker: Client, topic: str) -> None:
    tasks = []
    for number in range(2000):
        tasks.append(asyncio.create_task(broker.publish(topic, str(number), key="k")))
        if number % 100 == 0:
            await asyncio.sleep(0.001)
    results = await asyncio.gather(*tasks)
    stored = await all_messages(broker, topic)
    assert [int(value) for value in stored] == list(range(2000))
    assert [each.offset for each in results] == list(range(2000))


@pytest.mark.parametrize("retry_safe", [False, True])
async def test_many_values_are_all_stored_where_the_results_say(
    broker: Client, topic: str, retry_safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.bulk.BATCH_MESSAGES_MAX", 5_000)
    values = [b"%d" % number + b"." * (number % 50) for number in range(24_000)]
    await broker.create_topic(topic, partitions=3)
    results = await broker.publish_many(topic, values, retry_safe=retry_safe)
    stored = [await all_messages(broker, topic, partition) for partition in range(3)]
    assert all(stored), "whole batches take turns"
    assert [stored[each.partition][each.offset] for each in results] == values


async def test_large_values_are_cut_into_batches_that_fit(broker: Client, topic: str) -> None:
    values = [bytes([number]) * 900_000 for number in range(12)]
    results = await broker.publish_many(topic, values)
    assert [each.offset for each in results] == list(range(12))
    assert await all_messages(broker, topic) == values


async def test_a_message_that_is_too_large_fails_alone(broker: Client, topic: str) -> None:
    results = await asyncio.gather(
        *(broker.publish(topic, value) for value in ("a", b"x" * (MESSAGE_BYTES_MAX + 1), "b")),
        return_exceptions=True,
    )
    assert isinstance(results[1], RemoteError)
    assert (results[1].code, results[1].http_status) == ("too_large", 413)
    assert await all_messages(broker, topic) == [b"a", b"b"]
    with pytest.raises(PublishManyRefused):
        await broker.publish_many(topic, [b"x" * (MESSAGE_BYTES_MAX + 1)])


async def test_what_is_wrong_is_refused_with_a_reason(broker: Client, topic: str) -> None:
    await broker.publish(topic, "v")
    with pytest.raises(CallerError, match="topic name"):
        await broker.publish("no|such|name", "v")
    with pytest.raises(CallerError):
        await broker.publish(topic, "v", partition=-1)
    with pytest.raises(RemoteError) as caught:
        await broker.publish(topic, "v", partition=7)
    assert caught.value.code == "partition_not_found"
    with pytest.raises(RemoteError) as caught:
        await broker.describe("nothing-here")
    assert caught.value.code == "topic_not_found"
    assert len(await broker.publish_many(topic, [])) == 0


async def test_topics_cursors_and_times_can_be_looked_after(broker: Client, topic: str) -> None:
    created = await broker.create_topic(topic, partitions=2, retention_ms=3_600_000, retention_bytes=10**9)
    assert (created.topic, len(created.partitions), created.retention_ms) == (topic, 2, 3_600_000)
    with pytest.raises(RemoteError) as caught:
        await broker.create_topic(topic)
    assert caught.value.code == "topic_exists"
    assert len((await broker.create_topic(topic, exist_ok=True)).partitions) == 2

    before = datetime.now(UTC) - timedelta(seconds=60)
    await broker.publish_many(topic, [b"a", b"b", b"c"], partition=1)
    assert topic in [each.topic for each in await broker.topics()]
    assert (await broker.describe(topic)).messages == 3
    assert await broker.offset_at(topic, before, 1) == 0
    assert await broker.offset_at(topic, "latest", 1) == 3
    assert [message.value for message in await broker.read(topic, 1, 1, messages_max=1)] == [b"b"]
    assert [message.value for message in await broker.read(topic, 1, "-1h")] == [b"a", b"b", b"c"]
    assert await broker.read(topic, 1, "latest", wait_s=0.1) == []

    assert (await broker.seek(topic, "reader", "earliest")).lag == 3
    assert (await broker.seek(topic, "reader", 2, partition=1)).lag == 1
    assert [cursor.name for cursor in await broker.cursors(topic)] == ["reader"]
    assert (topic, "reader") in [(cursor.topic, cursor.name) for cursor in await broker.cursors()]
    assert (await broker.cursor(topic, "reader")).lag == 1
    await broker.delete_cursor(topic, "reader")
    assert await broker.cursors(topic) == []
    await broker.delete_topic(topic)
    with pytest.raises(RemoteError):
        await broker.describe(topic)


async def test_a_topic_that_was_made_again_with_other_partitions_is_noticed(broker: Client, topic: str) -> None:
    await broker.create_topic(topic, partitions=8)
    await broker.publish(topic, "v", partition=7)
    await broker.delete_topic(topic)
    await broker.create_topic(topic, partitions=2)
    key = next(str(number) for number in range(100) if crc32(b"%d" % number) % 8 >= 2)
    with pytest.raises(RemoteError):
        await broker.publish(topic, "v", key=key)
    assert (await broker.publish(topic, "v", key=key)).partition == crc32(key.encode()) % 2


async def test_the_text_port_is_recognised(shared_broker: BrokerProcess) -> None:
    with pytest.raises(WrongPort, match=f"{shared_broker.text} is the broker's text port"):
        async with connect(shared_broker.text, timeout_s=60):
            pass

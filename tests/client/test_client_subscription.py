"""Following topics of a real broker: nothing skipped, nothing twice, and acknowledgements that stick."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.wait import until

from holdfast.client import (
    Client,
    ClientClosed,
    RemoteError,
    connect,
)
from holdfast.client.api import Api
from tests.client.reading import take


async def test_live_subscriber_gets_what_is_published_after_it_came(broker: Client, topic: str) -> None:
    await broker.publish(topic, "before")
    async with broker.subscribe(topic) as messages:
        await broker.publish(topic, "after")
        assert [message.text for message in await take(messages, 1)] == ["after"]
        assert await messages.get(timeout_s=0.1) is None
    assert await broker.cursors(topic) == []


async def test_subscriber_that_comes_before_the_first_publish_misses_nothing(
    shared_broker: BrokerProcess, topic: str
) -> None:
    async with connect(shared_broker.url) as broker, broker.subscribe(topic, "early") as messages:
        for number in range(20):
            await broker.publish(topic, str(number))
        assert [message.text for message in await take(messages, 20)] == [str(number) for number in range(20)]


async def test_every_partition_is_delivered_in_order(broker: Client, topic: str) -> None:
    await broker.create_topic(topic, partitions=4)
    async with broker.subscribe(topic, start="earliest") as messages:
        publishing = asyncio.gather(*(broker.publish(topic, str(n), key=str(n % 16)) for n in range(4000)))
        found = await take(messages, 4000)
        await publishing
    by_partition: dict[int, list[int]] = defaultdict(list)
    for message in found:
        by_partition[message.partition].append(message.offset)
    assert sum(map(len, by_partition.values())) == 4000
    for offsets in by_partition.values():
        assert offsets == list(range(len(offsets)))


async def test_a_topic_with_more_partitions_than_connections_is_followed(
    broker: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.subscription.POLL_CONNECTIONS_MAX", 4)
    await broker.create_topic(topic, partitions=20)
    async with broker.subscribe(topic) as messages:
        for lap in range(3):
            for number in range(20):
                await broker.publish(topic, f"{lap}", partition=number)
            found = await take(messages, 20)
            assert sorted((message.partition, message.text) for message in found) == [
                (number, f"{lap}") for number in range(20)
            ]


async def test_acknowledged_message_does_not_come_again(broker: Client, topic: str) -> None:
    await broker.publish_many(topic, [b"%d" % number for number in range(10)])
    async with broker.subscribe(topic, "billing", start="earliest") as messages:
        first = await take(messages, 3)
        for message in first:
            assert await message.ack()
        assert (await broker.cursor(topic, "billing")).partitions[0].offset == 3, "ack waits for the broker"
        await take(messages, 2)
    async with broker.subscribe(topic, "billing", start="latest") as messages:
        assert [message.offset for message in await take(messages, 7)] == list(range(3, 10))


async def test_unacknowledged_message_is_not_jumped_over(broker: Client, topic: str) -> None:
    await broker.publish_many(topic, [b"%d" % number for number in range(6)])
    async with broker.subscribe(topic, "billing", start="earliest") as messages:
        found = await take(messages, 6)
        assert await found[0].ack()
        assert not await found[2].ack(), "noted, and stored with the one before"
        assert not await found[3].ack()
        assert (await broker.cursor(topic, "billing")).partitions[0].offset == 1
        assert await found[1].ack()
        assert (await broker.cursor(topic, "billing")).partitions[0].offset == 4
        assert await found[1].ack(), "twice does no harm"
        found[5].ack_soon()
    async with broker.subscribe(topic, "billing") as messages:
        assert [message.offset for message in await take(messages, 2)] == [4, 5]


async def test_leaving_a_subscription_stores_what_was_acknowledged(broker: Client, topic: str) -> None:
    await broker.create_topic(topic, partitions=3)
    for number in range(3):
        await broker.publish_many(topic, [b"v"] * 1000, partition=number)
    async with broker.subscribe(topic, "billing", start="earliest") as messages:
        for message in await take(messages, 3000):
            message.ack_soon()
    assert (await broker.cursor(topic, "billing")).lag == 0
    with pytest.raises(ClientClosed):
        message.ack_soon()


async def test_acknowledging_everything_covers_only_what_was_handed_out(broker: Client, topic: str) -> None:
    await broker.publish_many(topic, [b"v"] * 10)
    async with broker.subscribe(topic, "billing", start="earliest") as messages:
        found = await take(messages, 4)
        assert not await found[2].ack()
        await messages.ack_all()
        assert (await broker.cursor(topic, "billing")).partitions[0].offset == 4


async def test_many_acknowledgements_at_once_are_few_requests(
    broker: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []
    send = Api.ack

    async def counted(api: Api, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        requests.append(dict(offsets))
        await send(api, topic, name, offsets)

    monkeypatch.setattr(Api, "ack", counted)
    await broker.publish_many(topic, [b"v"] * 5000)
    async with broker.subscribe(topic, "billing", start="earliest") as messages:
        found = await take(messages, 5000)
        results = await asyncio.gather(*(message.ack() for message in found))
        assert all(results)
        assert len(requests) <= 3
        await broker.publish_many(topic, [b"v"] * 1000)
        for message in await take(messages, 1000):
            message.ack_soon()
    assert len(requests) <= 6
    assert (await broker.cursor(topic, "billing")).lag == 0


async def test_bulk_reader_gets_every_value_and_can_acknowledge_whole_batches(
    shared_broker: BrokerProcess, topic: str
) -> None:
    values = [b"%d" % number for number in range(20_000)]
    async with connect(shared_broker.url) as broker:
        await broker.publish_many(topic, values)
        async with broker.subscribe(topic, "bulk", start="earliest") as messages:
            first = await take(messages, 5)
            found = [message.value for message in first]
            async for batch in messages.batches():
                assert batch.first_offset == len(found)
                found += batch.values
                assert [message.offset for message in batch.messages[:2]] == [
                    batch.first_offset,
                    batch.first_offset + 1,
                ]
                assert not await batch.ack(), "five messages before it are open"
                if len(found) == len(values):
                    break
            for message in first:
                message.ack_soon()
    assert found == values
    async with connect(shared_broker.url) as broker:
        assert (await broker.cursor(topic, "bulk")).lag == 0


async def test_breaking_out_of_the_loop_loses_nothing(broker: Client, topic: str) -> None:
    await broker.publish_many(topic, [b"%d" % number for number in range(10)])
    found: list[int] = []
    async with broker.subscribe(topic, start="earliest") as messages:
        while len(found) < 10:
            async for message in messages:
                found.append(message.offset)
                break
    assert found == list(range(10))


async def test_slow_consumer_does_not_fill_the_memory(broker: Client, topic: str) -> None:
    for _ in range(40):
        await broker.publish_many(topic, [b"x" * 1000] * 500)
    async with broker.subscribe(topic, start="earliest", buffer_bytes_max=2_000_000) as messages:
        buffer = messages._buffer
        await until(lambda: not buffer._room.is_set(), "the buffer fills up")
        await asyncio.sleep(0.2)
        assert buffer.size_bytes < 2_000_000 + 1_100_000, "the bound and at most one read"
        found = await take(messages, 20_000)
        assert [message.offset for message in found] == list(range(20_000))
    async with broker.subscribe(topic, start="earliest", buffer_messages_max=1000) as messages:
        await until(lambda: not messages._buffer._room.is_set(), "the buffer fills up")
        assert messages._buffer.message_count < 3000
        assert len(await take(messages, 20_000)) == 20_000


async def test_a_topic_that_is_deleted_ends_the_subscription_with_an_error(broker: Client, topic: str) -> None:
    await broker.publish(topic, "v")
    async with broker.subscribe(topic, start="earliest") as messages:
        await take(messages, 1)
        await broker.delete_topic(topic)
        with pytest.raises(RemoteError) as caught:
            await messages.get(timeout_s=60)
        assert caught.value.code == "topic_not_found"


async def test_a_subscription_can_begin_anywhere(broker: Client, topic: str) -> None:
    await broker.publish_many(topic, [b"%d" % number for number in range(5)])
    for start, first in (("earliest", 0), (3, 3), ("-1h", 0)):
        async with broker.subscribe(topic, start=start) as messages:
            assert (await take(messages, 1))[0].offset == first
        async with broker.subscribe(topic, f"named-{first}-{start}".lstrip("-"), start=start) as messages:
            assert (await take(messages, 1))[0].offset == first
    for name in (None, "named"):
        with pytest.raises(Exception, match="no place to start"):
            async with broker.subscribe(topic, name, start="yesterday noon"):
                pass


async def test_a_subscription_that_was_not_opened_says_so(broker: Client, topic: str) -> None:
    messages = broker.subscribe(topic)
    with pytest.raises(ClientClosed, match="async with"):
        await messages.get(timeout_s=1)
    with pytest.raises(ClientClosed, match="async with"):
        async for _ in messages:
            pass


async def test_closing_the_client_ends_the_loops_of_its_subscriptions(shared_broker: BrokerProcess, topic: str) -> None:
    broker = connect(shared_broker.url)
    messages = broker.subscribe(topic, "billing")
    await messages.open()

    async def loop() -> int:
        return len([message.ack_soon() async for message in messages])

    looping = asyncio.create_task(loop())
    await broker.publish(topic, "v")
    await until(lambda: messages._delivered == {0: 1}, "the message is delivered")
    await broker.close()
    assert await looping == 1
    async with connect(shared_broker.url) as broker:
        assert (await broker.cursor(topic, "billing")).lag == 0


async def test_subscriber_of_a_processed_topic_gets_what_the_processor_made(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--compute-ms", "0:1") as process:
        async with connect(process.url) as broker, broker.subscribe("orders", "billing") as messages:
            for number in range(30):
                await broker.publish("orders", str(number))
            found = await take(messages, 30)
            assert len(found) == 30
            assert {message.topic for message in found} == {"orders"}
            await messages.ack_all()
            source = (await broker.describe("orders")).delivers_from
            assert source == "orders.processed"
            assert (await broker.cursor("orders", "billing")).lag == 0
            assert (await broker.cursor(source, "billing")).lag == 0


async def test_subscribing_makes_no_topic_where_use_may_not_make_any(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--no-auto-create") as process:
        async with connect(process.url) as broker:
            with pytest.raises(RemoteError) as refused:
                async with broker.subscribe("nowhere"):
                    pass
            assert refused.value.code == "topic_not_found"
            assert await broker.topics() == []

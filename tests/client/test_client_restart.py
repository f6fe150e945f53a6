"""A broker that dies and comes back in the middle: what was acknowledged stays, nothing comes twice."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sized

import pytest
from testkit.processes import BrokerProcess
from testkit.sizes import scaled
from testkit.wait import until

from holdfast.client import (
    Client,
    ConnectionLost,
    Message,
    Published,
    PublishManyLost,
    Subscription,
    connect,
)
from tests.client.reading import take


async def kill_and_restart(process: BrokerProcess, away_s: float = 0.2) -> None:
    await asyncio.to_thread(process.kill)
    await asyncio.sleep(away_s)
    await asyncio.to_thread(process.start)


async def more_than(found: Sized, count: int) -> None:
    await until(lambda: len(found) > count, "it goes on")


async def values_by_place(broker: Client, topic: str, partitions: int = 1) -> dict[tuple[int, int], bytes]:
    found: dict[tuple[int, int], bytes] = {}
    for number in range(partitions):
        for message in await broker.read(topic, number, messages_max=10**6):
            found[number, message.offset] = message.value
    return found


async def test_published_messages_survive_kills_once_each(broker_process: BrokerProcess, topic: str) -> None:
    acknowledged: dict[bytes, Published] = {}
    stop = asyncio.Event()

    async def publish_on(broker: Client, name: str) -> None:
        number = 0
        while not stop.is_set():
            value = f"{name}-{number}".encode()
            acknowledged[value] = await broker.publish(topic, value, key=name)
            number += 1

    async with connect(broker_process.url) as broker:
        await broker.create_topic(topic, partitions=3)
        publishers = [asyncio.create_task(publish_on(broker, f"p{number}")) for number in range(20)]
        for _ in range(scaled(2, 6)):
            await more_than(acknowledged, len(acknowledged) + 500)
            await kill_and_restart(broker_process, random.uniform(0, 0.2))
        await more_than(acknowledged, len(acknowledged) + 500)
        stop.set()
        await asyncio.gather(*publishers)
        stored = await values_by_place(broker, topic, 3)
    doubled = [value for value, count in Counter(stored.values()).items() if count > 1]
    lost = [value for value, each in acknowledged.items() if stored.get((each.partition, each.offset)) != value]
    assert (doubled[:10], lost[:10]) == ([], [])
    assert len(stored) == len(acknowledged)
    assert not any(each.duplicate for each in acknowledged.values())


async def test_many_messages_with_ids_survive_kills_once_each(broker_process: BrokerProcess, topic: str) -> None:
    values = [b"%d" % number for number in range(30_000)]
    async with connect(broker_process.url) as broker:
        await broker.publish(topic, b"first")
        results: list[Published] = []

        async def publish_all() -> None:
            for start in range(0, len(values), 5000):
                results.extend(await broker.publish_many(topic, values[start : start + 5000], retry_safe=True))

        publishing = asyncio.create_task(publish_all())
        for enough in (4999, 14_999):
            await more_than(results, enough)
            await kill_and_restart(broker_process)
        await publishing
        stored = await values_by_place(broker, topic)
    wrong = [value for value, each in zip(values, results, strict=True) if stored[0, each.offset] != value]
    assert wrong[:10] == []
    assert len(stored) == len(values) + 1


async def test_many_without_ids_are_not_doubled_and_say_what_is_stored(
    broker_process: BrokerProcess, topic: str
) -> None:
    async with connect(broker_process.url) as broker:
        await broker.publish(topic, b"first")
        lost: PublishManyLost | None = None
        sent: list[bytes] = []
        certain: list[bytes] = [b"first"]
        killer = asyncio.create_task(asyncio.sleep(0))
        for number in range(1000):
            values = [b"%d-%d" % (number, index) for index in range(2000)]
            sent += values
            if number == 20:
                killer = asyncio.create_task(kill_and_restart(broker_process))
            try:
                await broker.publish_many(topic, values)
                certain += values
            except PublishManyLost as error:
                lost = error
                certain += [value for value, result in zip(values, error.results, strict=True) if result]
                break
            if number > 20 and killer.done():
                break
        await killer
        stored = list((await values_by_place(broker, topic)).values())
    assert max(Counter(stored).values()) == 1
    assert set(certain) <= set(stored) <= {b"first", *sent}
    assert lost is None or lost.outcome_unknown


async def test_subscription_goes_on_over_kills_without_gap_or_repeat(broker_process: BrokerProcess, topic: str) -> None:
    found: list[Message] = []
    stop = asyncio.Event()

    async def publish_on(broker: Client) -> int:
        number = 0
        while not stop.is_set():
            await asyncio.gather(*(broker.publish(topic, str(number + each), key=str(each)) for each in range(10)))
            number += 10
        return number

    async def read_on(messages: Subscription) -> None:
        async for message in messages:
            found.append(message)

    async with connect(broker_process.url) as broker, connect(broker_process.url) as reader:
        await broker.create_topic(topic, partitions=2)
        async with reader.subscribe(topic, start="earliest") as messages:
            reading = asyncio.create_task(read_on(messages))
            publishing = asyncio.create_task(publish_on(broker))
            for _ in range(scaled(2, 6)):
                await more_than(found, len(found) + 300)
                await kill_and_restart(broker_process)
            await more_than(found, len(found) + 300)
            stop.set()
            count = await publishing
            await until(lambda: len(found) >= count, "the last messages arrive")
        await reading
    assert sorted(int(message.text) for message in found) == list(range(count))
    for number in range(2):
        offsets = [message.offset for message in found if message.partition == number]
        assert offsets == list(range(len(offsets)))


async def test_acknowledgement_waits_for_a_broker_that_is_away_and_survives_its_kill(
    broker_process: BrokerProcess, topic: str
) -> None:
    async with connect(broker_process.url) as broker:
        await broker.publish_many(topic, [b"%d" % number for number in range(100)])
        async with broker.subscribe(topic, "billing", start="earliest") as messages:
            found = await take(messages, 50)
            for message in found[:40]:
                assert await message.ack()
            await asyncio.to_thread(broker_process.kill)
            acknowledging = asyncio.gather(*(message.ack() for message in found[40:]))
            await asyncio.sleep(0.2)
            assert not acknowledging.done()
            await asyncio.to_thread(broker_process.start)
            assert all(await acknowledging)
        await kill_and_restart(broker_process)
        async with broker.subscribe(topic, "billing") as messages:
            assert (await take(messages, 1))[0].offset == 50


async def test_a_broker_that_stays_away_ends_every_call_in_time(
    broker_process: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(broker_process.url, timeout_s=1.0) as broker:
        await broker.publish(topic, b"v")
        async with broker.subscribe(topic, "billing", start="earliest") as messages:
            message = await messages.get(timeout_s=60)
            assert message is not None
            await asyncio.to_thread(broker_process.kill)
            calls = [
                broker.publish(topic, b"w"),
                broker.publish_many(topic, [b"w"]),
                broker.describe(topic),
                message.ack(),
                messages.get(),
            ]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, ConnectionLost) for result in results), results
            for result in results:
                assert "within 1 s" in str(result)
                assert "Connection refused" in str(result)
            await asyncio.to_thread(broker_process.start)
            assert (await broker.publish(topic, b"after")).offset >= 1
            assert await message.ack()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(line.startswith("lost the broker at") for line in lines)
    assert any("answers again" in line for line in lines)
    assert len(lines) < 10, "reconnecting is not a flood of lines"


async def test_a_frozen_broker_does_not_double_a_message(broker_process: BrokerProcess, topic: str) -> None:
    async with connect(broker_process.url, timeout_s=30) as broker:
        await broker.publish(topic, b"first")
        with pytest.MonkeyPatch.context() as patch:
            # The try is given up and made again while the first one still waits in the frozen broker's socket.
            patch.setattr("holdfast.client.retry.ATTEMPT_TIMEOUT_S", 0.05)
            broker_process.pause()
            publishing = asyncio.gather(*(broker.publish(topic, b"%d" % number) for number in range(10)))
            await asyncio.sleep(0.2)
        broker_process.resume()
        results = await publishing
        stored = await values_by_place(broker, topic)
    assert sorted(stored.values()) == sorted([b"first", *(b"%d" % number for number in range(10))])
    assert [stored[0, each.offset] for each in results] == [b"%d" % number for number in range(10)]
    assert not any(each.duplicate for each in results)


async def test_a_graceful_stop_is_ridden_out_too(broker_process: BrokerProcess, topic: str) -> None:
    async with connect(broker_process.url) as broker, broker.subscribe(topic, start="earliest") as messages:
        publishing = asyncio.create_task(publish_numbers(broker, topic, 600))
        found = await take(messages, 100)
        await asyncio.to_thread(broker_process.terminate)
        await asyncio.to_thread(broker_process.start)
        await publishing
        found += await take(messages, 500)
    assert sorted(int(message.text) for message in found) == list(range(600))


async def publish_numbers(broker: Client, topic: str, count: int) -> None:
    for number in range(0, count, 10):
        await asyncio.gather(*(broker.publish(topic, str(number + each)) for each in range(10)))

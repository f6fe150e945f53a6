"""A broker that dies and comes back in the middle: what was acknowledged stays, nothing comes twice."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import pytest
from testkit.processes import BrokerProcess
from testkit.wait import until

from holdfast.client import (
    Client,
    ConnectionLost,
    Message,
    NewMessage,
    Published,
    PublishManyLost,
    Subscription,
    connect,
)


async def kill_and_restart(process: BrokerProcess, away_s: float = 0.2) -> None:
    await asyncio.to_thread(process.kill)
    await asyncio.sleep(away_s)
    await asyncio.to_thread(process.start)


async def values_by_place(broker: Client, topic: str, partitions: int = 1) -> dict[tuple[int, int], bytes]:
    found = {}
    for number in range(partitions):
        for message in await broker.read(topic, number, messages_max=10**6):
            found[number, message.offset] = message.value
    return found


async def test_published_messages_survive_kills_once_each(broker_process: BrokerProcess) -> None:
    acknowledged: dict[bytes, Published] = {}
    stop = asyncio.Event()

    async def publish_on(broker: Client, name: str) -> None:
        number = 0
        while not stop.is_set():
            value = f"{name}-{number}".encode()
            acknowledged[value] = await broker.publish("orders", value, key=name)
            number += 1

    async with connect(broker_process.url) as broker:
        await broker.create_topic("orders", partitions=3)
        publishers = [asyncio.create_task(publish_on(broker, f"p{number}")) for number in range(20)]
        for _ in range(4):
            enough = len(acknowledged) + 500
            await until(lambda enough=enough: len(acknowledged) > enough, "publishing goes on")  # type: ignore[misc]
            await kill_and_restart(broker_process, random.uniform(0, 0.3))
        enough = len(acknowledged) + 500
        await until(lambda: len(acknowledged) > enough, "publishing goes on")
        stop.set()
        await asyncio.gather(*publishers)
        stored = await values_by_place(broker, "orders", 3)
    doubled = [value for value, count in Counter(stored.values()).items() if count > 1]
    lost = [value for value, each in acknowledged.items() if stored.get((each.partition, each.offset)) != value]
    assert (doubled[:10], lost[:10]) == ([], [])
    assert len(stored) == len(acknowledged)
    assert not any(each.duplicate for each in acknowledged.values())


async def test_many_messages_with_ids_survive_kills_once_each(broker_process: BrokerProcess) -> None:
    values = [b"%d" % number for number in range(60_000)]
    async with connect(broker_process.url) as broker:
        await broker.publish("orders", b"first")
        results: list[Published] = []

        async def publish_all() -> None:
            for start in range(0, len(values), 5000):
                results.extend(await broker.publish_many("orders", values[start : start + 5000], retry_safe=True))

        publishing = asyncio.create_task(publish_all())
        for enough in (5000, 25_000):
            await until(lambda enough=enough: len(results) >= enough or publishing.done(), "publishing goes on")  # type: ignore[misc]
            await kill_and_restart(broker_process)
        await publishing
        stored = await values_by_place(broker, "orders")
    wrong = [value for value, each in zip(values, results, strict=True) if stored[0, each.offset] != value]
    assert wrong[:10] == []
    assert len(stored) == len(values) + 1


async def test_many_without_ids_are_not_doubled_and_say_what_is_stored(broker_process: BrokerProcess) -> None:
    async with connect(broker_process.url) as broker:
        await broker.publish("orders", b"first")
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
                await broker.publish_many("orders", values)
                certain += values
            except PublishManyLost as error:
                lost = error
                certain += [value for value, result in zip(values, error.results, strict=True) if result]
                break
            if number > 20 and killer.done():
                break
        await killer
        stored = list((await values_by_place(broker, "orders")).values())
    assert max(Counter(stored).values()) == 1
    assert set(certain) <= set(stored) <= {b"first", *sent}
    assert lost is None or lost.outcome_unknown


async def test_subscription_goes_on_over_kills_without_gap_or_repeat(broker_process: BrokerProcess) -> None:
    found: list[Message] = []
    stop = asyncio.Event()

    async def publish_on(broker: Client) -> int:
        number = 0
        while not stop.is_set():
            await asyncio.gather(*(broker.publish("orders", str(number + each), key=str(each)) for each in range(10)))
            number += 10
        return number

    async def read_on(messages: Subscription) -> None:
        async for message in messages:
            found.append(message)

    async with connect(broker_process.url) as broker, connect(broker_process.url) as reader:
        await broker.create_topic("orders", partitions=2)
        async with reader.subscribe("orders", start="earliest") as messages:
            reading = asyncio.create_task(read_on(messages))
            publishing = asyncio.create_task(publish_on(broker))
            for _ in range(3):
                enough = len(found) + 300
                await until(lambda enough=enough: len(found) > enough, "messages arrive")  # type: ignore[misc]
                await kill_and_restart(broker_process)
            enough = len(found) + 300
            await until(lambda: len(found) > enough, "messages arrive")
            stop.set()
            count = await publishing
            await until(lambda: len(found) >= count, "the last messages arrive")
        await reading
    assert sorted(int(message.text) for message in found) == list(range(count))
    for number in range(2):
        offsets = [message.offset for message in found if message.partition == number]
        assert offsets == list(range(len(offsets)))


async def test_acknowledgement_survives_a_kill(broker_process: BrokerProcess) -> None:
    async with connect(broker_process.url) as broker:
        await broker.publish_many("orders", [b"%d" % number for number in range(100)])
        async with broker.subscribe("orders", "billing", start="earliest") as messages:
            for _ in range(40):
                message = await messages.get(timeout_s=10)
                assert message is not None
                assert await message.ack()
            await kill_and_restart(broker_process)
            for _ in range(10):
                message = await messages.get(timeout_s=10)
                assert message is not None
                assert await message.ack()
        await kill_and_restart(broker_process)
        async with broker.subscribe("orders", "billing") as messages:
            message = await messages.get(timeout_s=10)
            assert message is not None
            assert message.offset == 50


async def test_acknowledgement_waits_for_a_broker_that_is_away(broker_process: BrokerProcess) -> None:
    async with connect(broker_process.url) as broker:
        await broker.publish("orders", b"v")
        async with broker.subscribe("orders", "billing", start="earliest") as messages:
            message = await messages.get(timeout_s=10)
            assert message is not None
            await asyncio.to_thread(broker_process.kill)
            acknowledging = asyncio.create_task(message.ack())
            await asyncio.sleep(0.3)
            assert not acknowledging.done()
            await asyncio.to_thread(broker_process.start)
            assert await asyncio.wait_for(acknowledging, 10)
        assert (await broker.cursor("orders", "billing")).lag == 0


async def test_a_broker_that_stays_away_ends_every_call_in_time(
    broker_process: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(broker_process.url, timeout_s=1.0) as broker:
        await broker.publish("orders", b"v")
        async with broker.subscribe("orders", "billing", start="earliest") as messages:
            message = await messages.get(timeout_s=10)
            assert message is not None
            await asyncio.to_thread(broker_process.kill)
            calls = [
                broker.publish("orders", b"w"),
                broker.publish_many("orders", [b"w"]),
                broker.describe("orders"),
                message.ack(),
                messages.get(),
            ]
            results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 6)
            assert all(isinstance(result, ConnectionLost) for result in results), results
            for result in results:
                assert "within 1 s" in str(result)
                assert "Connection refused" in str(result)
            await asyncio.to_thread(broker_process.start)
            assert (await broker.publish("orders", b"after")).offset >= 1
            assert await message.ack()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(line.startswith("lost the broker at") for line in lines)
    assert any("answers again" in line for line in lines)
    assert len(lines) < 10, "reconnecting is not a flood of lines"


async def test_a_frozen_broker_does_not_double_a_message(broker_process: BrokerProcess) -> None:
    async with connect(broker_process.url, timeout_s=30) as broker:
        await broker.publish("orders", b"first")
        with pytest.MonkeyPatch.context() as patch:
            # The try is given up and made again while the first one still waits in the frozen broker's socket.
            patch.setattr("holdfast.client.retry.ATTEMPT_TIMEOUT_S", 0.5)
            broker_process.pause()
            publishing = asyncio.gather(*(broker.publish("orders", b"%d" % number) for number in range(10)))
            await asyncio.sleep(1.6)
            broker_process.resume()
            results = await asyncio.wait_for(publishing, 20)
        stored = await values_by_place(broker, "orders")
    assert sorted(stored.values()) == sorted([b"first", *(b"%d" % number for number in range(10))])
    assert [stored[0, each.offset] for each in results] == [b"%d" % number for number in range(10)]
    assert not any(each.duplicate for each in results)


async def test_ids_of_the_user_are_known_after_a_kill(broker_process: BrokerProcess) -> None:
    async with connect(broker_process.url) as broker:
        await broker.publish_many("orders", [NewMessage(value=b"%d" % n, id=f"order-{n}") for n in range(100)])
        await kill_and_restart(broker_process)
        again = await broker.publish_many("orders", [NewMessage(value=b"%d" % n, id=f"order-{n}") for n in range(101)])
        assert [each.offset for each in again] == list(range(101))
        assert again.duplicates == 100
        assert len(await values_by_place(broker, "orders")) == 101


async def test_a_graceful_stop_is_ridden_out_too(broker_process: BrokerProcess) -> None:
    async with connect(broker_process.url) as broker, broker.subscribe("orders", start="earliest") as messages:
        publishing = asyncio.create_task(publish_numbers(broker, 600))
        found: list[Message] = []
        while len(found) < 100:
            found += await messages.take(timeout_s=10)
        await asyncio.to_thread(broker_process.terminate)
        await asyncio.to_thread(broker_process.start)
        await asyncio.wait_for(publishing, 30)
        while len(found) < 600:
            some = await messages.take(timeout_s=10)
            assert some, f"only {len(found)} came"
            found += some
    assert sorted(int(message.text) for message in found) == list(range(600))


async def publish_numbers(broker: Client, count: int) -> None:
    for number in range(0, count, 10):
        await asyncio.gather(*(broker.publish("orders", str(number + each)) for each in range(10)))

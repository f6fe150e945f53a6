"""What a real broker has lost by retention or by damage: readers are told how much and go on behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.processes import BrokerProcess
from testkit.wait import until

from holdfast.client import Client, connect
from holdfast.testing.ports import free_port
from tests.client.reading import take

SEGMENT_BYTES = 100_000


async def start_after_retention(broker: Client, topic: str, size_bytes_max: int) -> int:
    """Where the log begins once retention has nothing more to remove."""

    async def is_done() -> bool:
        return (await broker.describe(topic)).size_bytes <= size_bytes_max

    await until(is_done, "retention has removed what it may")
    return (await broker.describe(topic)).partitions[0].start_offset


async def test_reader_that_retention_overtook_is_told_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerProcess(
        tmp_path / "data", "--segment-bytes", str(SEGMENT_BYTES), "--retention-check-ms", "100"
    ) as process:
        async with connect(process.url) as broker:
            await broker.create_topic("orders", retention_bytes=3 * SEGMENT_BYTES)
            await broker.seek("orders", "billing", "earliest")
            for number in range(100):
                await broker.publish_many("orders", [b"%06d" % (10 * number + each) * 100 for each in range(10)])
            # What it keeps is at least what it was told, and less than a segment more.
            start = await start_after_retention(broker, "orders", 4 * SEGMENT_BYTES)
            assert start > 0
            async with broker.subscribe("orders", "billing") as messages:
                found = await take(messages, 1000 - start)
                assert [message.offset for message in found] == list(range(start, 1000))
                assert all(message.value == b"%06d" % message.offset * 100 for message in found)
                for message in found:
                    message.ack_soon()
            assert (await broker.cursor("orders", "billing")).lag == 0, "what is gone does not hold the cursor back"
    assert f"orders/0: {start} messages, from offset 0 on, expired before they were read" in caplog.text


async def test_reader_goes_on_behind_damaged_messages_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerProcess(tmp_path / "data", "--segment-bytes", str(SEGMENT_BYTES), http_port=free_port()) as process:
        async with connect(process.url) as broker:
            for number in range(100):
                await broker.publish_many("orders", [b"%06d" % (10 * number + each) * 100 for each in range(10)])
            process.kill()
            second = sorted(process.data.glob("topics/orders/0/*.log"))[1]
            content = bytearray(second.read_bytes())
            content[len(content) // 2] ^= 0xFF
            second.write_bytes(content)
            process.start()
            async with broker.subscribe("orders", "billing", start="earliest") as messages:
                found = await take(messages, 990)
                for message in found:
                    message.ack_soon()
            offsets = [message.offset for message in found]
            missing = sorted(set(range(1000)) - set(offsets))
            assert offsets == sorted(offsets)
            assert missing == list(range(missing[0], missing[0] + 10)), "one batch is gone, and only that"
            assert all(message.value == b"%06d" % message.offset * 100 for message in found)
            assert (await broker.cursor("orders", "billing")).lag == 0
    assert f"orders/0: 10 messages, from offset {missing[0]} on, are damaged on the broker's disk" in caplog.text

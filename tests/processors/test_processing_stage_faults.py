"""The stage over a log with holes and on a disk that is full: it says so and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.mounts import MIB, fill, small_disk
from testkit.reading import read_all, values_in
from testkit.wait import until

from holdfast.broker.broker import Broker
from holdfast.broker.processing import PROCESSOR_CURSOR
from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.processors.stage import ProcessingStage
from tests.processors.processor_helpers import (
    ORDERS,
    Clock,
    Recorder,
    StartPool,
    StartStage,
    broker_on,
    processed_up_to,
)


async def test_messages_that_expired_before_they_were_processed_are_counted_and_the_rest_goes_on(
    tmp_path: Path, clock: Clock, start_pool: StartPool, log: Recorder
) -> None:
    pool = await start_pool("upper")
    async with broker_on(tmp_path, clock, segment_bytes=4096) as broker:
        await broker.create_topic(ORDERS, TopicConfig(retention_bytes=4096))
        await broker.backend.set_cursor(ORDERS, PROCESSOR_CURSOR, {0: Offset(0)})
        for number in range(40):
            await broker.publish(ORDERS, [NewMessage(value=b"%d " % number + b"x" * 1000)])
        assert await broker.backend.expire()  # type: ignore[attr-defined]
        start, end = broker.partition_range(ORDERS, 0)
        assert 0 < start < end
        stage = ProcessingStage(broker, pool, handles=lambda name: True, log=log)
        await stage.start()
        await processed_up_to(broker, end)
        await stage.stop()
        outputs = [int(message.value.split()[0]) for message in await read_all(broker, "orders.processed")]
        assert outputs == list(range(start, end))
        assert stage.stats.skipped == start
        assert log.of("processor_skipped")[0]["next_offset"] == start


async def test_damaged_messages_are_skipped_and_counted(
    tmp_path: Path, clock: Clock, start_pool: StartPool, log: Recorder
) -> None:
    pool = await start_pool("upper")
    async with broker_on(tmp_path, clock) as broker:
        for number in range(6):
            await broker.publish(ORDERS, [NewMessage(value=b"number %d" % number)])
    (segment,) = (tmp_path / "topics" / "orders" / "0").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"number 3", b"number X"))
    async with broker_on(tmp_path, clock) as broker:
        stage = ProcessingStage(broker, pool, handles=lambda name: True, log=log)
        await stage.start()
        await processed_up_to(broker, 6)
        await stage.stop()
        outputs = await values_in(broker, "orders.processed")
        assert outputs == [b"NUMBER %d" % number for number in (0, 1, 2, 4, 5)]
        assert stage.stats.skipped == 1
        assert log.of("processor_skipped")[0]["offset"] == 3


@pytest.mark.root
async def test_outputs_wait_while_the_disk_is_full_and_come_once_it_is_not(
    tmp_path: Path, clock: Clock, start_pool: StartPool, log: Recorder
) -> None:
    pool = await start_pool("sleep_ms")
    with small_disk(tmp_path / "small", 4 * MIB) as disk:
        async with broker_on(disk / "data", clock) as broker:
            stage = ProcessingStage(broker, pool, handles=lambda name: True, log=log)
            await stage.start()
            sent = [b"%d " % number + b"x" * 200_000 + b" 300" for number in range(4)]
            await broker.publish(ORDERS, [NewMessage(value=value) for value in sent])
            ballast = fill(disk)
            await until(lambda: stage.stats.waits > 0)
            assert await read_all(broker, "orders.processed") == []
            ballast.unlink()
            await processed_up_to(broker, 4)
            assert await stage.stop()
            assert await values_in(broker, "orders.processed") == sent
            assert "full" in str(log.of("processor_output_waits")[0]["error"])


async def test_a_partition_that_failed_begins_again_at_its_cursor(
    broker: Broker, start_pool: StartPool, start_stage: StartStage, log: Recorder
) -> None:
    pool = await start_pool("sleep_ms")
    stage = await start_stage(pool)
    await broker.publish(ORDERS, [NewMessage(value=b"%d 50" % number) for number in range(30)])
    await processed_up_to(broker, 2)
    await pool.stop()
    await until(lambda: stage.stats.restarts > 0)
    assert "ShuttingDown" in str(log.of("processor_partition_failed")[0]["error"])
    await pool.start()
    await processed_up_to(broker, 30)
    assert await values_in(broker, "orders.processed") == [b"%d 50" % n for n in range(30)]

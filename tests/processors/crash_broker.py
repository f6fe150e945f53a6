"""A broker with a processing stage that publishes and processes until it is killed.

python crash_broker.py DATA FIRST    prints `acknowledged N` for each message
python crash_broker.py DATA end      processes what is left, prints both logs and leaves
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.broker.broker import Broker
from holdfast.broker.processing import PROCESSOR_CURSOR
from holdfast.model.ids import TimestampMs, TopicName
from holdfast.model.messages import NewMessage
from holdfast.processors.pool import WorkerPool
from holdfast.processors.spec import ProcessorSettings, ProcessorSpec
from holdfast.processors.stage import ProcessingStage
from holdfast.storage.directory import DataDirectory

TOPIC = TopicName("orders")


def now_ms() -> TimestampMs:
    return TimestampMs(int(time.time() * 1000))


async def main(data: Path, first: str) -> None:
    directory = DataDirectory.open(data, node="n1", now_ms=now_ms())
    backend = ClusterBackend(directory, sync=parse_sync_policy("group"), now_ms=now_ms)
    await backend.start()
    broker = Broker(backend, now_ms=now_ms)
    pool = WorkerPool(
        ProcessorSpec(function="sample_functions:upper"), ProcessorSettings(workers=2), lambda *_, **__: 0
    )
    await pool.start()
    print("workers", *pool.pids, flush=True)
    stage = ProcessingStage(broker, pool, handles=lambda name: True, log=lambda *_, **__: 0)
    await stage.start()
    if first != "end":
        await publish_for_ever(broker, int(first))
    end = broker.partition_range(TOPIC, 0)[1]
    while ((backend.cursor(TOPIC, PROCESSOR_CURSOR) or {}).get(0) or 0) < end:
        await asyncio.sleep(0.02)
    for topic in (TOPIC, "orders.processed"):
        offset, end = broker.partition_range(topic, 0)
        while offset < end:
            messages, offset = await broker.read(topic, 0, offset, 10_000, 1 << 24)
            print(topic, *(message.value.decode() for message in messages), flush=True)
    await stage.stop()
    await pool.stop()
    await backend.stop()


async def publish_for_ever(broker: Broker, first: int) -> None:
    for number in range(first, sys.maxsize):
        # Some have ids, some have none: both must come out once.
        message_id = f"id-{number}" if number % 2 else None
        await broker.publish(TOPIC, [NewMessage(value=b"m%d" % number, id=message_id)])
        print("acknowledged", number, flush=True)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

"""What a plain backup held while nobody knew which of the two serves is published in the order in which it came."""

from __future__ import annotations

import asyncio
from pathlib import Path

from testkit.inprocess import PlainNode

from holdfast.backends.plain.holding import Holding
from holdfast.model.errors import NotLeader
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import BatchPublished, NewMessage
from holdfast.wire.batch_builder import build_batch

PARTITION = PartitionId(TopicName("orders"), 0)


async def test_publish_whose_ids_are_not_known_yet_is_not_overtaken_by_later_ones() -> None:
    stored: list[bytes] = []
    knows_ids = False

    def publish_here(partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        published: asyncio.Future[BatchPublished] = asyncio.get_running_loop().create_future()
        if knows_ids:
            stored.append(bytes(batch))
            offset = Offset(len(stored) - 1)
            published.set_result(BatchPublished(partition=0, base_offset=offset, count=1, duplicates=0, offsets=None))
        else:
            published.set_exception(NotLeader("not yet"))
        return published

    holding = Holding(5.0, lambda: True)
    holding.publish_with(publish_here)
    promises = [holding.hold(PARTITION, bytearray(batch)) for batch in (b"first", b"second")]
    holding.publish()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    knows_ids = True
    promises.append(holding.hold(PARTITION, bytearray(b"third")))
    holding.publish()
    assert [each.base_offset for each in await asyncio.gather(*promises)] == [0, 1, 2]
    assert stored == [b"first", b"second", b"third"]
    assert holding.is_empty


async def test_new_publish_does_not_overtake_those_that_are_still_held(tmp_path: Path) -> None:
    node = PlainNode(tmp_path)
    await node.open()
    backend, broker = node.backend, node.broker
    await broker.ensure_topic(PARTITION.topic)
    is_settled = False

    def publish_here(partition: PartitionId, batch: bytearray) -> asyncio.Future[BatchPublished]:
        if not is_settled:
            raise NotLeader("its ids are not known yet")
        return broker.publisher.publish_forwarded(partition, batch)

    backend.publish_with(publish_here)
    held = backend.forward(PARTITION, build_batch([NewMessage(value=b"1")], node.clock()), has_ids=False)
    newer = asyncio.ensure_future(broker.publish(PARTITION.topic, [NewMessage(value=b"2")]))
    await asyncio.sleep(0)
    is_settled = True
    await asyncio.gather(held, newer)
    messages, _ = await broker.read(PARTITION.topic, 0, Offset(0), 10, 1 << 20)
    assert [message.value for message in messages] == [b"1", b"2"]
    await node.stop()

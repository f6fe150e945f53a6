"""What a plain backup held while nobody knew which of the two serves is published in the order in which it came."""

from __future__ import annotations

import asyncio

from holdfast.backends.plain.holding import Holding
from holdfast.model.errors import NotLeader
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import BatchPublished

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

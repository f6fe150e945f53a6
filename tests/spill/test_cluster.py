"""A spill around a cluster that has lost its majority: messages are taken, and stored once when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from testkit.inprocess import now_ms, running
from testkit.wait import until, wait_until

from holdfast.backends.cluster.forwarding import PATIENCE_S
from holdfast.backends.spill import files
from holdfast.backends.spill.backend import SpillBackend
from holdfast.backends.spill.log_target import LogTarget
from holdfast.backends.spill.settings import SpillSettings
from holdfast.broker.broker import Broker
from holdfast.client import Client, Message
from holdfast.model.ids import Offset, PartitionId, TopicName
from holdfast.model.messages import NewMessage
from holdfast.model.topics import TopicConfig
from holdfast.testing import LocalCluster
from holdfast.wire import record_batch


async def test_node_without_a_majority_keeps_messages_and_stores_them_once(tmp_path: Path) -> None:
    with LocalCluster(
        nodes=3, data=tmp_path / "data", settings={"spill": True, "spill_deadline_ms_max": 500}
    ) as cluster:
        async with cluster.connect() as client:
            await client.publish("orders", b"0")
        last, *others = [cluster.leader("orders"), *({"n1", "n2", "n3"} - {cluster.leader("orders")})]
        cluster.kill(*others)
        async with cluster.connect(last) as client:
            published = [await client.publish("orders", b"%d" % number, retry_safe=False) for number in range(1, 6)]
            many = await client.publish_many("orders", [b"%d" % number for number in range(6, 20)])
        assert all(each.buffered for each in [*published, *many])
        cluster.start(*others)
        directory = cluster.node(last).data / "spill"
        wait_until(lambda: not files.listed(directory), "everything is stored", 30)
        async with cluster.connect() as client:
            found = [message.value async for message in _read_all(client)]
        assert found == [b"%d" % number for number in range(20)]


async def test_messages_that_were_given_up_on_one_by_one_are_stored_in_order_when_the_majority_is_back(
    tmp_path: Path,
) -> None:
    """The majority is back when the first of them would not be sent any more, and the others would."""
    async with running(tmp_path) as nodes:
        await nodes.backends["n1"].create_topic(TopicName("orders"), TopicConfig())
        partition = PartitionId(TopicName("orders"), 0)
        me = nodes.another_than(await nodes.leader(TopicName("orders")))
        inner = nodes.backends[me]
        await until(lambda: partition in inner.topics_here.replicas)
        settings = SpillSettings(tmp_path / "spill", free_bytes_min=0)
        spill = SpillBackend(inner, LogTarget(inner, tmp_path / "spill"), settings, now_ms=now_ms)
        await spill.start()
        broker = Broker(spill, now_ms=now_ms)
        others = [node for node in nodes.backends if node != me]
        await nodes.stop(*others)
        began_s = asyncio.get_running_loop().time()
        pushes = []
        for number in range(20):
            message = NewMessage(value=b"%d" % number, id=f"m{number}")
            pushes.append(asyncio.ensure_future(broker.publish("orders", [message])))
            await asyncio.sleep(0.1)
        assert all(each.buffered for [each] in await asyncio.gather(*pushes))
        await asyncio.sleep(max(0.0, began_s + PATIENCE_S + 0.5 - asyncio.get_running_loop().time()))
        await nodes.start(*others)
        await until(lambda: not spill.pending and inner.end_offset(partition) >= 20)
        found: list[bytes] = []
        for batch in await inner.read(partition, Offset(0), 1 << 20):
            found += record_batch.decode_values(batch)
        await spill.stop()
    assert found == [b"%d" % number for number in range(20)]


async def _read_all(client: Client) -> AsyncIterator[Message]:
    offset = 0
    while messages := await client.read("orders", 0, offset):
        for message in messages:
            yield message
        offset = messages[-1].offset + 1

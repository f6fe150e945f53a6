"""A spill around a cluster that has lost its majority: messages are taken, and stored once when it is back."""

from __future__ import annotations

from pathlib import Path

from holdfast.backends.spill import files
from holdfast.testing import LocalCluster
from tests.support.broker_process import wait_until


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


async def _read_all(client):  # type: ignore[no-untyped-def]
    offset = 0
    while messages := await client.read("orders", 0, offset):
        for message in messages:
            yield message
        offset = messages[-1].offset + 1

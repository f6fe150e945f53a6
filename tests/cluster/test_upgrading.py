"""A cluster is upgraded node by node under load: nothing is lost, and no node reads what it does not understand."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from testkit.wait import until

from holdfast.client import Client
from holdfast.model.errors import RemoteError
from holdfast.testing import LocalCluster
from holdfast.testing.errors import ClusterFailed
from tests.cluster import later_build


class Load:
    """Publishers that note what was acknowledged and when, and a durable subscriber that notes what it got."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.acknowledged: list[bytes] = []
        self.delivered: list[bytes] = []
        self.gap_s = 0.0
        self._is_over = asyncio.Event()

    async def publish(self, name: int) -> None:
        async with self._cluster.connect() as broker:
            before_s = time.monotonic()
            for number in itertools.count():
                if self._is_over.is_set():
                    return
                value = f"{name} {number}".encode()
                await broker.publish("orders", value, key=str(name))
                self.acknowledged.append(value)
                now_s = time.monotonic()
                self.gap_s, before_s = max(self.gap_s, now_s - before_s), now_s
                await asyncio.sleep(0.005)

    async def subscribe(self) -> None:
        async with self._cluster.connect() as broker, broker.subscribe("orders", "billing", start="earliest") as found:
            async for message in found:
                self.delivered.append(message.value)

    async def end(self, publishers: list[asyncio.Task[None]]) -> None:
        self._is_over.set()
        await asyncio.gather(*publishers)


@asynccontextmanager
async def loaded(cluster: LocalCluster) -> AsyncIterator[tuple[Load, list[asyncio.Task[None]]]]:
    load = Load(cluster)
    publishers = [asyncio.create_task(load.publish(name)) for name in range(3)]
    subscriber = asyncio.create_task(load.subscribe())
    try:
        yield load, publishers
    finally:
        for task in (*publishers, subscriber):
            task.cancel()
        await asyncio.gather(*publishers, subscriber, return_exceptions=True)


async def restarted(cluster: LocalCluster, node: str) -> None:
    await asyncio.to_thread(cluster.stop, node)
    await asyncio.to_thread(cluster.start, node)
    await asyncio.to_thread(cluster.wait_until_ready)


async def is_at_level(broker: Client, level: int) -> bool:
    return (await broker.cluster()).level == level


async def refusal_of_new_command(broker: Client) -> str:
    with pytest.raises(RemoteError) as refused:
        await broker.delete_cursor("orders", "audit")
    assert refused.value.code == "cluster_level_too_low"
    return refused.value.message


async def test_upgrade_node_by_node_loses_nothing_and_new_commands_wait_for_the_last_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = await asyncio.to_thread(later_build.make, tmp_path)
    cluster = LocalCluster(nodes=3, data=tmp_path / "data")
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, cluster)
        broker = await stack.enter_async_context(cluster.connect())
        await broker.create_topic("orders", partitions=3)
        await broker.seek("orders", "audit", "earliest")
        assert [(node.level, node.protocol) for node in (await broker.cluster()).nodes] == [(1, 1)] * 3
        load, publishers = await stack.enter_async_context(loaded(cluster))
        await until(lambda: len(load.acknowledged) > 50)

        monkeypatch.setenv("PYTHONPATH", str(later))
        gaps_s = {}
        for node in ("n1", "n2", "n3"):
            load.gap_s = 0.0
            await restarted(cluster, node)
            at = len(load.acknowledged)
            await until(lambda at=at: len(load.acknowledged) > at + 50)  # type: ignore[misc]
            gaps_s[node] = load.gap_s
            if node == "n3":
                break
            async with cluster.connect(node) as upgraded:
                described = {each.node: each for each in (await upgraded.cluster()).nodes}
                assert (described[node].version, described[node].level, described[node].protocol) == ("9.9.9", 2, 2)
                assert (described["n3"].level, described["n3"].protocol) == (1, 1)
                assert await is_at_level(upgraded, 1)
                assert "n3" in await refusal_of_new_command(upgraded)
        print(f"publishers waited at most, in seconds: {gaps_s}")

        await until(lambda: is_at_level(broker, 2))
        await broker.delete_cursor("orders", "audit")
        assert [cursor.name for cursor in await broker.cursors("orders")] == ["billing"]

        await load.end(publishers)
        await until(lambda: len(set(load.delivered)) == len(load.acknowledged))
        stored = [
            message.value
            for partition in range(3)
            for message in await broker.read("orders", partition, messages_max=1_000_000)
        ]
        assert sorted(stored) == sorted(load.acknowledged), "each acknowledged message is stored, once"
        assert sorted(load.delivered) == sorted(load.acknowledged), "each is delivered, once"

        monkeypatch.delenv("PYTHONPATH")
        await assert_old_build_takes_no_part(cluster, "n1")


async def assert_old_build_takes_no_part(cluster: LocalCluster, node: str) -> None:
    """Neither with the directory it had, nor with an empty one."""
    await asyncio.to_thread(cluster.stop, node)
    assert "PYTHONPATH" not in os.environ
    why = "the cluster is at level 2, and this build"
    with pytest.raises(ClusterFailed, match=why):
        await asyncio.to_thread(cluster.start, node)
    data = cluster.node(node).data
    data.rename(data.with_name("before"))
    with pytest.raises(ClusterFailed, match=why):
        await asyncio.to_thread(cluster.start, node)
    with sqlite3.connect(data.with_name("before") / "state.sqlite") as state:
        assert state.execute("PRAGMA user_version").fetchone() == (7,)
        assert state.execute("SELECT level FROM level").fetchone() == (2,)

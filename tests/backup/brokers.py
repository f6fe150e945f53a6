"""What the tests of backups share: a broker to back up, everything it serves, and the commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from testkit.processes import BrokerProcess

from holdfast.backup import creating, restoring, verifying
from holdfast.backup.format import Manifest
from holdfast.client import Client, connect
from holdfast.model.messages import NewMessage
from holdfast.node.node import now_ms

Everything = dict[tuple[str, int], list[tuple[Any, ...]]]


def address(broker: BrokerProcess) -> str:
    host, port = broker.http_address
    return f"{host}:{port}"


@asynccontextmanager
async def serving(data: Path, *flags: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    """A broker over a directory, and a client of it."""
    broker = BrokerProcess(data, *flags, environment=environment)
    await asyncio.to_thread(broker.start)
    try:
        async with connect(address(broker)) as client:
            yield client
    finally:
        await asyncio.to_thread(broker.kill)


def server_of(client: Client) -> str:
    return str(client._addresses)


async def everything(client: Client, manifest: Manifest) -> Everything:
    """All messages that a backup should hold, with all that can be told of each."""
    found = {}
    for topic, partition in manifest.partitions():
        first, end = partition.first, partition.end
        messages = []
        if end > first:
            messages = await client.read(topic.topic, partition.partition, first, messages_max=end - first)
        found[topic.topic, partition.partition] = [
            (each.offset, each.id, each.key, each.value, each.timestamp_ms, each.headers) for each in messages
        ]
    return found


async def create(
    client_or_server: Client | str,
    directory: Path,
    *,
    update: bool = False,
    prune: bool = False,
    clock_ms: Callable[[], int] = now_ms,
    topics: list[str] | None = None,
    on_progress: Callable[..., None] = lambda **_: None,
) -> Manifest:
    server = client_or_server if isinstance(client_or_server, str) else server_of(client_or_server)
    return await creating.create(
        server, directory, topics=topics, update=update, prune=prune, now_ms=clock_ms, on_progress=on_progress
    )


async def restore(
    backup: Path, data: Path, *, with_subscriptions: bool = True, with_aside: bool = False
) -> restoring.Restored:
    return await restoring.restore(
        backup, data, node="n1", now_ms=now_ms, with_subscriptions=with_subscriptions, with_aside=with_aside
    )


EVENTS = 40


async def fill(client: Client) -> None:
    await client.create_topic("orders", partitions=2, retention_ms=86_400_000)
    await client.create_topic("empty", partitions=1)
    orders = [
        NewMessage(value=b"order %d" % number, key=b"k%d" % (number % 7), id=f"o{number}", headers=(("n", b"1"),))
        for number in range(EVENTS)
    ]
    await client.publish_many("orders", orders)
    await client.publish_many("events", [b"%d" % number for number in range(EVENTS)])
    await client.seek("orders", "billing", 5)
    await client.seek("events", "audit", "latest")


def findings(backup: Path) -> list[str]:
    return [f"{each.file}: {each.problem}" for each in verifying.verify(backup).findings]

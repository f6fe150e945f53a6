"""What the tests of backups share: a broker to back up, everything it serves, and the commands."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.backup import creating, restoring, verifying
from holdfast.backup.format import Manifest
from holdfast.client import Client, connect
from holdfast.node.node import now_ms
from tests.support.broker_process import BrokerProcess

Everything = dict[tuple[str, int], list[tuple[Any, ...]]]


def address(broker: BrokerProcess) -> str:
    host, port = broker.http_address
    return f"{host}:{port}"


@asynccontextmanager
async def serving(data: Path, *flags: str) -> AsyncIterator[Client]:
    """A broker over a directory, and a client of it; `broker` of the client is its process."""
    broker = BrokerProcess(data, *flags)
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
    topics: list[str] | None = None,
    on_progress: Callable[..., None] = lambda **_: None,
) -> Manifest:
    server = client_or_server if isinstance(client_or_server, str) else server_of(client_or_server)
    return await creating.create(
        server, directory, topics=topics, update=update, now_ms=now_ms, on_progress=on_progress
    )


async def restore(backup: Path, data: Path) -> restoring.Restored:
    return await restoring.restore(backup, data, node="n1", now_ms=now_ms)


def findings(backup: Path) -> list[str]:
    return [f"{each.file}: {each.problem}" for each in verifying.verify(backup).findings]


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def spawned(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

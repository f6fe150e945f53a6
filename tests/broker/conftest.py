from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from testkit.inprocess import OneNode

from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage, Published, StoredMessage
from tests.contract.stores import SEGMENT_BYTES


class Desk(OneNode):
    """A broker over a store that can be restarted, with short names for long calls."""

    def send(self, *ids_and_values: tuple[str | None, bytes], topic: str = "t") -> asyncio.Future[list[Published]]:
        return self.broker.publish(topic, [NewMessage(value=value, id=each) for each, value in ids_and_values])

    async def values(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        return [message.value for message in await self.messages(topic, partition)]

    async def messages(self, topic: str = "t", partition: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        offset = Offset(0)
        while True:
            messages, offset = await self.broker.read(topic, partition, offset, 1_000, 1 << 20)
            if not messages:
                return found
            found += messages


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path / "data", segment_bytes=SEGMENT_BYTES)
    await made.open()
    yield made
    await made.stop()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Syncs of messages wait until the event is set, and the test may look at what happens meanwhile."""
    allowed = threading.Event()
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        assert allowed.wait(20)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    yield allowed
    allowed.set()

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.broker.broker import Broker
from holdfast.model.ids import Offset
from holdfast.model.messages import NewMessage, Published, StoredMessage
from tests.contract.stores import BACKENDS, Store


class Desk:
    """A broker over a store that can be restarted, with short names for long calls."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.options: dict[str, Any] = {}
        self.skips: list[str] = []
        self.broker: Broker

    async def open(self) -> None:
        await self.store.open()
        self._make_broker()

    async def restart(self, **options: Any) -> None:
        await self.store.restart()
        self.options |= options
        self._make_broker()

    def use(self, **options: Any) -> None:
        """Other settings over the same store."""
        self.options |= options
        self._make_broker()

    def _make_broker(self) -> None:
        self.broker = Broker(self.store.backend, now_ms=self.store.clock, on_skip=self.skips.append, **self.options)

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
    made = Desk(Store(BACKENDS["alone-group"], tmp_path / "data"))
    await made.open()
    yield made
    await made.store.stop()


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

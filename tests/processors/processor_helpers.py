"""What the tests of the processing stage share: a recorder, a clock, a broker on disk, and looking on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from testkit.wait import until

from holdfast.backends.cluster.backend import ClusterBackend
from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.broker.broker import Broker
from holdfast.broker.processing import PROCESSOR_CURSOR, is_derived, processed_topic
from holdfast.model.ids import Offset, TimestampMs, TopicName
from holdfast.model.limits import SEGMENT_BYTES_DEFAULT
from holdfast.model.messages import NewMessage
from holdfast.processors.pool import WorkerPool
from holdfast.processors.protocol import ProcessorMessage
from holdfast.processors.stage import ProcessingStage
from holdfast.storage.directory import DataDirectory

ORDERS = TopicName("orders")
StartPool = Callable[..., Awaitable[WorkerPool]]
StartStage = Callable[[WorkerPool], Awaitable[ProcessingStage]]


class Recorder:
    """The log: what would be shown to the operator."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, /, **fields: object) -> None:
        self.lines.append((event, fields))

    def of(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.lines if name == event]


class Clock:
    """The machine's clock, that a test may move on."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> TimestampMs:
        return TimestampMs(int(time.time() * 1000) + self.ahead_ms)


@asynccontextmanager
async def broker_on(path: Path, clock: Clock, *, segment_bytes: int = SEGMENT_BYTES_DEFAULT) -> AsyncIterator[Broker]:
    directory = DataDirectory.open(path, node="n1", now_ms=clock())
    backend = ClusterBackend(directory, sync=parse_sync_policy("group"), now_ms=clock, segment_bytes=segment_bytes)
    await backend.start()
    try:
        yield Broker(
            backend,
            now_ms=clock,
            delivers_from=lambda name: (
                processed_topic(name) if name.startswith("orders") and not is_derived(name) else name
            ),
        )
    finally:
        await backend.stop()


def message(value: bytes | str, offset: int = 0, **fields: object) -> ProcessorMessage:
    encoded = value if isinstance(value, bytes) else value.encode()
    return ProcessorMessage(
        offset=Offset(offset),
        timestamp_ms=TimestampMs(1_789_000_000_000),
        id=str(fields.get("id", f"0-{offset}")),
        key=fields.get("key"),  # type: ignore[arg-type]
        value=encoded,
        headers=fields.get("headers", ()),  # type: ignore[arg-type]
        topic=TopicName("orders"),
        partition=0,
    )


async def processed_up_to(broker: Broker, offset: int, partition: int = 0, topic: TopicName = ORDERS) -> None:
    """Wait until the processor's cursor is at `offset`."""
    await until(lambda: ((broker.backend.cursor(topic, PROCESSOR_CURSOR) or {}).get(partition) or 0) >= offset)


def values(*numbers: int) -> list[NewMessage]:
    return [NewMessage(value=b"%d" % number) for number in numbers]


def is_running(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False

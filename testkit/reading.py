"""All messages of a partition, as a broker in this process has them."""

from __future__ import annotations

from holdfast.broker.broker import Broker
from holdfast.model.messages import StoredMessage


async def read_all(broker: Broker, topic: str, partition: int = 0) -> list[StoredMessage]:
    """Everything that a reader finds, in order."""
    found: list[StoredMessage] = []
    offset, _ = broker.partition_range(topic, partition)
    while True:
        messages, offset = await broker.read(topic, partition, offset, 10_000, 1 << 24)
        if not messages:
            return found
        found += messages


async def values_in(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    return [message.value for message in await read_all(broker, topic, partition)]

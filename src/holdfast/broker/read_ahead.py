"""Messages that were read a moment ago, for readers that take one at a time.

To find one message, a log is read from the last mark before it, and a batch is decoded: that costs the same for one
message as for dozens. Readers of a queue are near each other, or come back for the next one, so what was read is kept
for a while, in blocks of neighbours. What is stored never changes; a topic that was made anew, or a store that lost its
last commits, is told apart.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.model.errors import OffsetOutOfRange
from holdfast.model.ids import Offset, PartitionId
from holdfast.model.limits import KIB, MIB
from holdfast.model.messages import StoredMessage
from holdfast.model.topics import Topic

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

_BLOCK_MESSAGES: Final = 64
_READ_BYTES: Final = 16 * KIB
# What is kept, of values and beside them, over all queues.
_KEPT_BYTES_MAX: Final = 8 * MIB
_MESSAGE_BYTES: Final = 500


# What tells a topic from another one that had its name before.
TopicToken = tuple[int, int, str]


def token_of(topic: Topic | None) -> TopicToken | None:
    return None if topic is None else (topic.id, topic.created_ms, topic.token)


class _Key(NamedTuple):
    partition: PartitionId
    token: TopicToken | None
    cuts: int
    block: int


class ReadAhead:
    """Reads single messages of one broker's partitions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # The block that was not used for longest comes first.
        self._blocks: OrderedDict[_Key, dict[int, StoredMessage]] = OrderedDict()
        self._bytes = 0

    async def message(self, partition: PartitionId, offset: Offset) -> StoredMessage:
        """The message at an offset. Raises like `Broker.read`."""
        backend = self._broker.backend
        number = offset // _BLOCK_MESSAGES
        key = _Key(partition, token_of(backend.topic(partition.topic)), len(backend.cuts(partition)), number)
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
            found = block.get(offset)
            if found is not None:
                return found
        wanted = (number + 1) * _BLOCK_MESSAGES - offset
        messages, _ = await self._broker.read(partition.topic, partition.number, offset, wanted, _READ_BYTES)
        if not messages or messages[0].offset != offset:
            raise OffsetOutOfRange(f"{partition.topic} has nothing at offset {offset} any more; read again")
        self._keep(key, messages)
        return messages[0]

    def _keep(self, key: _Key, messages: list[StoredMessage]) -> None:
        block = self._blocks.setdefault(key, {})
        for message in messages:
            if message.offset // _BLOCK_MESSAGES == key.block and message.offset not in block:
                block[message.offset] = message
                self._bytes += len(message.value) + _MESSAGE_BYTES
        while self._bytes > _KEPT_BYTES_MAX and self._blocks:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= sum(len(message.value) + _MESSAGE_BYTES for message in oldest.values())

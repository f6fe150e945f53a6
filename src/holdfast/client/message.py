"""What a reader gets: one message, or a whole batch of them for those who read in bulk."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, TypeVar, overload

import msgspec

from holdfast.model.ids import Offset, TimestampMs
from holdfast.model.messages import StoredMessage
from holdfast.wire.record_batch import decode, decode_values, header

T = TypeVar("T")


class AckSink(Protocol):
    """Where acknowledgements go."""

    def done(self, partition: int, start: int, end: int) -> bool: ...

    async def stored(self, partition: int, end: int) -> None: ...


class MessageFields:
    """What can be read of a message. `topic` is the one that was asked for; `stored` is the plain record."""

    __slots__ = ("partition", "stored", "topic")

    def __init__(self, topic: str, partition: int, stored: StoredMessage) -> None:
        self.topic = topic
        self.partition = partition
        self.stored = stored

    @property
    def offset(self) -> Offset:
        return self.stored.offset

    @property
    def id(self) -> str:
        """The publisher's id, or `<partition>-<offset>` where there was none."""
        return self.stored.id

    @property
    def key(self) -> bytes | None:
        return self.stored.key

    @property
    def value(self) -> bytes:
        return self.stored.value

    @property
    def text(self) -> str:
        """The value as text; `UnicodeDecodeError` if it is not UTF-8."""
        return self.stored.value.decode()

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, type: type[T]) -> T: ...

    def json(self, type: Any = Any) -> Any:
        """The value as JSON; with `type` (a dataclass, a `msgspec.Struct`, `list[int]` …) checked and converted."""
        return msgspec.json.decode(self.stored.value, type=type)

    @property
    def headers(self) -> dict[str, str]:
        """Headers as text; bytes that are not UTF-8 are kept as surrogate escapes."""
        return {name: content.decode("utf-8", "surrogateescape") for name, content in self.stored.headers}

    @property
    def timestamp_ms(self) -> TimestampMs:
        return self.stored.timestamp_ms

    def __repr__(self) -> str:
        value = self.value if len(self.value) <= 60 else self.value[:57] + b"..."
        return f"<{type(self).__name__} {self.topic}/{self.partition} at {self.offset}: {value!r}>"


class Message(MessageFields):
    """A message that can be acknowledged, if it came through a subscription with a name."""

    __slots__ = ("_acked", "_acks")

    def __init__(self, topic: str, partition: int, stored: StoredMessage, acks: AckSink | None = None) -> None:
        super().__init__(topic, partition, stored)
        self._acks = acks
        self._acked = False

    async def ack(self) -> bool:
        """Say that this message is done; returns `True` once the broker has stored that.

        `False` means that it is noted but not stored: an earlier message of the partition is still
        open, and both are stored together when that one is done. Without a name there is nothing to
        store, and the answer is `False` too.
        """
        if not self.ack_soon():
            return False
        assert self._acks is not None
        await self._acks.stored(self.partition, self.offset + 1)
        return True

    def ack_soon(self) -> bool:
        """Say that this message is done without waiting; it is stored in the background.

        Returns whether everything before it is done, too. Leaving the subscription waits for it.
        """
        if self._acks is None:
            return False
        start = self.offset + 1 if self._acked else self.offset
        self._acked = True
        return self._acks.done(self.partition, start, self.offset + 1)


class MessageBatch:
    """Messages of one partition as they are stored together, decoded only as far as they are looked at."""

    def __init__(self, topic: str, partition: int, data: memoryview, first_offset: int, acks: AckSink | None) -> None:
        head = header(data)
        self.topic = topic
        self.partition = partition
        self.first_offset = Offset(first_offset)
        self.next_offset = head.next_offset
        self._skip = first_offset - head.base_offset
        self._data = data
        self._acks = acks
        self._acked = False

    def __len__(self) -> int:
        return self.next_offset - self.first_offset

    @cached_property
    def values(self) -> list[bytes]:
        """Only the values: the fastest way to read."""
        return decode_values(self._data)[self._skip :]

    @cached_property
    def messages(self) -> list[Message]:
        acks = None if self._acked else self._acks
        decoded = decode(self._data, self.partition)[self._skip :]
        return [Message(self.topic, self.partition, stored, acks) for stored in decoded]

    def rest_from(self, offset: int) -> MessageBatch:
        """The part of it from `offset` on."""
        return MessageBatch(self.topic, self.partition, self._data, offset, self._acks)

    async def ack(self) -> bool:
        """Say that all of them are done; as `Message.ack`."""
        if not self.ack_soon():
            return False
        assert self._acks is not None
        await self._acks.stored(self.partition, self.next_offset)
        return True

    def ack_soon(self) -> bool:
        """Say that all of them are done without waiting; as `Message.ack_soon`."""
        if self._acks is None:
            return False
        if "messages" in self.__dict__:
            # Some may have been acknowledged one by one, and nothing may be marked twice.
            return [message.ack_soon() for message in self.messages][-1]
        start = self.next_offset if self._acked else self.first_offset
        self._acked = True
        return self._acks.done(self.partition, start, self.next_offset)

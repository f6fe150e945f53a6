"""The one seam: what a backend promises to everything before and after it.

Before `append` and after `read` the code is the same for every backend. A backend decides where
partitions live and how they survive; it knows nothing of connections, subscribers or formats other
than the record batch, which it stores as opaque bytes.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.topics import PartitionDescription, Topic, TopicConfig

Unwatch = Callable[[], None]


class Backend(Protocol):
    """Where partitions live. All calls come from one event loop; none blocks it for long."""

    @property
    def node_id(self) -> str:
        """The name this node goes by in descriptions, `leader` among them."""
        ...

    def problem(self) -> str | None:
        """Why nothing can be appended now, for people; `None` while it can."""
        ...

    # --- messages ---------------------------------------------------------------------------------

    def append(self, partition: PartitionId, batch: bytearray) -> Future[Offset]:
        """Store one valid record batch; the future gives the base offset once it is durable.

        The backend writes the base offset and the leader epoch into `batch` and owns it from then on.
        Offsets are given in the order of the calls, and futures of a partition finish in that order.
        Where the store is as durable as promised at once, the future is already done on return.
        Raises, or fails the future with, `Unavailable`: nothing was promised.
        """
        ...

    async def read(self, partition: PartitionId, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        """Whole committed batches, the first one holding `offset`; at least one if there is any.

        An empty answer means that nothing is committed at `offset` yet. Raises `OffsetOutOfRange`
        below the start or above the end, `DamagedData` where the bytes fail their checksum.
        """
        ...

    def start_offset(self, partition: PartitionId) -> Offset:
        """The oldest message that is still there."""
        ...

    def end_offset(self, partition: PartitionId) -> Offset:
        """One past the last committed message."""
        ...

    def next_readable(self, partition: PartitionId, offset: Offset) -> Offset:
        """The first offset at or after `offset` that is neither expired nor damaged."""
        ...

    async def offset_at(self, partition: PartitionId, timestamp_ms: TimestampMs) -> Offset:
        """The first offset whose batch holds a message of that time or later; the end if there is none."""
        ...

    def watch(self, partition: PartitionId, on_commit: Callable[[], None]) -> Unwatch:
        """Call `on_commit` whenever the end moves; also once the topic is deleted."""
        ...

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> Topic | None: ...

    def topics(self) -> Sequence[Topic]: ...

    async def create_topic(self, name: TopicName, config: TopicConfig) -> Topic:
        """Durable on return. Raises `TopicExists`."""
        ...

    async def delete_topic(self, name: TopicName) -> None:
        """Messages and cursors go with it. Raises `TopicNotFound`."""
        ...

    def watch_topics(self, on_topic: Callable[[Topic], None]) -> None:
        """Call `on_topic` for each topic there is, and from now on for each that is created."""
        ...

    def describe_partition(self, partition: PartitionId) -> PartitionDescription: ...

    # --- cursors ----------------------------------------------------------------------------------

    def cursor(self, topic: TopicName, name: CursorName) -> Mapping[int, Offset] | None:
        """Where a named reader stands, by partition; `None` if there is no such reader."""
        ...

    def cursors(self) -> Sequence[tuple[TopicName, CursorName]]: ...

    def set_cursor(self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset]) -> Future[None]:
        """Move some or all positions, in either direction; done once that is durable.

        Reads see the new position at once, and the old one again if it could not be stored. With no
        positions it waits for what is being stored of this cursor. The rule that a reader's own progress never goes
        backwards is the broker's; a seek may go anywhere.
        """
        ...

    async def delete_cursor(self, topic: TopicName, name: CursorName) -> None: ...

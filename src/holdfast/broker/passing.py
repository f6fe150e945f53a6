"""A backend that passes every call on to another one: what a wrapper does not change."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence

from holdfast.broker.backend import Backend, Unwatch
from holdfast.model.cluster import ClusterDescription, GroupDescription, MembersDescription
from holdfast.model.draws import Draw, Drawn
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.messages import BatchPublished, StoredId
from holdfast.model.topics import PartitionDescription, Topic, TopicConfig


class PassingBackend:
    """Keeps the promises of `broker.backend.Backend` as well as `inner` does."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def node_id(self) -> str:
        return self.inner.node_id

    def problem(self) -> str | None:
        return self.inner.problem()

    @property
    def delivers_where_led(self) -> bool:
        return self.inner.delivers_where_led

    # --- messages ---------------------------------------------------------------------------------

    def leads(self, partition: PartitionId) -> bool:
        return self.inner.leads(partition)

    def has_waiting(self, partition: PartitionId) -> bool:
        return self.inner.has_waiting(partition)

    def reign(self, partition: PartitionId) -> int | None:
        return self.inner.reign(partition)

    def is_void(self, partition: PartitionId, offset: Offset) -> bool:
        return self.inner.is_void(partition, offset)

    def cuts(self, partition: PartitionId) -> Sequence[Offset]:
        return self.inner.cuts(partition)

    def watch_reigns(self, on_change: Callable[[PartitionId], None], *, of_internal: bool = False) -> None:
        self.inner.watch_reigns(on_change, of_internal=of_internal)

    def append(self, partition: PartitionId, batch: bytearray) -> Future[Offset]:
        return self.inner.append(partition, batch)

    def append_all(self, partition: PartitionId, batches: Sequence[bytearray]) -> Future[Offset]:
        return self.inner.append_all(partition, batches)

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> Future[BatchPublished]:
        return self.inner.forward(partition, batch, has_ids=has_ids)

    def publish_with(self, publish_here: Callable[[PartitionId, bytearray], Future[BatchPublished]]) -> None:
        self.inner.publish_with(publish_here)

    async def catch_up(self, partition: PartitionId) -> None:
        await self.inner.catch_up(partition)

    def staleness_ms(self, partition: PartitionId) -> int:
        return self.inner.staleness_ms(partition)

    def is_current(self, partition: PartitionId) -> bool:
        return self.inner.is_current(partition)

    async def read(self, partition: PartitionId, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        return await self.inner.read(partition, offset, bytes_max)

    def start_offset(self, partition: PartitionId) -> Offset:
        return self.inner.start_offset(partition)

    def end_offset(self, partition: PartitionId) -> Offset:
        return self.inner.end_offset(partition)

    def next_readable(self, partition: PartitionId, offset: Offset) -> Offset:
        return self.inner.next_readable(partition, offset)

    async def offset_at(self, partition: PartitionId, timestamp_ms: TimestampMs) -> Offset:
        return await self.inner.offset_at(partition, timestamp_ms)

    async def time_ms(self, partition: PartitionId) -> TimestampMs:
        return await self.inner.time_ms(partition)

    async def expired_ids(self, partition: PartitionId, start: Offset) -> Sequence[StoredId]:
        return await self.inner.expired_ids(partition, start)

    def watch(self, partition: PartitionId, on_commit: Callable[[], None]) -> Unwatch:
        return self.inner.watch(partition, on_commit)

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> Topic | None:
        return self.inner.topic(name)

    def topics(self) -> Sequence[Topic]:
        return self.inner.topics()

    @property
    def partitions_left(self) -> int:
        return self.inner.partitions_left

    async def create_topic(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        return await self.inner.create_topic(name, config, maker)

    async def delete_topic(self, name: TopicName) -> None:
        await self.inner.delete_topic(name)

    def watch_topics(self, on_topic: Callable[[Topic], None]) -> None:
        self.inner.watch_topics(on_topic)

    def watch_deletions(self, on_deleted: Callable[[TopicName], None]) -> None:
        self.inner.watch_deletions(on_deleted)

    def describe_partition(self, partition: PartitionId) -> PartitionDescription:
        return self.inner.describe_partition(partition)

    # --- cursors ----------------------------------------------------------------------------------

    def cursor(self, topic: TopicName, name: CursorName) -> Mapping[int, Offset] | None:
        return self.inner.cursor(topic, name)

    def cursors(self) -> Sequence[tuple[TopicName, CursorName]]:
        return self.inner.cursors()

    async def catch_up_cursors(self) -> None:
        await self.inner.catch_up_cursors()

    def watch_cursors(self, on_move: Callable[[TopicName, CursorName], None]) -> None:
        self.inner.watch_cursors(on_move)

    def set_cursor(
        self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset], *, only_forward: bool = False
    ) -> Future[None]:
        return self.inner.set_cursor(topic, name, positions, only_forward=only_forward)

    async def take_cursor(
        self, topic: TopicName, name: CursorName, number: int, *, stands_at: Offset | None, to: Offset
    ) -> None:
        await self.inner.take_cursor(topic, name, number, stands_at=stands_at, to=to)

    async def draw_cursor(
        self,
        topic: TopicName,
        name: CursorName,
        number: int,
        *,
        start: Offset,
        end: Offset,
        wanted: Sequence[Draw],
        notes_nothing: bool = False,
    ) -> list[Drawn]:
        return await self.inner.draw_cursor(
            topic, name, number, start=start, end=end, wanted=wanted, notes_nothing=notes_nothing
        )

    async def delete_cursor(self, topic: TopicName, name: CursorName) -> None:
        await self.inner.delete_cursor(topic, name)

    # --- the cluster ------------------------------------------------------------------------------

    async def cluster(self) -> ClusterDescription:
        return await self.inner.cluster()

    def describe_groups(self, topic: TopicName | None) -> list[GroupDescription]:
        return self.inner.describe_groups(topic)

    async def transfer(self, partition: PartitionId | None, node: str) -> None:
        await self.inner.transfer(partition, node)

    async def members(self) -> MembersDescription:
        return await self.inner.members()

    def check_belongs(self) -> None:
        self.inner.check_belongs()

    async def remove_member(self, node: str, *, undo: bool = False) -> None:
        await self.inner.remove_member(node, undo=undo)

    async def drain_member(self, node: str, *, undo: bool = False) -> None:
        await self.inner.drain_member(node, undo=undo)

    async def replace_member(self, old: str, new: str) -> None:
        await self.inner.replace_member(old, new)

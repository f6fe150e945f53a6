"""The PostgreSQL backend: the database is the leader of every partition, and brokers keep nothing.

The parts: `database` has the connections, `writing` stores in group commits, `reading` reads, `notices` hears what
other brokers stored, `topics` and `cursors` are what their names say, `holding` shares the processing among
brokers, `retention` deletes. This class keeps the promises of `broker.backend.Backend` with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from asyncpg import Connection

from holdfast.backends.postgres import status
from holdfast.backends.postgres.cursors import Cursors
from holdfast.backends.postgres.database import RETRY_S_MAX, Database
from holdfast.backends.postgres.holding import LEASE_S, Holding
from holdfast.backends.postgres.notices import Notices
from holdfast.backends.postgres.planning import Write
from holdfast.backends.postgres.queries import sql
from holdfast.backends.postgres.reading import Reading
from holdfast.backends.postgres.replaying import Replaying
from holdfast.backends.postgres.retention import Retention
from holdfast.backends.postgres.state import KnownTopics
from holdfast.backends.postgres.topics import Topics
from holdfast.backends.postgres.writing import Writer
from holdfast.broker.backend import NoMembers, NothingVoid, Unwatch
from holdfast.broker.results import one_by_one, then
from holdfast.model.cluster import ClusterDescription, GroupDescription
from holdfast.model.draws import Draw, Drawn
from holdfast.model.errors import BadValue, HoldfastError
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import DEDUPE_AGE_MS_MAX, PARTITIONS_MAX
from holdfast.model.messages import BatchPublished, StoredId
from holdfast.model.topics import PartitionDescription, Topic, TopicConfig
from holdfast.model.waiting import NOBODY, RetentionWait
from holdfast.wire import record_batch
from holdfast.wire.push_batch import PushedBatch


class PostgresBackend(NoMembers, NothingVoid):
    """Keeps the promises of `broker.backend.Backend` in one database, which other brokers may use at the same time."""

    why_no_members = "the database keeps the messages of these brokers: start or stop brokers, and they come and go"

    def __init__(
        self,
        url: str,
        *,
        node: str,
        now_ms: Callable[[], TimestampMs],
        timeout_s: float,
        dedupe_age_ms: int = DEDUPE_AGE_MS_MAX,
        default_retention: TopicConfig | None = None,
        retention_wait: RetentionWait = NOBODY,
        partitions_max: int = PARTITIONS_MAX,
        retry_s_max: float = RETRY_S_MAX,
        lease_s: float = LEASE_S,
    ) -> None:
        self.node_id = node
        self._now_ms = now_ms
        self.broker_id = uuid.uuid4()
        self.store_id = ""
        self.database = Database(url, timeout_s=timeout_s, application=f"holdfast {node}", retry_s_max=retry_s_max)
        self.known = KnownTopics()
        self.writer = Writer(self.database, dedupe_age_ms=dedupe_age_ms, on_stored=self._on_stored)
        self.reading = Reading(self.database, self.known, self._on_state)
        self.retention = Retention(
            self.database,
            self.known,
            now_ms=now_ms,
            dedupe_age_ms=dedupe_age_ms,
            cursor=self.cursor,
            wait=retention_wait,
        )
        self._topics = Topics(
            self.database,
            self.known,
            now_ms=now_ms,
            default_retention=default_retention or TopicConfig(),
            partitions_max=partitions_max,
        )
        self._cursors = Cursors(self.database, self.known)
        self.notices = Notices(self.database, self.known, self._topics, self._cursors, self.broker_id)
        self.notices.on_listening = self.reading.tails.clear
        self.holding = Holding(self.database, self.known, self.notices, self.broker_id, node, lease_s)
        self.holding.on_beat = self._on_beat
        self.replaying = Replaying(
            self.database, self.known, self.holding, self.broker_id, self.writer, dedupe_age_ms=dedupe_age_ms
        )
        self._sweeping: set[asyncio.Task[None]] = set()
        self.database.on_up.append(self._on_up)
        self.known.deletion_watchers.append(self._forget_tails)

    def problem(self) -> str | None:
        return self.database.problem or self.writer.problem or self.holding.problem

    @property
    def delivers_where_led(self) -> bool:
        return False

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach the database and know what is in it; or begin to try. Raises `ConfigError`."""
        await self.database.start()
        self.writer.start()
        await self.notices.start()
        self.holding.start()

    async def stop(self) -> None:
        """Store what waits, and leave the store to others."""
        await self.writer.stop()
        await self.replaying.stop()
        await self._cursors.stop()
        for task in self._sweeping:
            task.cancel()
        await asyncio.gather(*self._sweeping, return_exceptions=True)
        await self.holding.leave(self.writer.id)
        await self.notices.stop()
        await self.database.stop()

    async def _on_up(self, connection: Connection) -> None:
        self.store_id = str(await connection.fetchval(sql("store_id")))
        if not self.known.is_loaded:
            await self.notices.read_all(connection)

    def _on_beat(self) -> None:
        """The database takes writes: whatever was wrong is not any more."""
        self.writer.problem = None

    def _on_stored(self, write: Write, base: int, fresh: int) -> None:
        if not fresh or self.known.partitions.get(write.state.id) is not write.state:
            return
        end = Offset(base + fresh)
        if isinstance(write.batch, PushedBatch):
            # The batch is kept for readers, and counted by its bytes: what it was made of is several times as much.
            write.batch.pushed = None
        if fresh == write.count and write.batch:
            record_batch.place(write.batch, Offset(base), 0)
            self.reading.tails.add(write.state.id, base, end, write.batch)
        write.state.reached(end)

    def _on_state(self, row: Any) -> None:
        topic_id, number, start, end, size_bytes, reign, broker_id = row
        self.known.told(topic_id, number, start, end, size_bytes)
        self.holding.told(topic_id, number, reign, broker_id)

    def _forget_tails(self, topic: Topic) -> None:
        for number in range(topic.config.partitions):
            self.reading.tails.forget(PartitionId(topic.name, number))

    # --- messages ---------------------------------------------------------------------------------

    def leads(self, partition: PartitionId) -> bool:
        return False

    def has_waiting(self, partition: PartitionId) -> bool:
        return False

    def reign(self, partition: PartitionId) -> int | None:
        return self.holding.reign(partition)

    def watch_reigns(self, on_change: Callable[[PartitionId], None], *, of_internal: bool = False) -> None:
        self.holding.watch(on_change, of_internal=of_internal)

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        promise: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        written = self.forward(partition, batch, has_ids=False)
        then(written, promise, lambda published: published.base_offset)
        return promise

    def append_all(self, partition: PartitionId, batches: Sequence[bytearray]) -> asyncio.Future[Offset]:
        promise: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        written = one_by_one(partial(self.forward, partition, batch, has_ids=False) for batch in batches)
        then(written, promise, lambda published: published[0].base_offset)
        return promise

    def forward(self, partition: PartitionId, batch: bytearray, *, has_ids: bool) -> asyncio.Future[BatchPublished]:
        return self.writer.write(self.known.found(partition), batch)

    def publish_with(self, publish_here: Callable[[PartitionId, bytearray], asyncio.Future[BatchPublished]]) -> None:
        """Nothing is forwarded to this broker: every broker brings its messages to the database itself."""

    async def catch_up(self, partition: PartitionId) -> None:
        await self.reading.catch_up(self.known.found(partition))

    def staleness_ms(self, partition: PartitionId) -> int:
        return self.notices.staleness_ms

    def is_current(self, partition: PartitionId) -> bool:
        return self.known.is_loaded

    async def read(self, partition: PartitionId, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        return await self.reading.read(self.known.found(partition), offset, bytes_max)

    def start_offset(self, partition: PartitionId) -> Offset:
        return self.known.found(partition).start

    def end_offset(self, partition: PartitionId) -> Offset:
        state = self.known.partitions.get(partition)
        return state.end if state is not None else Offset(0)

    def cuts(self, partition: PartitionId) -> Sequence[Offset]:
        state = self.known.partitions.get(partition)
        return state.cuts if state is not None else ()

    def next_readable(self, partition: PartitionId, offset: Offset) -> Offset:
        return max(offset, self.known.found(partition).start)

    async def time_ms(self, partition: PartitionId) -> TimestampMs:
        return self._now_ms()

    async def expired_ids(self, partition: PartitionId, start: Offset) -> Sequence[StoredId]:
        return ()

    async def offset_at(self, partition: PartitionId, timestamp_ms: TimestampMs) -> Offset:
        return await self.reading.offset_at(self.known.found(partition), timestamp_ms)

    def watch(self, partition: PartitionId, on_commit: Callable[[], None]) -> Unwatch:
        return self.known.found(partition).watch(on_commit)

    def describe_partition(self, partition: PartitionId) -> PartitionDescription:
        return status.of_partition(self, partition)

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> Topic | None:
        topic = self.known.by_name.get(name)
        if topic is None and not self.known.is_loaded:
            # Whether there is such a topic is not known: "no" would be a guess.
            raise self.database.unavailable()
        return topic

    def topics(self) -> Sequence[Topic]:
        return list(self.known.by_name.values())

    @property
    def partitions_left(self) -> int:
        return self._topics.partitions_left

    def watch_topics(self, on_topic: Callable[[Topic], None]) -> None:
        self.known.watchers.append(on_topic)
        for topic in self.topics():
            on_topic(topic)

    def watch_deletions(self, on_deleted: Callable[[TopicName], None]) -> None:
        self.known.deletion_watchers.append(lambda topic: on_deleted(topic.name))

    async def create_topic(self, name: TopicName, config: TopicConfig, maker: str = "") -> Topic:
        return await self._topics.create(name, config, maker)

    async def delete_topic(self, name: TopicName) -> None:
        await self._topics.delete(name)
        task = asyncio.get_running_loop().create_task(self._sweep())
        self._sweeping.add(task)
        task.add_done_callback(self._sweeping.discard)

    async def _sweep(self) -> None:
        with contextlib.suppress(HoldfastError):  # the next round of retention does it
            await self.retention.sweep()

    # --- cursors ----------------------------------------------------------------------------------

    def cursor(self, topic: TopicName, name: CursorName) -> Mapping[int, Offset] | None:
        return self._cursors.get(topic, name)

    def cursors(self) -> Sequence[tuple[TopicName, CursorName]]:
        return self._cursors.keys()

    async def catch_up_cursors(self) -> None:
        await self.notices.caught_up()

    def watch_cursors(self, on_move: Callable[[TopicName, CursorName], None]) -> None:
        self._cursors.watchers.append(on_move)

    def set_cursor(
        self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset], *, only_forward: bool = False
    ) -> asyncio.Future[None]:
        return self._cursors.set(topic, name, positions, only_forward=only_forward)

    async def take_cursor(
        self, topic: TopicName, name: CursorName, number: int, *, stands_at: Offset | None, to: Offset
    ) -> None:
        await self._cursors.take(topic, name, number, stands_at=stands_at, to=to)

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
        return await self._cursors.draw(
            topic, name, number, start=start, end=end, wanted=wanted, notes_nothing=notes_nothing
        )

    async def delete_cursor(self, topic: TopicName, name: CursorName) -> None:
        await self._cursors.delete(topic, name)

    # --- the brokers ------------------------------------------------------------------------------

    async def cluster(self) -> ClusterDescription:
        return await status.of_store(self)

    def describe_groups(self, topic: TopicName | None) -> list[GroupDescription]:
        return []

    async def transfer(self, partition: PartitionId | None, node: str) -> None:
        raise BadValue("the database leads every partition of this store: there is nothing to hand over")

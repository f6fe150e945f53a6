"""The embedded backend: partitions in segment files, topics and cursors in SQLite, all on one disk.

With `--sync group` a batch is acknowledged, and shown to readers, after a sync that covers it; one sync
serves all that wait. A sync that fails stops all acknowledging until a restart: what reached the disk is
unknown then, and asking again may answer "fine" for bytes that are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import structlog

from holdfast.backends.embedded.cursor_table import CursorTable
from holdfast.backends.embedded.partition import Partition
from holdfast.backends.embedded.state import Loaded, StateStore
from holdfast.backends.embedded.sync_policy import SyncPolicy
from holdfast.backends.embedded.topic_files import TopicFiles, report_damage
from holdfast.broker.backend import Unwatch
from holdfast.model.errors import (
    DataDirectoryError,
    DiskFull,
    HoldfastError,
    StorageFailed,
    TooManyTopics,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import PARTITIONS_MAX, SEGMENT_BYTES_DEFAULT
from holdfast.model.topics import PartitionDescription, Topic, TopicConfig
from holdfast.storage.directory import DataDirectory
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import NotCached, as_write_error
from holdfast.storage.syncer import Syncer

log = structlog.get_logger("holdfast.storage")

# Pages may be dropped again before they are read; after so many tries the loop waits for the disk itself.
_WARM_ATTEMPTS = 5


class EmbeddedBackend:
    """Keeps the promises of `broker.backend.Backend` on one data directory."""

    def __init__(
        self,
        directory: DataDirectory,
        *,
        sync: SyncPolicy,
        now_ms: Callable[[], TimestampMs],
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        default_retention: TopicConfig | None = None,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._directory = directory
        self._sync = sync
        self._now_ms = now_ms
        self._files = TopicFiles(directory, segment_bytes, now_ms)
        self._partitions_max = partitions_max
        self._default_retention = default_retention or TopicConfig()
        self._topics: dict[TopicName, Topic] = {}
        self._partitions: dict[PartitionId, Partition] = {}
        self._partition_of_log: dict[PartitionLog, Partition] = {}
        self._topic_watchers: list[Callable[[Topic], None]] = []
        # Topics that are being created or deleted right now, and when that is done.
        self._changing: dict[TopicName, asyncio.Event] = {}
        self._failure: Unavailable | None = None
        self._disk_full = False
        self._state: StateStore
        self._cursors: CursorTable
        self._syncer: Syncer
        self._interval_task: asyncio.Task[None] | None = None

    @property
    def node_id(self) -> str:
        return self._directory.identity.node

    @property
    def sync_policy(self) -> SyncPolicy:
        return self._sync

    @property
    def sync_rounds(self) -> tuple[int, float]:
        """How many rounds of syncing there were, and the seconds they took."""
        return self._syncer.rounds, self._syncer.seconds

    def problem(self) -> str | None:
        if self._failure is not None:
            return self._failure.message
        return "the disk is full; make room and publishing goes on" if self._disk_full else None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything and make it whole after a crash. Raises `DataDirectoryError`."""
        self._syncer = Syncer(on_synced=self._on_synced, on_failure=self._on_sync_failure)
        self._state, loaded = self._open_state()
        if loaded.problem:
            log.error("state_damaged", problem=loaded.problem)
        self._cursors = CursorTable(self._state, loaded.cursors)
        for name in loaded.deleting:
            self._files.move_to_trash(name)
            self._cursors.forget_topic(name)
            await self._state.remove_topic(name)
        await asyncio.to_thread(self._files.empty_trash)
        for topic in self._files.unknown(set(loaded.topics), state_is_incomplete=loaded.is_incomplete):
            loaded.topics[topic.name] = topic
            await self._state.put_topic(topic)
        for topic in loaded.topics.values():
            self._add(topic, self._files.open(topic))
        await self._bring_cursors_back()
        self._directory.keep_reserve()
        if self._sync.gives_up:
            log.warning("weaker_than_group_sync", sync=str(self._sync), gives_up=self._sync.gives_up)
        if self._sync.interval_ms:
            self._interval_task = asyncio.get_running_loop().create_task(self._sync_at_intervals())

    async def stop(self) -> None:
        """Sync and close everything."""
        if self._interval_task is not None:
            self._interval_task.cancel()
        for partition in self._partitions.values():
            if partition.log.written_end > partition.log.synced_end:
                self._syncer.request(partition.log)
        await self._syncer.stop()
        await self._state.close()
        for partition in self._partitions.values():
            partition.fail(StorageFailed("the broker stopped before this was known to be stored"))
            partition.log.close()
        self._directory.close()

    def _open_state(self) -> tuple[StateStore, Loaded]:
        def opened() -> tuple[StateStore, Loaded]:
            suffix = f".damaged-{self._now_ms()}"
            return StateStore.open(self._directory.state_file, damaged_suffix=suffix, on_failure=self._fail)

        try:
            return opened()
        except DataDirectoryError:
            # A full disk must not keep people from reading: the reserve is for this.
            if not self._directory.release_reserve():
                raise
            return opened()

    async def _bring_cursors_back(self) -> None:
        """With a weaker sync a power loss may take messages that readers had: they get the ones that follow."""
        for topic, name in self._cursors.keys():  # noqa: SIM118 - a table, not a dict
            positions = self._cursors.get((topic, name)) or {}
            ends = {number: self.end_offset(PartitionId(topic, number)) for number in positions}
            beyond = {number: end for number, end in ends.items() if topic in self._topics and positions[number] > end}
            if beyond:
                log.warning("cursor_beyond_end", topic=topic, cursor=name, moved_to=beyond)
                await self.set_cursor(topic, name, beyond)

    def _add(self, topic: Topic, partitions: list[Partition]) -> None:
        for partition in partitions:
            self._partitions[partition.id] = partition
            self._partition_of_log[partition.log] = partition
        self._topics[topic.name] = topic

    # --- messages ---------------------------------------------------------------------------------

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        if self._failure is not None:
            raise self._failure
        found = self._found(partition)
        try:
            appended = found.append(batch)
        except DiskFull:
            if not self._disk_full:
                self._disk_full = True
                log.error("disk_full", partition=str(partition))
            raise
        except StorageFailed as error:
            self._fail(error)
            raise
        if self._disk_full:
            self._disk_full = False
            log.info("disk_has_room_again")
        if self._sync.acknowledges_after_sync:
            self._syncer.request(found.log)
        else:
            found.commit(found.log.written_end)
            if found.log.has_unsynced_segments:
                self._syncer.request(found.log)
        return appended

    async def read(self, partition: PartitionId, offset: Offset, bytes_max: int) -> Sequence[memoryview]:
        for _ in range(_WARM_ATTEMPTS):
            found = self._found(partition)
            try:
                return found.log.read(offset, bytes_max, found.end, may_block=False)
            except NotCached as cold:
                # A reader far behind waits for the disk in a thread; the loop goes on serving the others.
                await asyncio.to_thread(cold.warm)
        found = self._found(partition)
        return found.log.read(offset, bytes_max, found.end)

    def start_offset(self, partition: PartitionId) -> Offset:
        return self._found(partition).log.start_offset

    def end_offset(self, partition: PartitionId) -> Offset:
        found = self._partitions.get(partition)
        return found.end if found is not None else Offset(0)

    def next_readable(self, partition: PartitionId, offset: Offset) -> Offset:
        return self._found(partition).log.next_readable(offset)

    async def offset_at(self, partition: PartitionId, timestamp_ms: TimestampMs) -> Offset:
        found = self._found(partition)
        return min(found.log.first_at_or_after(timestamp_ms), found.end)

    def watch(self, partition: PartitionId, on_commit: Callable[[], None]) -> Unwatch:
        return self._found(partition).watch(on_commit)

    def describe_partition(self, partition: PartitionId) -> PartitionDescription:
        return self._found(partition).describe(self.node_id)

    def _found(self, partition: PartitionId) -> Partition:
        found = self._partitions.get(partition)
        if found is None:
            raise TopicNotFound(f"there is no partition {partition}")
        return found

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: TopicName) -> Topic | None:
        return self._topics.get(name)

    def topics(self) -> Sequence[Topic]:
        return list(self._topics.values())

    def watch_topics(self, on_topic: Callable[[Topic], None]) -> None:
        self._topic_watchers.append(on_topic)
        for topic in self.topics():
            on_topic(topic)

    async def create_topic(self, name: TopicName, config: TopicConfig) -> Topic:
        while name in self._changing:
            await self._changing[name].wait()
        if name in self._topics:
            raise TopicExists(f"topic {name} exists already")
        if self._failure is not None:
            raise self._failure
        if config.retention_ms is None and config.retention_bytes is None:
            default = self._default_retention
            config = msgspec.structs.replace(
                config, retention_ms=default.retention_ms, retention_bytes=default.retention_bytes
            )
        if len(self._partitions) + config.partitions > self._partitions_max:
            raise TooManyTopics(
                f"{len(self._partitions)} partitions are open, at most {self._partitions_max} may be; "
                "delete a topic, ask for fewer partitions, or allow more open files (ulimit -n)"
            )
        topic = Topic(name=name, config=config, created_ms=self._now_ms())
        with self._change(name):
            partitions: list[Partition] = []
            try:
                await asyncio.to_thread(self._files.make, topic)
                # Opened before the state knows it: what cannot be opened now must not be there after a restart.
                partitions = self._files.open(topic)
                await self._state.put_topic(topic)
            except (OSError, HoldfastError) as error:
                for partition in partitions:
                    partition.log.close()
                with contextlib.suppress(OSError):  # then it is an empty leftover for the next start
                    await asyncio.to_thread(self._files.move_to_trash, name)
                raise as_write_error(error) if isinstance(error, OSError) else error from error
            self._add(topic, partitions)
        log.info("topic_created", topic=name, partitions=config.partitions)
        for on_topic in self._topic_watchers:
            on_topic(topic)
        return topic

    async def delete_topic(self, name: TopicName) -> None:
        topic = self._topics.pop(name, None)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}")
        with self._change(name):
            try:
                await self._mark_deleting(name)
            except HoldfastError:
                self._topics[name] = topic
                raise
            await self._close_partitions(topic)
            await asyncio.to_thread(self._files.move_to_trash, name)
            self._cursors.forget_topic(name)
            # The room it took is there before the state is written again: the disk may have been full.
            await asyncio.to_thread(self._files.empty_trash)
            await self._state.remove_topic(name)
            self._directory.keep_reserve()
        log.info("topic_deleted", topic=name)

    async def _mark_deleting(self, name: TopicName) -> None:
        """Deleting is how people make room, so it must work on a full disk: the reserve is for this."""
        try:
            await self._state.mark_deleting(name)
        except DiskFull:
            if not self._directory.release_reserve():
                raise
            await self._state.mark_deleting(name)

    @contextlib.contextmanager
    def _change(self, name: TopicName) -> Iterator[None]:
        """Whoever wants to create a topic that is being created or deleted waits for that."""
        done = self._changing[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._changing[name]
            done.set()

    async def _close_partitions(self, topic: Topic) -> None:
        closing = [self._partitions.pop(PartitionId(topic.name, n)) for n in range(topic.config.partitions)]
        for partition in closing:
            self._syncer.forget(partition.log)
            partition.fail(TopicNotFound(f"topic {topic.name} was deleted"))
            partition.notify()
        await self._syncer.settled()
        for partition in closing:
            del self._partition_of_log[partition.log]
            partition.log.close()

    # --- cursors ----------------------------------------------------------------------------------

    def cursor(self, topic: TopicName, name: CursorName) -> Mapping[int, Offset] | None:
        return self._cursors.get((topic, name))

    def cursors(self) -> Sequence[tuple[TopicName, CursorName]]:
        return self._cursors.keys()

    def set_cursor(self, topic: TopicName, name: CursorName, positions: Mapping[int, Offset]) -> asyncio.Future[None]:
        return self._cursors.set((topic, name), positions)

    async def delete_cursor(self, topic: TopicName, name: CursorName) -> None:
        await self._cursors.forget((topic, name))

    # --- upkeep -----------------------------------------------------------------------------------

    def expire(self) -> int:
        """Delete what retention no longer keeps; returns the number of segments."""
        deleted = 0
        for partition in self._partitions.values():
            topic = self._topics.get(partition.id.topic)
            config = topic.config if topic is not None else TopicConfig()  # it is being deleted
            if config.retention_ms is None and config.retention_bytes is None:
                continue
            older_than = None if config.retention_ms is None else TimestampMs(self._now_ms() - config.retention_ms)
            deleted += partition.log.expire(
                older_than_ms=older_than, bytes_max=config.retention_bytes, up_to=partition.end
            )
            if partition.log.has_unsynced_segments:
                self._syncer.request(partition.log)
        return deleted

    async def verify(self) -> None:
        """Check sealed segments in the background: damage is reported before somebody reads it."""
        for partition in list(self._partitions.values()):
            for segment in partition.log.segments[:-1]:
                try:
                    scan = await asyncio.to_thread(segment.verify, sealed=True)
                except FileNotFoundError:  # retention or a deletion was faster
                    continue
                except OSError as error:
                    log.error("segment_unreadable", partition=str(partition.id), problem=str(error))
                    continue
                for hole in scan.holes:
                    if hole not in segment.holes and segment in partition.log.segments:
                        segment.holes.append(hole)
                        report_damage(partition.id, segment.path.name, hole.first_offset, hole.next_offset)

    async def _sync_at_intervals(self) -> None:
        while True:
            await asyncio.sleep(self._sync.interval_ms / 1000)
            for partition in self._partitions.values():
                if partition.log.written_end > partition.log.synced_end:
                    self._syncer.request(partition.log)

    def _on_synced(self, synced: PartitionLog) -> None:
        partition = self._partition_of_log.get(synced)
        if partition is not None:
            partition.commit(synced.synced_end)

    def _on_sync_failure(self, error: Exception) -> None:
        self._fail(StorageFailed(f"a sync to disk failed ({error}); check the disk, then restart the broker"))

    def _fail(self, error: StorageFailed) -> None:
        """Stop acknowledging until a restart. Said once; the first reason is the one that counts."""
        if self._failure is not None:
            return
        self._failure = error
        log.critical("storage_failed", problem=error.message)
        for partition in self._partitions.values():
            partition.fail(error)

"""Batches that are published to partitions this node leads, and what it means when its disk refuses one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.topics import Topics
from holdfast.model.errors import DiskFull, HoldfastError, LeaderChanged, StorageFailed, WorldError
from holdfast.model.ids import Offset, PartitionId

log = structlog.get_logger("holdfast.backends.cluster")


class Appending:
    """Writes into replicas; lets others lead while the disk is full."""

    def __init__(
        self,
        topics: Topics,
        let_others_lead: Callable[[Replica], None],
        on_failure: Callable[[HoldfastError], None],
    ) -> None:
        self._topics = topics
        self._let_others_lead = let_others_lead
        self._on_failure = on_failure
        self.disk_is_full = False

    def append(self, partition: PartitionId, batch: bytearray) -> asyncio.Future[Offset]:
        replica = self._topics.replicas.get(partition) or self._topics.found(partition)
        try:
            appended = replica.append(batch)
        except WorldError as error:
            self._refused(replica, error)
            raise
        if self.disk_is_full:
            self._has_room_again()
        return appended

    def append_all(self, partition: PartitionId, batches: Sequence[bytearray]) -> asyncio.Future[Offset]:
        replica = self._topics.found(partition)
        before = replica.log.last_index
        try:
            appended = replica.append_all(batches)
        except WorldError as error:
            self._refused(replica, error)
            if replica.log.last_index > before:
                raise LeaderChanged(f"part of this may be stored: {error.message}") from error
            raise
        if self.disk_is_full:
            self._has_room_again()
        return appended

    def _refused(self, replica: Replica, error: WorldError) -> None:
        if isinstance(error, StorageFailed):
            self._on_failure(error)
        elif isinstance(error, DiskFull):
            if not self.disk_is_full:
                self.disk_is_full = True
                log.error("disk_full", partition=replica.name)
            self._let_others_lead(replica)

    def _has_room_again(self) -> None:
        self.disk_is_full = False
        log.info("disk_has_room_again")

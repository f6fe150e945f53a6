"""Keeps the ids of messages that retention deletes, for as long as the dedupe window may ask for them.

Each node does so for the segments that it deletes. Its log and these ids together hold what the log held before, so a
window that is read after a restart or by a new leader is the same. A node whose log begins anew behind a leader's has
deleted nothing itself; it gets the ids from that leader first.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
import structlog

from holdfast.backends.cluster.forwarding import Peers
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import IdsRequest, Method, encode
from holdfast.model.errors import BadPeerFrame, StorageFailed, Unavailable
from holdfast.model.ids import LogIndex, Offset, TimestampMs
from holdfast.model.messages import StoredId
from holdfast.storage.ids_file import FILE, IdsDamaged, decode_ids, encode_ids, read_ids, write_ids
from holdfast.storage.log import PartitionLog
from holdfast.storage.segment import Segment

log = structlog.get_logger("holdfast.storage")

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
# So many are given at once: about a megabyte.
_PAGE_IDS: Final = 10_000
_REPLY_S: Final = 5.0
# So many partitions are fetched at once: each may have a window full of ids, which takes some 20 MB.
_FETCHES_MAX: Final = 4
T = TypeVar("T")


class ExpiredIds:
    """Of all partitions of one node; one at a time is written, and a few are fetched."""

    def __init__(self, *, ids_max: int, age_ms_max: int) -> None:
        self._ids_max = ids_max
        self._age_ms_max = age_ms_max
        self._lock = asyncio.Lock()
        self._fetching = asyncio.Semaphore(_FETCHES_MAX)

    async def drop_below(self, replica: Replica, begin: Offset, now_ms: TimestampMs) -> int:
        """Delete segments below `begin` once their ids are kept; returns how many."""
        async with self._lock:
            partition_log = replica.log
            if partition_log.is_closed:
                return 0
            going = partition_log.droppable(min(begin, replica.end), replica.shown_index, renews=True)
            if not going:
                return 0
            since_ms = TimestampMs(now_ms - self._age_ms_max)
            young = [segment for segment in going if segment.newest_ms >= since_ms]
            ids = await self._with_those_in(partition_log, young, since_ms) if young else None
            is_kept = ids is None or await self._write(partition_log, ids)
            if partition_log.is_closed:
                return 0
            # Not more than that, although more may have become old meanwhile.
            last = LogIndex(going[-1].next_index - 1)
            deleted = _dropped(replica, going[-1].next_offset, last)
            if not is_kept and ids is not None and not await self._write(partition_log, ids):
                log.error("ids_not_kept", group=replica.name, ids=len(ids), hint="the disk is full")
            return deleted

    async def of(self, replica: Replica, start: Offset) -> list[StoredId]:
        """Those of messages from `start` on that are below the log's begin, by their offsets."""
        begin = replica.log.start_offset
        ids = await self._read(replica.log)
        return [each for each in ids if start <= each.offset < begin]

    async def page(self, replica: Replica, start: Offset) -> bytes:
        """The first of them, for another node; none at the end."""
        return encode_ids((await self.of(replica, start))[:_PAGE_IDS])

    async def fetch(self, peers: Peers, node: str, replica: Replica) -> None:
        """Take over what another node has, before the log begins anew behind its. Raises `Unavailable`."""
        async with self._fetching:
            await self._fetch(peers, node, replica)

    async def _fetch(self, peers: Peers, node: str, replica: Replica) -> None:
        found: list[StoredId] = []
        start = Offset(0)
        while True:
            request = encode(IdsRequest(replica.group, start))
            try:
                page = decode_ids(await peers.request(node, Method.IDS, request, _REPLY_S))
            except BadPeerFrame:
                return  # an older build, which keeps none
            except msgspec.MsgspecError as error:
                raise Unavailable(f"{node} did not give ids but something else: {error}") from error
            found += page
            if not page:
                break
            start = Offset(page[-1].offset + 1)
        async with self._lock:
            if found and not await self._write(replica.log, found[-self._ids_max :]):
                log.error("ids_not_kept", group=replica.name, ids=len(found), hint="the disk is full")

    async def _with_those_in(
        self, partition_log: PartitionLog, segments: Sequence[Segment], since_ms: TimestampMs
    ) -> list[StoredId] | None:
        """What is kept already and what is in these segments, oldest first; none if they have no ids."""
        # The newest one may grow while a thread reads it, by what is not committed.
        sizes = [segment.size for segment in segments]
        unreadable: list[OSError] = []

        def found(directory: int) -> list[StoredId]:
            newest_first: list[list[StoredId]] = []
            missing = self._ids_max
            for segment, size in zip(reversed(segments), reversed(sizes), strict=True):
                if missing <= 0:
                    break
                try:
                    newest_first.append(segment.ids(directory, size, since_ms, missing))
                except OSError as error:  # it is to go all the same
                    unreadable.append(error)
                else:
                    missing -= len(newest_first[-1])
            return [each for ids in reversed(newest_first) for each in ids]

        added = await self._in_thread(partition_log, found)
        if unreadable and not partition_log.is_closed:
            path = str(partition_log.directory)
            log.error("ids_not_kept", directory=path, problem=str(unreadable[0]), segments=len(unreadable))
        if not added:
            return None
        before = await self._read(partition_log)
        return [*(each for each in before if each.offset < added[0].offset), *added][-self._ids_max :]

    async def _read(self, partition_log: PartitionLog) -> list[StoredId]:
        try:
            return await self._in_thread(partition_log, read_ids)
        except IdsDamaged:
            path = str(partition_log.directory / FILE)
            log.error("ids_damaged", file=path, hint="messages that are sent again may be stored again")
            return []

    async def _write(self, partition_log: PartitionLog, ids: Sequence[StoredId]) -> bool:
        """Whether there was room for it."""
        try:
            await self._in_thread(partition_log, lambda directory: write_ids(directory, ids))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return False
        return True

    async def _in_thread(self, partition_log: PartitionLog, work: Callable[[int], T]) -> T:
        """Returns, or is cancelled, once the thread has ended: until then nothing else may use the file."""
        working = asyncio.ensure_future(asyncio.to_thread(_and_close(work), _opened(partition_log)))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([working])
            if not working.cancelled():
                working.exception()  # nobody waits for what became of it
            raise


def _dropped(replica: Replica, begin: Offset, last: LogIndex) -> int:
    """A disk on which no file can be made shall not keep more than the newest segment."""
    try:
        return replica.log.drop_below(begin, through_index=last, renews=True)
    except StorageFailed as error:
        log.error("log_not_renewed", group=replica.name, problem=error.message, hint="its newest file stays")
        return replica.log.drop_below(begin, through_index=last)


def _opened(partition_log: PartitionLog) -> int:
    """The directory itself, not its name, which may be another topic's in a moment."""
    partition_log.check_open()
    return os.open(partition_log.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _and_close(work: Callable[[int], T]) -> Callable[[int], T]:
    """Only the thread knows when it needs a descriptor no more; another file may have the same number right after."""

    def run(directory: int) -> T:
        try:
            return work(directory)
        finally:
            os.close(directory)

    return run

"""Looking after what is stored: deleting what is too old or too much, and finding damage before a reader does.

Every node does this for its own replicas. Only what is committed is deleted, so a follower that is further
behind than that begins anew where the leader's log begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.topic_files import report_damage
from holdfast.backends.cluster.topics import Topics
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName
from holdfast.model.names import DONE_CURSOR, is_internal
from holdfast.model.topics import TopicConfig
from holdfast.model.waiting import NOBODY, RetentionWait
from holdfast.storage.syncer import Syncable, Syncer

log = structlog.get_logger("holdfast.storage")


def expire(
    topics: Topics,
    syncer: Syncer[Syncable],
    now_ms: TimestampMs,
    cursor: Callable[[TopicName, CursorName], Mapping[int, Offset] | None],
    wait: RetentionWait = NOBODY,
) -> int:
    """Delete what retention no longer keeps; returns the number of segments."""
    deleted = 0
    for partition, replica in topics.replicas.items():
        if is_internal(partition.topic):
            deleted += _drop_done(
                replica, (cursor(partition.topic, DONE_CURSOR) or {}).get(partition.number, Offset(0))
            )
            continue
        topic = topics.known.get(partition.topic)
        config = topic.config if topic is not None else TopicConfig()  # it is being deleted
        if config.retention_ms is None and config.retention_bytes is None:
            continue
        older_than = None if config.retention_ms is None else TimestampMs(now_ms - config.retention_ms)
        kept = wait.kept(partition, config, cursor, now_ms)
        expired = replica.log.expire(
            older_than_ms=older_than,
            bytes_max=config.retention_bytes,
            up_to=replica.end,
            through_index=replica.shown_index,
            kept=kept,
        )
        deleted += expired
        if expired and kept is not None and replica.log.start_offset > kept.from_offset:
            # Nobody is to find out by a gap in an archive that its reader was away for too long.
            log.warning(
                "retention_overtook_reader",
                partition=str(partition),
                reader_at=kept.from_offset,
                starts_at=replica.log.start_offset,
            )
        replica.compact_to_log()
        if replica.log.has_unsynced_segments:
            syncer.request(replica.log)
    return deleted


def _drop_done(replica: Replica, done: Offset) -> int:
    """Delete what the broker itself needs no more of an internal topic."""
    up_to = min(done, replica.end)
    deleted = replica.log.expire(older_than_ms=None, bytes_max=0, up_to=up_to, through_index=replica.shown_index)
    replica.compact_to_log()
    return deleted


async def verify(topics: Topics) -> list[Replica]:
    """Check every sealed segment once; returns the replicas that are damaged and have others to ask."""
    damaged: dict[Replica, None] = {}
    for partition, replica in list(topics.replicas.items()):
        for segment in replica.log.segments[:-1]:
            try:
                scan = await asyncio.to_thread(segment.verify, sealed=True)
            except FileNotFoundError:  # retention or a deletion was faster
                continue
            except OSError as error:
                log.error("segment_unreadable", partition=str(partition), problem=str(error))
                continue
            for hole in scan.holes:
                if hole not in segment.holes and segment in replica.log.segments:
                    segment.holes.append(hole)
                    report_damage(partition.topic, partition.number, segment.path.name, hole)
                    if not replica.is_alone:
                        damaged[replica] = None
    return list(damaged)

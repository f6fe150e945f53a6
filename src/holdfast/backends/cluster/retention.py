"""Looking after what is stored: deleting what is too old or too much, and finding damage before a reader does.

The leader of a partition decides what expires, by a clock that a majority shares (`clocks.py`), and tells the others
where its log begins now. They delete what is below that and go by no clock: a node whose clock is wrong keeps what the
others keep. Only what is committed is deleted, so a follower that is further behind than that begins anew where the
leader's log begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from holdfast.backends.cluster.clocks import Clocks, agreed_ms
from holdfast.backends.cluster.expired_ids import ExpiredIds
from holdfast.backends.cluster.forwarding import Peers
from holdfast.backends.cluster.groups import Groups
from holdfast.backends.cluster.replica import Replica
from holdfast.backends.cluster.requests import Expired, ExpireRequest, Method, encode
from holdfast.backends.cluster.topic_files import report_damage
from holdfast.backends.cluster.topics import Topics
from holdfast.consensus.replica_names import node_of
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import CursorName, GroupId, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.names import DONE_CURSOR, is_internal
from holdfast.model.topics import TopicConfig
from holdfast.model.waiting import NOBODY, Kept, RetentionWait

log = structlog.get_logger("holdfast.storage")

_TELL_S: Final = 5.0


class Retention:
    """Deletes what is too old or too much: at the leader of each partition first, then wherever else it is."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        peers: Peers,
        clocks: Clocks,
        ids: ExpiredIds,
        cursor: Callable[[TopicName, CursorName], Mapping[int, Offset] | None],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._peers = peers
        self._clocks = clocks
        self._ids = ids
        self._cursor = cursor
        # By group, the newest that a leader has said; another request may come while one is carried out.
        self._to_take_over: dict[GroupId, Expired] = {}
        self._takes_over = False
        self.deleted_segments = 0

    async def expire(self, wait: RetentionWait = NOBODY) -> int:
        """Delete what retention no longer keeps where this node leads; returns the number of segments."""
        before = self.deleted_segments
        self._drop_done()
        clocks = await self._clocks.read({voter for _, replica, _ in self._led() for voter in voters_of(replica)})
        expired: dict[str, list[Expired]] = {}
        for partition, replica, config in self._led():
            now_ms = agreed_ms(clocks, voters_of(replica))
            if now_ms is None:
                continue  # its leader, if this still is, is cut off
            kept = wait.kept(partition, config, self._cursor, now_ms)
            await self._expire(partition, replica, config, now_ms, kept)
            begin = replica.log.start_offset
            if begin > 0:
                for node in {node_of(member) for member in replica.raft.members.everybody} - {replica.node}:
                    expired.setdefault(node, []).append(Expired(replica.group, replica.raft.term, begin, now_ms))
        await asyncio.gather(*(self._tell(node, each) for node, each in expired.items() if self._peers.is_up(node)))
        return self.deleted_segments - before

    def _drop_done(self) -> None:
        """Delete what the broker itself needs no more of internal topics; they have no dedupe window."""
        for partition, replica in self._topics.replicas.items():
            if is_internal(partition.topic):
                done = (self._cursor(partition.topic, DONE_CURSOR) or {}).get(partition.number, Offset(0))
                deleted = replica.log.drop_below(min(done, replica.end), through_index=replica.shown_index)
                self._dropped(replica, deleted)

    def _led(self) -> Iterator[tuple[PartitionId, Replica, TopicConfig]]:
        """What this node leads and does not keep for ever."""
        for partition, replica in list(self._topics.replicas.items()):
            topic = self._topics.known.get(partition.topic)  # none while it is being deleted
            if topic is None or is_internal(partition.topic) or not replica.leads:
                continue
            if topic.config.retention_ms is not None or topic.config.retention_bytes is not None:
                yield partition, replica, topic.config

    async def _expire(
        self, partition: PartitionId, replica: Replica, config: TopicConfig, now_ms: TimestampMs, kept: Kept | None
    ) -> None:
        older_than = None if config.retention_ms is None else TimestampMs(now_ms - config.retention_ms)
        begin = replica.log.expirable(older_than_ms=older_than, bytes_max=config.retention_bytes, kept=kept)
        deleted = await self._drop(replica, begin, now_ms)
        if deleted and kept is not None and replica.log.start_offset > kept.from_offset:
            # Nobody is to find out by a gap in an archive that its reader was away for too long.
            log.warning(
                "retention_overtook_reader",
                partition=str(partition),
                reader_at=kept.from_offset,
                starts_at=replica.log.start_offset,
            )

    async def _drop(self, replica: Replica, begin: Offset, now_ms: TimestampMs) -> int:
        try:
            deleted = await self._ids.drop_below(replica, begin, now_ms)
        except (HoldfastError, OSError):
            if replica.log.is_closed:
                return 0  # its topic was deleted meanwhile
            raise
        if not replica.log.is_closed:
            self._dropped(replica, deleted)
        return deleted

    def _dropped(self, replica: Replica, deleted: int) -> None:
        self.deleted_segments += deleted
        replica.compact_to_log()
        if replica.log.has_unsynced_segments:
            self._groups.syncer.request(replica.log)

    async def _tell(self, node: str, expired: list[Expired]) -> None:
        try:
            await self._peers.request(node, Method.EXPIRE, encode(ExpireRequest(expired)), _TELL_S)
        except HoldfastError as error:  # it is told again in the next round; an older build looks after itself
            log.debug("retention_not_told", node=node, problem=error.message)

    async def take_over(self, expired: Sequence[Expired]) -> None:
        """Delete what leaders have deleted, as far as it is shown here."""
        for each in expired:
            group = GroupId(each.group)
            known = self._to_take_over.get(group)
            is_newer = known is None or (known.term, known.begin) < (each.term, each.begin)
            if is_newer and group in self._groups.replicas:
                self._to_take_over[group] = each
        if self._takes_over:
            return  # the request that is carried out now does these, too
        self._takes_over = True
        try:
            while self._to_take_over:
                await self._take_over(self._to_take_over.pop(next(iter(self._to_take_over))))
        finally:
            self._takes_over = False

    async def _take_over(self, expired: Expired) -> None:
        replica = self._groups.replicas.get(GroupId(expired.group))
        # Another node may have been elected since.
        if replica is not None and replica.raft.term <= expired.term and replica.raft.leading is None:
            await self._drop(replica, Offset(expired.begin), TimestampMs(expired.now_ms))


def voters_of(replica: Replica) -> set[str]:
    """The nodes whose majority decides in a group."""
    return {node_of(voter) for voter in replica.raft.members.voters}


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
                if hole not in segment.holes and segment in replica.log.segments and not segment.is_closed:
                    segment.holes.append(hole)
                    report_damage(partition.topic, partition.number, segment.path.name, hole)
                    if not replica.is_alone:
                        damaged[replica] = None
    return list(damaged)

"""What a backup holds is decided at its beginning: which topics, up to which offsets, with which cursors.

The order makes it one picture. Cursors are read before the ends, so none points behind them. Ends are asked of leaders,
so nothing is missing that was acknowledged before. Transactions are looked at before and behind the ends: if none was
under way at either time and no writer has moved, every transaction is in the picture as a whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.backup.format import CursorBackup, Manifest, PartitionBackup, TopicBackup, WriterBackup
from holdfast.client.api import Api
from holdfast.client.transactions import Writers, ask_writers
from holdfast.model.errors import BackupUnusable, NotSupported, RemoteError, TopicNotFound
from holdfast.model.names import CALLBACK_PREFIX
from holdfast.model.topics import CursorDescription, TopicDescription

# Questions that are under way at once.
_ASKED_MAX: Final = 8
# So long a moment without transactions is looked for.
_QUIET_S: Final = 15.0
_PAUSE_S: Final = 0.05


async def plan(api: Api, chosen: Sequence[str] | None, before: Manifest | None, now_ms: Callable[[], int]) -> Manifest:
    """A picture of the cluster; `before` is the backup that is brought up to date."""
    described = await api.cluster()
    if described.store is not None:
        raise NotSupported(
            f"these brokers keep messages in a database ({described.store}): back that up, for example with pg_dump"
        )
    if before is not None and before.cluster != described.cluster:
        raise BackupUnusable(
            f"this is a backup of the cluster {before.cluster}, and {described.asked} belongs to {described.cluster}; "
            "name another directory"
        )
    begun_ms = now_ms()
    version = (await api.info()).version
    deadline_s = asyncio.get_running_loop().time() + _QUIET_S
    while True:
        # Whoever answers the first question knows all that was decided, and lists topics and cursors; not another one.
        asked = (await api.info()).node
        earlier = await ask_writers(api)
        cursors, listed = await api.cursors(None), await _chosen(api, chosen)
        is_one_view = (await api.info()).node == asked
        topics = [await _topic(api, each) for each in listed]
        is_quiet = _is_quiet(earlier, await ask_writers(api))
        if is_one_view and (is_quiet or asyncio.get_running_loop().time() > deadline_s):
            break
        await asyncio.sleep(_PAUSE_S)
    topics = [each for each in topics if each is not None]
    return Manifest(
        cluster=described.cluster,
        version=version,
        begun_ms=begun_ms,
        chosen=None if chosen is None else sorted(chosen),
        is_between_transactions=is_quiet,
        topics=[_taken_over(topic, before) for topic in topics if topic is not None],
        cursors=clipped(cursors, [topic for topic in topics if topic is not None]),
        writers=[
            WriterBackup(writer=each.writer, last_number=each.last_number, committed_ms=each.committed_ms or 0)
            for each in earlier.writers
            if each.last_number is not None
        ],
    )


def _is_quiet(earlier: Writers, later: Writers) -> bool:
    return earlier.under_way == 0 and later.under_way == 0 and earlier.writers == later.writers


async def _chosen(api: Api, chosen: Sequence[str] | None) -> list[TopicDescription]:
    found = await api.topics()
    if chosen is None:
        return found
    by_name = {each.topic: each for each in found}
    missing = sorted(set(chosen) - set(by_name))
    if missing:
        raise TopicNotFound(f"there is no topic {', '.join(missing)}; `holdfast topics list` shows those that are")
    return [each for name, each in sorted(by_name.items()) if name in chosen]


async def _topic(api: Api, topic: TopicDescription) -> TopicBackup | None:
    """Its ends as they are confirmed now; nothing for one that was deleted meanwhile."""
    slots = asyncio.Semaphore(_ASKED_MAX)

    async def partition(number: int) -> PartitionBackup:
        async with slots:
            end = await api.offset_at(topic.topic, number, "latest")
            first = await api.offset_at(topic.topic, number, "earliest")
        return PartitionBackup(partition=number, first=min(first, end), end=end)

    try:
        partitions = await asyncio.gather(*(partition(each.partition) for each in topic.partitions))
    except RemoteError as error:
        if error.code != TopicNotFound.code:
            raise
        return None
    return TopicBackup(
        topic=topic.topic,
        created_ms=topic.created_ms,
        retention_ms=topic.retention_ms,
        retention_bytes=topic.retention_bytes,
        partitions=partitions,
    )


def clipped(cursors: Sequence[CursorDescription], topics: Sequence[TopicBackup]) -> list[CursorBackup]:
    """Cursors of these topics, none of them behind what the backup holds. A callback's would stand for nobody."""
    ends = {(topic.topic, each.partition): each.end for topic in topics for each in topic.partitions}
    known = {topic.topic for topic in topics}
    return [
        CursorBackup(
            topic=cursor.topic,
            name=cursor.name,
            offsets={
                each.partition: min(each.offset, ends.get((cursor.topic, each.partition), 0))
                for each in cursor.partitions
            },
        )
        for cursor in cursors
        if cursor.topic in known and not cursor.name.startswith(CALLBACK_PREFIX)
    ]


def _taken_over(topic: TopicBackup, before: Manifest | None) -> TopicBackup:
    """The files that an update need not fetch again."""
    known = {each.topic: each for each in before.topics} if before is not None else {}
    old = known.get(topic.topic)
    if old is None or old.created_ms != topic.created_ms:
        return topic
    have = {each.partition: each for each in old.partitions}
    for each in topic.partitions:
        if each.partition in have and have[each.partition].end > each.end:
            raise BackupUnusable(
                f"{topic.topic}/{each.partition} ends at offset {each.end}, and in the backup at "
                f"{have[each.partition].end}: the cluster has lost messages that the backup has; keep it, and name "
                "another directory"
            )
    return msgspec.structs.replace(
        topic, partitions=[_joined(each, have.get(each.partition)) for each in topic.partitions]
    )


def _joined(partition: PartitionBackup, old: PartitionBackup | None) -> PartitionBackup:
    """The old files and what comes behind them; but not where retention has deleted something in between."""
    if old is None or not old.files or old.end < partition.first:
        return partition
    return msgspec.structs.replace(partition, first=old.first, files=old.files)

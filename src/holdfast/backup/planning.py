"""What a backup holds is decided at its beginning: which topics, up to which offsets, with which cursors.

The order makes it one picture. Cursors are read before the ends, so none points behind them. Ends are asked of leaders,
so nothing is missing that was acknowledged before. Transactions are looked at before and behind the ends: if none was
under way at either time and no writer has moved, every transaction is in the picture as a whole or not at all.

Where writers leave no such moment, their numbers are those of before the ends. A transaction may be in the picture in
part then, or as a whole without its number, and its writer commits it again after a restore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from holdfast.backup import keeping
from holdfast.backup.format import (
    CursorBackup,
    Manifest,
    PartitionBackup,
    SubscriptionBackup,
    TopicBackup,
    WriterBackup,
)
from holdfast.client.api import Api
from holdfast.client.callbacks import list_subscriptions
from holdfast.client.connection import Request
from holdfast.client.transactions import Writers, ask_writers
from holdfast.model.callbacks import CallbackDescription
from holdfast.model.errors import BackupUnusable, NotFound, NotSupported, RemoteError, TopicNotFound
from holdfast.model.names import callback_at
from holdfast.model.topics import CursorDescription, TopicDescription

# Questions that are under way at once.
_ASKED_MAX: Final = 8
# So long a moment without transactions is looked for.
_QUIET_S: Final = 15.0
_PAUSE_S: Final = 0.05


class _Queues(msgspec.Struct, frozen=True):
    next_number: int


async def plan(
    api: Api,
    chosen: Sequence[str] | None,
    before: Manifest | None,
    now_ms: Callable[[], int],
    *,
    must_be_there: Collection[str],
    is_pruning: bool,
) -> Manifest:
    """A picture of the cluster; `before` is the backup that is brought up to date. Raises `TopicNotFound`."""
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
        subscriptions, next_queue_number = await _subscriptions(api), await _next_queue_number(api)
        earlier = await ask_writers(api)
        cursors, listed = await api.cursors(None), await _chosen(api, chosen, must_be_there)
        is_one_view = (await api.info()).node == asked
        found = [await _topic(api, each) for each in listed]
        is_quiet = _is_quiet(earlier, await ask_writers(api))
        if is_one_view and (is_quiet or asyncio.get_running_loop().time() > deadline_s):
            break
        await asyncio.sleep(_PAUSE_S)
    topics = [each for each in found if each is not None]
    names = {each.topic for each in topics}
    gone = {each.topic for each in listed} - names
    named = set(must_be_there) & gone
    if named:
        raise _no_topic(named)
    planned = Manifest(
        cluster=described.cluster,
        version=version,
        revision=1 if before is None else before.revision + 1,
        begun_ms=begun_ms,
        chosen=None if chosen is None else sorted(chosen),
        is_between_transactions=is_quiet,
        is_pruning=is_pruning,
        left_out=sorted(gone),
        topics=[_taken_over(topic, before) for topic in topics],
        cursors=clipped(cursors, topics, subscriptions),
        subscriptions=[
            SubscriptionBackup(
                topic=each.topic,
                name=each.name,
                callback=each.callback,
                format=each.format,
                created_ms=each.created_ms,
            )
            for each in subscriptions
            if each.topic in names
        ],
        writers=[
            WriterBackup(
                writer=each.writer,
                last_number=each.last_number,
                committed_ms=each.committed_ms or 0,
                contents=each.contents,
            )
            for each in earlier.writers
            if each.last_number is not None
        ],
        next_queue_number=next_queue_number,
    )
    return keeping.paired(planned)


def _is_quiet(earlier: Writers, later: Writers) -> bool:
    return earlier.under_way == 0 and later.under_way == 0 and earlier.writers == later.writers


async def _subscriptions(api: Api) -> list[CallbackDescription]:
    try:
        return await list_subscriptions(api, None)
    except RemoteError as error:
        if error.code not in (NotSupported.code, NotFound.code):
            raise
        return []  # this broker keeps none, or is of before there were any


async def _next_queue_number(api: Api) -> int:
    try:
        return (await api.ask(Request("GET", "/v1/queues"), _Queues)).next_number
    except RemoteError as error:
        if error.code != NotFound.code:
            raise
        return 1  # it is of before it told; numbers go on behind those of the queues that are there


async def _chosen(api: Api, chosen: Sequence[str] | None, must_be_there: Collection[str]) -> list[TopicDescription]:
    found = await api.topics()
    if chosen is None:
        return found
    by_name = {each.topic: each for each in found}
    missing = set(must_be_there) - set(by_name)
    if missing:
        raise _no_topic(missing)
    return [each for name, each in sorted(by_name.items()) if name in chosen]


def _no_topic(missing: set[str]) -> TopicNotFound:
    return TopicNotFound(
        f"there is no topic {', '.join(sorted(missing))}; `holdfast topics list` shows those that are. An update "
        "without --topic keeps what it has of a topic that is gone"
    )


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


def clipped(
    cursors: Sequence[CursorDescription],
    topics: Sequence[TopicBackup],
    subscriptions: Sequence[CallbackDescription] = (),
) -> list[CursorBackup]:
    """Cursors of these topics, none of them behind what the backup holds; a callback's only with its subscription."""
    ends = {(topic.topic, each.partition): each.end for topic in topics for each in topic.partitions}
    known = {topic.topic for topic in topics}
    delivered = {None, *((each.topic, each.name) for each in subscriptions if each.topic in known)}
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
        if cursor.topic in known and callback_at(cursor.topic, cursor.name) in delivered
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
    """The old files and what comes behind them; where retention has deleted something in between, it begins anew."""
    if old is None or not old.files or old.end < partition.first:
        return partition
    return msgspec.structs.replace(partition, first=old.first, files=old.files)

"""What an update keeps of the backup that was there: every message of it, unless it is told to prune.

A backup is for what people do, too, and so it must not follow the cluster in everything. A topic that is gone there
stays as it was fetched last, with its cursors, and is restored. What has no place beside that which the cluster has now
is set aside: it is verified with the rest, and restored on demand only, under another name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.backup.format import (
    CursorBackup,
    Manifest,
    PartitionBackup,
    SubscriptionBackup,
    TopicBackup,
    callback_places,
)

Reader = TypeVar("Reader", CursorBackup, SubscriptionBackup)


def _of_topics(readers: Iterable[Reader], topics: Iterable[TopicBackup]) -> list[Reader]:
    names = {topic.topic for topic in topics}
    return [each for each in readers if each.topic in names]


def completed(
    planned: Manifest, fetched: Sequence[TopicBackup | None], before: Manifest | None, now_ms: int
) -> Manifest:
    """The manifest of what was planned; `None` stands for a topic that was deleted while it was fetched."""
    there = [topic for topic in fetched if topic is not None]
    kept = _kept(before, {topic.topic for topic in there}, now_ms) if before and not planned.is_pruning else []
    topics = sorted([*there, *kept], key=lambda topic: topic.topic)
    missed = {*planned.left_out, *(topic.topic for topic in (*planned.topics, *(before.topics if before else ())))}
    made = msgspec.structs.replace(
        planned,
        topics=topics,
        left_out=sorted(missed - {topic.topic for topic in topics}),
        cursors=_of_topics(planned.cursors, there),
        subscriptions=_of_topics(planned.subscriptions, there),
    )
    if before is None or planned.is_pruning:
        return paired(made)
    updated = msgspec.structs.replace(
        made,
        aside=[*before.aside, *_unjoined(before, topics)],
        cursors=made.cursors + _of_topics(before.cursors, kept),
        subscriptions=made.subscriptions + _of_topics(before.subscriptions, kept),
        next_queue_number=max(made.next_queue_number, before.next_queue_number),
    )
    return paired(updated)


def paired(manifest: Manifest) -> Manifest:
    """No subscription without its cursor, which may be in a topic that was not chosen; and no such cursor alone."""
    places = callback_places(manifest.cursors)
    whole = places & {(each.topic, each.name) for each in manifest.subscriptions}
    return msgspec.structs.replace(
        manifest,
        cursors=[each for each in manifest.cursors if callback_places([each]) <= whole],
        subscriptions=[each for each in manifest.subscriptions if (each.topic, each.name) in whole],
    )


def _kept(before: Manifest, known: Collection[str], now_ms: int) -> list[TopicBackup]:
    """Topics of the backup that is updated and that are not among those that the cluster has."""
    gone = (topic for topic in before.topics if topic.topic not in known)
    return [each if each.gone_ms is not None else msgspec.structs.replace(each, gone_ms=now_ms) for each in gone]


def _unjoined(before: Manifest, topics: Iterable[TopicBackup]) -> list[TopicBackup]:
    """By topic, the partitions of a backup whose files the next one does not have; the others are empty."""
    named = {file.file for topic in topics for each in topic.partitions for file in each.files}
    found = []
    for topic in before.topics:
        partitions = [
            each if any(file.file not in named for file in each.files) else _empty(each) for each in topic.partitions
        ]
        if any(each.files for each in partitions):
            found.append(msgspec.structs.replace(topic, partitions=partitions))
    return found


def _empty(partition: PartitionBackup) -> PartitionBackup:
    return PartitionBackup(partition=partition.partition, first=0, end=0)

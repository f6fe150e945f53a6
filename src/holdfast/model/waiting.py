"""Readers that retention waits for: what their cursors have not passed is kept, though not for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from holdfast.model.ids import CursorName, Offset, PartitionId, TimestampMs, TopicName
from holdfast.model.limits import RETENTION_WAITS_MS
from holdfast.model.topics import TopicConfig


class Kept(NamedTuple):
    """What is kept of a partition for a reader: messages from its place on that are not older than that."""

    from_offset: Offset
    since_ms: TimestampMs


class RetentionWait(NamedTuple):
    """Cursors by their names, in each topic that has one; a message is kept for them `wait_ms` beyond its time."""

    cursors: tuple[CursorName, ...] = ()
    wait_ms: int = RETENTION_WAITS_MS

    def kept(
        self,
        partition: PartitionId,
        config: TopicConfig,
        cursor: Callable[[TopicName, CursorName], Mapping[int, Offset] | None],
        now_ms: TimestampMs,
    ) -> Kept | None:
        """What the slowest of the readers needs; None where the topic has no such reader.

        A cursor that was never placed in a partition stands at its start. A reader that never comes back must not fill
        the disk, so what is too old is kept for nobody.
        """
        found = [places for name in self.cursors if (places := cursor(partition.topic, name)) is not None]
        if not found:
            return None
        slowest = min(places.get(partition.number, Offset(0)) for places in found)
        return Kept(slowest, TimestampMs(now_ms - (config.retention_ms or 0) - self.wait_ms))


NOBODY: Final = RetentionWait()

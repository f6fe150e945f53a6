"""Names for the numbers and strings that identify things, so that they cannot be mixed up.

An `Offset` counts messages within a partition and is what readers see. A `LogIndex` counts entries
(batches) in the same log and is what replication sees. A `Term` numbers the reign of one leader. A `GroupId` names
the nodes' agreement on one log: that of a partition, or the control log.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
LogIndex = NewType("LogIndex", int)
Term = NewType("Term", int)
GroupId = NewType("GroupId", int)
TopicName = NewType("TopicName", str)
CursorName = NewType("CursorName", str)
MessageId = NewType("MessageId", str)
WriterName = NewType("WriterName", str)
TimestampMs = NewType("TimestampMs", int)

# Of a message that waits in the spill: it gets its place when its partition can be reached again.
NO_OFFSET: Final = Offset(-1)


class PartitionId(NamedTuple):
    """One totally ordered log: a topic and a number from zero."""

    topic: TopicName
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

"""What the consensus knows of a log on the disk: which of its entries are of which term."""

from __future__ import annotations

from holdfast.consensus.log_shape import LogShape
from holdfast.model.ids import LogIndex
from holdfast.storage.log import PartitionLog


def shape_of(log: PartitionLog) -> LogShape:
    return LogShape.of_runs(LogIndex(log.first_index - 1), log.previous_term, log.term_runs(), log.last_index)

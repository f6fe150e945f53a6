"""A disk that forgets what was not synced: a hard state and a log, each once as written and once as durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.messages import HardState
from holdfast.model.entries import Entry
from holdfast.model.ids import LogIndex, Term

_NOTHING = LogIndex(0)
_NO_TERM = Term(0)


@dataclass
class Log:
    """Entries behind `base_index`."""

    base_index: LogIndex = _NOTHING
    base_term: Term = _NO_TERM
    entries: list[Entry] = field(default_factory=list)

    @property
    def last_index(self) -> LogIndex:
        return LogIndex(self.base_index + len(self.entries))

    def copy(self) -> Log:
        return Log(self.base_index, self.base_term, list(self.entries))

    def at(self, index: int) -> Entry:
        assert self.base_index < index <= self.last_index
        return self.entries[index - self.base_index - 1]

    def between(self, first_index: int, count: int) -> list[Entry]:
        start = first_index - self.base_index - 1
        assert start >= 0
        return self.entries[start : start + count]

    def truncate_from(self, index: LogIndex) -> None:
        assert self.base_index < index <= self.last_index
        del self.entries[index - self.base_index - 1 :]

    def compact_to(self, index: LogIndex) -> None:
        self.base_term = self.at(index).term
        del self.entries[: index - self.base_index]
        self.base_index = index

    def shape(self) -> LogShape:
        runs: list[tuple[LogIndex, Term]] = []
        for place, entry in enumerate(self.entries):
            if not runs or runs[-1][1] != entry.term:
                runs.append((LogIndex(self.base_index + 1 + place), entry.term))
        return LogShape.of_runs(self.base_index, self.base_term, runs, self.last_index)


class Disk:
    """What was written is there to be read; what was synced is there after a crash."""

    def __init__(self, hard_state: HardState, log: Log | None = None) -> None:
        self.hard_state = self._durable_hard_state = hard_state
        self.log = log or Log()
        self._durable_log = self.log.copy()

    def save(self, hard_state: HardState) -> None:
        self.hard_state = hard_state

    def append(self, entries: Sequence[Entry]) -> None:
        self.log.entries += entries

    def begin_anew(self, base_index: LogIndex, base_term: Term) -> None:
        self.log = Log(base_index, base_term)
        self.sync_log()

    def compact_to(self, index: LogIndex) -> None:
        """Only committed and durable entries are dropped, so it does not matter when this is synced."""
        self.log.compact_to(index)
        self._durable_log.compact_to(index)

    def sync_hard_state(self) -> None:
        self._durable_hard_state = self.hard_state

    def sync_log(self) -> None:
        self._durable_log = self.log.copy()

    @property
    def durable_index(self) -> LogIndex:
        return self._durable_log.last_index

    def crash(self) -> None:
        self.hard_state = self._durable_hard_state
        self.log = self._durable_log.copy()

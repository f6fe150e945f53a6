"""What survives a crash: a log and a hard state, each with a part that is synced and a part that is only written.

A crash keeps what was synced and any beginning of what was written behind it, in order; a torn entry at the end is
cut by recovery, which is the same as losing it. A sync covers what was written when it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random
from typing import Any

from holdfast.consensus.log_shape import LogShape
from holdfast.consensus.messages import HardState
from holdfast.model.entries import Entry
from holdfast.model.ids import LogIndex, Term


class LogImage:
    """A log as it stands: `entries` follow `base_index`, and `base_state` is what all before them amount to."""

    __slots__ = ("base_index", "base_state", "base_term", "entries")

    def __init__(self, base_index: LogIndex, base_term: Term, base_state: bytes, entries: list[Entry]) -> None:
        self.base_index, self.base_term, self.base_state = base_index, base_term, base_state
        self.entries = entries

    @property
    def last_index(self) -> LogIndex:
        return LogIndex(self.base_index + len(self.entries))

    def at(self, index: int) -> Entry:
        return self.entries[index - self.base_index - 1]

    def has(self, index: int, entry: Entry) -> bool:
        """Whether that entry is there, or was and has been dropped since."""
        return index <= self.base_index or (index <= self.last_index and self.at(index) == entry)

    def apply(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case ("add", entry):
                self.entries.append(entry)
            case ("cut", index):
                del self.entries[index - self.base_index - 1 :]
            case ("drop", index, term, state):
                del self.entries[: index - self.base_index]
                self.base_index, self.base_term, self.base_state = index, term, state

    def copy(self) -> LogImage:
        return LogImage(self.base_index, self.base_term, self.base_state, list(self.entries))


class Store:
    """One group's log and hard state on one disk."""

    def __init__(self, hard_state: HardState, base_state: bytes) -> None:
        self.log = LogImage(LogIndex(-1), Term(0), base_state, [])
        self.synced = self.log.copy()
        self.hard_state = self.synced_hard_state = hard_state
        # What was written since, in order; `_applied` counts what went to the synced part before.
        self._journal: list[tuple[Any, ...]] = []
        self._applied = 0
        self._hard_states: list[tuple[int, HardState]] = []

    def shape(self) -> LogShape:
        """What Raft wants to know of the log at start."""
        log = self.log
        runs: list[tuple[LogIndex, Term]] = []
        for place, entry in enumerate(log.entries):
            if not runs or runs[-1][1] != entry.term:
                runs.append((LogIndex(log.base_index + 1 + place), entry.term))
        return LogShape.of_runs(log.base_index, log.base_term, runs, log.last_index)

    # --- the log ------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._write(("add", entry))

    def cut(self, index: LogIndex) -> None:
        self._write(("cut", index))

    def drop_to(self, index: LogIndex, state: bytes) -> None:
        self._write(("drop", index, self.log.at(index).term, state))

    def _write(self, operation: tuple[Any, ...]) -> None:
        self.log.apply(operation)
        self._journal.append(operation)

    def install(self, base_index: LogIndex, base_term: Term, base_state: bytes) -> None:
        """Begin anew; durable when this returns."""
        self.log = LogImage(base_index, base_term, base_state, [])
        self.synced = self.log.copy()
        self._applied += len(self._journal)
        self._journal.clear()

    @property
    def written(self) -> int:
        """How much was ever written; a sync that begins now will cover that."""
        return self._applied + len(self._journal)

    @property
    def is_dirty(self) -> bool:
        return bool(self._journal)

    def is_synced(self, index: LogIndex) -> bool:
        """Whether the entry that is written there is the one that would be there behind a crash."""
        if index <= self.log.base_index:
            return True
        return index <= self.log.last_index and self.synced.has(index, self.log.at(index))

    def log_synced(self, written: int) -> None:
        count = max(0, written - self._applied)
        for operation in islice(self._journal, count):
            self.synced.apply(operation)
        del self._journal[:count]
        self._applied += count

    # --- the hard state -------------------------------------------------------------------------------

    def write_hard_state(self, number: int, hard_state: HardState) -> None:
        self.hard_state = hard_state
        self._hard_states.append((number, hard_state))

    @property
    def has_unsynced_hard_state(self) -> bool:
        return bool(self._hard_states)

    @property
    def hard_state_number(self) -> int:
        return self._hard_states[-1][0]

    def hard_state_synced(self, number: int) -> None:
        while self._hard_states and self._hard_states[0][0] <= number:
            self.synced_hard_state = self._hard_states.pop(0)[1]

    def save_hard_state_now(self, hard_state: HardState) -> None:
        self.hard_state = self.synced_hard_state = hard_state
        self._hard_states.clear()

    # --- crashing ---------------------------------------------------------------------------------------

    def crash(self, dice: Random) -> int:
        """Lose some of what was not synced; how many writes that were."""
        kept = dice.randint(0, len(self._journal))
        lost = len(self._journal) - kept
        self.log_synced(self._applied + kept)
        self._applied += lost
        self._journal.clear()
        self.log = self.synced.copy()
        if self._hard_states:
            kept = dice.randint(0, len(self._hard_states))
            lost += len(self._hard_states) - kept
            if kept:
                self.synced_hard_state = self._hard_states[kept - 1][1]
            self._hard_states.clear()
        self.hard_state = self.synced_hard_state
        return lost

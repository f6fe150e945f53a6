"""What Raft needs to know of a log: where it begins and ends, and the term of every entry, but no bytes.

Terms only grow along a log, so they are kept as runs: a log of a billion entries and three leaders is three
numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from holdfast.model.ids import LogIndex, Term


class LogShape:
    """`base` is the last entry that is not there any more, or the nothing before the first one."""

    def __init__(self, base_index: LogIndex, base_term: Term, last_index: LogIndex) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.last_index = last_index
        self._starts: list[LogIndex] = []
        self._terms: list[Term] = []

    @classmethod
    def of_runs(
        cls, base_index: LogIndex, base_term: Term, runs: Iterable[tuple[LogIndex, Term]], last_index: LogIndex
    ) -> LogShape:
        """From the first index of each run of entries with equal terms.

        Entries before the first run are damaged on disk; their terms are unknown, and `base_term` stands for them.
        """
        shape = cls(base_index, base_term, last_index)
        runs = list(runs)
        if base_index < last_index and (not runs or runs[0][0] > base_index + 1):
            runs.insert(0, (LogIndex(base_index + 1), base_term))
        for start, term in runs:
            shape._starts.append(start)
            shape._terms.append(term)
        return shape

    @property
    def first_index(self) -> LogIndex:
        return LogIndex(self.base_index + 1)

    @property
    def last_term(self) -> Term:
        return self._terms[-1] if self._terms else self.base_term

    def term_at(self, index: LogIndex) -> Term | None:
        """`None` for entries that are gone or not there yet."""
        if index == self.base_index:
            return self.base_term
        if not self.base_index < index <= self.last_index:
            return None
        return self._terms[bisect_right(self._starts, index) - 1]

    def append(self, term: Term, count: int = 1) -> None:
        if not self._terms or self._terms[-1] != term:
            assert term >= self.last_term, "terms never fall along a log"
            self._starts.append(LogIndex(self.last_index + 1))
            self._terms.append(term)
        self.last_index = LogIndex(self.last_index + count)

    def truncate_from(self, index: LogIndex) -> None:
        """Forget the entry at `index` and all behind it."""
        assert index > self.base_index
        self.last_index = LogIndex(index - 1)
        while self._starts and self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()

    def compact_to(self, base_index: LogIndex) -> None:
        """Forget entries up to and including `base_index`."""
        term = self.term_at(base_index)
        assert term is not None
        while len(self._starts) > 1 and self._starts[1] <= base_index + 1:
            del self._starts[0], self._terms[0]
        self.base_index, self.base_term = base_index, term
        if base_index == self.last_index:
            self._starts.clear()
            self._terms.clear()
        elif self._starts:
            self._starts[0] = max(self._starts[0], LogIndex(base_index + 1))

    def reset(self, base_index: LogIndex, base_term: Term) -> None:
        self.base_index = self.last_index = base_index
        self.base_term = base_term
        self._starts.clear()
        self._terms.clear()

    def place_at_or_below(self, index: LogIndex, term: Term) -> tuple[LogIndex, Term]:
        """The highest place not above `index` whose term is not above `term`: where two logs may agree (3.5)."""
        index = min(index, self.last_index)
        while index > self.base_index:
            place = bisect_right(self._starts, index) - 1
            if self._terms[place] <= term:
                return index, self._terms[place]
            index = LogIndex(self._starts[place] - 1)
        return self.base_index, self.base_term

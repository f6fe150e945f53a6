"""The ids that a stream had so far, however many: what it takes of memory does not grow with them.

Ids are 128 bits, in sorted runs. Equally large runs become one, so that there are few; the largest go to a file without
a name, which the system reads where it is asked for.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from holdfast.recovery.scratch import scratch_file

# Of one run; of 16 bytes each.
_RUN_IDS_MAX: Final = 1 << 21
# Spreads what ids have in common over all bits: their time is in front.
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class SeenIds:
    """Says of each id whether it is the first of its kind."""

    def __init__(self, run_ids_max: int = _RUN_IDS_MAX) -> None:
        self._run_ids_max = run_ids_max
        # Each sorted by the first of its two numbers.
        self._runs: list[tuple[Any, Any]] = []

    def are_first(self, high: Any, low: Any) -> Any:
        """For each id of some, in order; from now on they have been there."""
        mixed = (high * _SPREAD) ^ low
        order = np.argsort(mixed, kind="stable")
        one, other = mixed[order], high[order]
        is_first = ~_repeats(one, other)
        for run in self._runs:
            is_first &= ~_are_in(run, one, other)
        self._add(one[is_first], other[is_first])
        found = np.empty(len(order), bool)
        found[order] = is_first
        return found

    def _add(self, one: Any, other: Any) -> None:
        while self._runs and len(self._runs[-1][0]) <= 2 * len(one):
            if len(one) + len(self._runs[-1][0]) > self._run_ids_max:
                break
            before = self._runs.pop()
            one, other = np.concatenate((before[0], one)), np.concatenate((before[1], other))
            order = np.argsort(one, kind="stable")
            one, other = one[order], other[order]
        if len(one) * 2 > self._run_ids_max:
            self._runs.insert(0, (_on_disk(one), _on_disk(other)))
        elif len(one):
            self._runs.append((one, other))


def _repeats(one: Any, other: Any) -> Any:
    """Which of sorted ids have been there within them."""
    is_repeat = np.zeros(len(one), bool)
    is_tie = np.flatnonzero(one[1:] == one[:-1]) + 1
    for place in is_tie.tolist():
        at = place - 1
        while at >= 0 and one[at] == one[place] and not is_repeat[place]:
            is_repeat[place] = other[at] == other[place]
            at -= 1
    return is_repeat


def _are_in(run: tuple[Any, Any], one: Any, other: Any) -> Any:
    known, known_other = run
    at = np.searchsorted(known, one)
    is_found = np.zeros(len(one), bool)
    candidates = np.flatnonzero(at < len(known))
    candidates = candidates[known[at[candidates]] == one[candidates]]
    for place in candidates.tolist():
        look = int(at[place])
        while look < len(known) and known[look] == one[place] and not is_found[place]:
            is_found[place] = known_other[look] == other[place]
            look += 1
    return is_found


def _on_disk(numbers: Any) -> Any:
    with scratch_file() as file:
        file.write(numbers.tobytes())
        file.flush()
        return np.memmap(file, np.uint64, "r")

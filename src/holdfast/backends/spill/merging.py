"""The order in which the messages of several brokers are stored: by time, then by rank, then as in their files."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.backends.spill.events import Event
from holdfast.model.spill import OtherSpill, Rank

# Nothing of a broker is older than this.
Head = tuple[int, Rank]
# Time and rank of a line, its place in its run, and the run's number.
_Key = tuple[int, Rank, int, int]


class Run(NamedTuple):
    """The next lines of one broker; none for one that cannot be read. More may follow on them."""

    rank: Rank
    events: Sequence[Event | None]


class Merged(NamedTuple):
    """The lines that come first, in order, and how many of each run they are."""

    events: list[Event | None]
    taken: list[int]


def head_of(spill: OtherSpill) -> Head:
    """Before all messages that another broker keeps."""
    if spill.chunks and not spill.offered:
        return max(spill.oldest_ms, spill.chunks[-1].newest_ms), spill.rank
    return spill.oldest_ms, spill.rank


def before(events: Sequence[Event | None], rank: Rank, head: Head) -> int:
    """How many lines of this rank come before a head. Times rise within a file."""
    if not events or (events[-1] is not None and (events[-1].at, rank) < head):
        return len(events)
    late = (place for place, event in enumerate(events) if event is not None and (event.at, rank) >= head)
    return next(late, len(events))


def merge(runs: Sequence[Run], heads: Sequence[Head], events_max: int) -> Merged:
    """As many lines as nothing can come between.

    That ends with the last line of a run, since more may follow on it, and before each head: of brokers whose lines are
    not at hand.
    """
    keys = sorted(chain.from_iterable(_keys(number, run) for number, run in enumerate(runs)))
    lasts = [last for number, run in enumerate(runs) if run.events for last in [_last_key(number, run)]]
    end = min(
        events_max,
        min((bisect_left(keys, last) + 1 for last in lasts), default=0),
        min((bisect_left(keys, head) for head in heads), default=len(keys)),
    )
    taken = [0] * len(runs)
    found: list[Event | None] = []
    for _, _, place, number in keys[:end]:
        taken[number] = place + 1
        found.append(runs[number].events[place])
    return Merged(found, taken)


def _keys(number: int, run: Run) -> Iterator[_Key]:
    """They rise, also where a clock went back between two files or a line cannot be read."""
    at_ms = 0
    for place, event in enumerate(run.events):
        if event is not None and event.at > at_ms:
            at_ms = event.at
        yield at_ms, run.rank, place, number


def _last_key(number: int, run: Run) -> _Key:
    at_ms = max((event.at for event in run.events if event is not None), default=0)
    return at_ms, run.rank, len(run.events) - 1, number

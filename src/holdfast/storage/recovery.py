"""What a crash left of a log's segments: how much of it is proven, and where the torn tail begins.

These rules decide what is cut off and deleted and what is damage, both for a broker that opens a log (`log.py`, which
has the crash cases) and for an examination that only looks (`examine_log.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from holdfast.storage.durable import sync_file
from holdfast.storage.frames import Hole
from holdfast.storage.segment import Segment

# The new beginning of a log that is being thrown away; `log.py` tells its story.
RESET_SUFFIX = ".reset"

S = TypeVar("S", bound=Segment)


class Recovery(NamedTuple):
    """What opening a log found out."""

    torn_bytes: int
    deleted_segments: list[str]
    holes: list[tuple[str, Hole]]


def unfinished_reset(directory: Path) -> Path | None:
    """The new beginning that a crash left waiting for its place; the last one, should there be several."""
    return max(directory.glob(f"*{RESET_SUFFIX}"), default=None)


def proven_segments(segments: Sequence[Segment]) -> int:
    """How many of the oldest segments are known to have been synced whole; never the newest one."""
    newest = len(segments) - 1
    for number in range(newest, -1, -1):
        segment = segments[number]
        proof = segment.proof()
        if proof is not None and proof.is_sealed:
            return min(number + 1, newest)
        if proof is not None or segment.knows_of_a_sync:
            return number
    return 0


def recover_tail(segments: list[S], first: int) -> tuple[int, list[S]]:
    """Cut the torn tail, wherever in the segments from `first` on it is.

    Returns the bytes that were cut and the segments behind them, which are deleted and taken out of the list.
    """
    torn_bytes = 0
    for number in range(first, len(segments)):
        segment = segments[number]
        torn_bytes += segment.open_for_append()
        later = segments[number + 1 :]
        if not later:
            break
        if (segment.next_offset, segment.next_index) != (later[0].base_offset, later[0].base_index):
            del segments[number + 1 :]
            for dropped in reversed(later):
                dropped.delete()
            return torn_bytes, later
        sync_file(segment.fd)
        segment.keep_index(sealed=True)
        segment.release()
    return torn_bytes, []


def note_missing_ends(segments: Sequence[Segment]) -> None:
    """Damage at the end of a sealed segment reaches up to the first offset and entry of the next one."""
    for segment, following in itertools.pairwise(segments):
        segment.ends_at(following.base_offset, following.base_index)


def join_terms(segments: Sequence[Segment]) -> None:
    """Where a name of an older version does not tell the term before, the segment before does."""
    for segment, following in itertools.pairwise(segments):
        if not following.knows_previous_term:
            following.previous_term = segment.last_term

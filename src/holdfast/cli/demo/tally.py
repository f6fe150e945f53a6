"""What became of every message: counted from the numbers that were sent and received, without a clock or a socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """How one reader fared. Lost is what was acknowledged to the publisher and never came."""

    received: int
    lost: int
    duplicated: int
    out_of_order: int


def judge(acknowledged: Iterable[int], received: Sequence[int]) -> Verdict:
    """Hold what came against what was acknowledged; a second delivery is not out of order, only duplicated."""
    seen: set[int] = set()
    highest = duplicated = out_of_order = 0
    for number in received:
        if number in seen:
            duplicated += 1
            continue
        seen.add(number)
        if number < highest:
            out_of_order += 1
        highest = max(highest, number)
    return Verdict(len(received), len(set(acknowledged) - seen), duplicated, out_of_order)

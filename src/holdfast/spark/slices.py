"""Ranges of offsets are cut into slices, one for each task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from holdfast.spark.fetching import Slice

# One range of each partition: topic and number to first offset and end.
Ranges = dict[tuple[str, int], tuple[int, int]]


def slices(ranges: Ranges, partitions_min: int | None) -> list[Slice]:
    """One slice for each partition; more, of about equal size, where there are to be more tasks than partitions."""
    wanted = [Slice(topic, number, start, end) for (topic, number), (start, end) in ranges.items() if end > start]
    if partitions_min is None or len(wanted) >= partitions_min:
        return wanted
    total = sum(each.end - each.start for each in wanted)
    parts: list[Slice] = []
    for each in wanted:
        share = round((each.end - each.start) / total * partitions_min)
        parts += _cut(each, min(max(1, share), each.end - each.start))
    return parts


def _cut(whole: Slice, count: int) -> Sequence[Slice]:
    size = whole.end - whole.start
    bounds = [whole.start + size * number // count for number in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(bounds)]


def limited(ranges: Ranges, offsets_max: int) -> Ranges:
    """The first `offsets_max` messages of all ranges together, shared out by how much each has."""
    sizes = {place: end - start for place, (start, end) in ranges.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(ranges)
    chosen: Ranges = {}
    left, left_of_total = offsets_max, total
    for place, (start, _) in ranges.items():
        # What is left is shared among those that are left: the shares add up exactly.
        share = 0 if left_of_total == 0 else -(-left * sizes[place] // left_of_total)
        share = min(share, left, sizes[place])
        left -= share
        left_of_total -= sizes[place]
        chosen[place] = (start, start + share)
    return chosen

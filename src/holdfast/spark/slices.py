"""Ranges of offsets are cut into slices, one for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from holdfast.spark.fetching import Slice

# One range of each partition: topic and number to first offset and end.
Ranges = dict[tuple[str, int], tuple[int, int]]


def slices(ranges: Ranges, created_ms: Mapping[str, int], partitions_min: int | None) -> list[Slice]:
    """One slice for each partition; more, of about equal size, where there are to be more tasks than partitions."""
    wanted = [
        Slice(topic, created_ms[topic], number, start, end)
        for (topic, number), (start, end) in ranges.items()
        if end > start
    ]
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
    """The first `offsets_max` messages of all ranges together, shared out by how much each has.

    Each that has any gives one at least, though that may be more than `offsets_max` together: none waits for ever.
    """
    sizes = {place: end - start for place, (start, end) in ranges.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(ranges)
    chosen: Ranges = {place: (start, start) for place, (start, _) in ranges.items()}
    filled = [place for place, size in sizes.items() if size]
    left, left_of_total = max(offsets_max, len(filled)), total
    for waiting, place in zip(reversed(range(len(filled))), filled, strict=True):
        # What is left is shared among those that are left, of which each gets one: the shares add up exactly.
        share = min(-(-left * sizes[place] // left_of_total), left - waiting, sizes[place])
        left -= share
        left_of_total -= sizes[place]
        chosen[place] = (ranges[place][0], ranges[place][0] + share)
    return chosen

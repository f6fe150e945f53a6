"""Filters that need not reach Spark: on topic, partition and offset they choose what is read, on time where to begin.

Times of messages need not rise with their offsets, so a filter on time only leaves out what stands before the first
message of that time, and Spark looks at the rest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from holdfast.spark.slices import Ranges
from holdfast.spark.source_batch import BatchReader

_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "id")
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


class FilteredBatchReader(BatchReader):
    """The same reader, for queries that have asked for it: Spark refuses it where its setting is off."""

    _filters: tuple[Filter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take those that can be used here; those that Spark must look at too are handed back."""
        self._filters = tuple(each for each in filters if is_usable(each))
        return [each for each in filters if not is_settled(each)]

    def _narrowed(self, ranges: Ranges) -> Ranges:
        return narrowed(ranges, self._filters)

    def _begins_at_ms(self) -> int | None:
        return earliest_ms(self._filters)


def _column(each: Filter) -> str:
    path: tuple[str, ...] = getattr(each, "attribute", ())
    return path[0] if len(path) == 1 else ""


def is_usable(each: Filter) -> bool:
    return (isinstance(each, In) or type(each) in _COMPARISONS) and _column(each) in (
        "topic",
        "partition",
        "offset",
        "timestamp",
    )


def is_settled(each: Filter) -> bool:
    """Whether every row that is read passes, so that Spark need not look."""
    if isinstance(each, IsNotNull):
        return _column(each) in _NEVER_NULL
    if not is_usable(each) or _column(each) == "timestamp":
        return False
    # Offsets are read as one range, so a list of them is not.
    return not (_column(each) == "offset" and isinstance(each, In))


def narrowed(ranges: Ranges, filters: Iterable[Filter]) -> Ranges:
    """The same ranges without what no filter lets through."""
    kept = dict(ranges)
    for each in filters:
        column = _column(each)
        if column == "offset":
            low, high = _bounds(each)
            kept = {place: (max(start, low), min(end, high)) for place, (start, end) in kept.items()}
        elif column in ("topic", "partition"):
            index = 0 if column == "topic" else 1
            kept = {place: span for place, span in kept.items() if _passes(each, place[index])}
    return {place: (start, end) for place, (start, end) in kept.items() if start < end}


def earliest_ms(filters: Iterable[Filter]) -> int | None:
    """The time before which no message is wanted, as far as filters say."""
    bounds = [bound for each in filters if _column(each) == "timestamp" for bound in _lowest_ms(each)]
    return max(bounds, default=None)


def _lowest_ms(each: Filter) -> Iterator[int]:
    if isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
        values = [each.value]
    elif isinstance(each, In):
        values = list(each.value)
    else:
        return
    if values and all(isinstance(value, datetime) for value in values):
        yield min(_milliseconds(value) for value in values)


def _milliseconds(when: datetime) -> int:
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _bounds(each: Any) -> tuple[int, int]:
    """First offset and end of what passes."""
    everything = 1 << 63
    if isinstance(each, In):
        numbers = [value for value in each.value if value is not None]
        return (min(numbers), max(numbers) + 1) if numbers else (0, 0)
    if each.value is None:
        return 0, 0
    if isinstance(each, EqualTo | EqualNullSafe):
        return each.value, each.value + 1
    if isinstance(each, GreaterThan):
        return each.value + 1, everything
    if isinstance(each, GreaterThanOrEqual):
        return each.value, everything
    return 0, each.value + (1 if isinstance(each, LessThanOrEqual) else 0)


def _passes(each: Any, value: Any) -> bool:
    if isinstance(each, In):
        return value in each.value
    if each.value is None:
        return False
    return bool(_COMPARISONS[type(each)](value, each.value))

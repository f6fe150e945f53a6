"""What `insight` found, gathered on the driver: small tables out of millions of messages, each with a limit.

Rows that are left out are counted (`left_out`). Topics are all there, and nothing is left out of their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as f

from holdfast.pipelines import insight_rules as rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

TOP_DEFAULT: Final = 10
TOP_MAX: Final = 1000
# Windows in which a span is cut where nobody says how long they are, and what anybody may ask for.
WINDOWS_USUAL: Final = 120
WINDOWS_MAX: Final = 2000
PARTITIONS_MAX: Final = 5000
CURSORS_MAX: Final = 5000
ROWS_MAX: Final = 20_000
KINDS_MAX: Final = 1000
# Of a key that is text, what is shown.
_KEY_CHARACTERS: Final = 200
_S: Final = 1000
_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY_MS: Final = 86_400_000


@dataclass
class Insight:
    """What the log said. `as_json` has everything; the fields are what the page and the table are made of.

    The time looked at is that of the windows from `from_ms` to `until_ms`, of `window_ms` each: from the first to the
    last that has a message. `asked_ms` is when it was asked for: a window that was not over then has no rate yet.
    """

    window_ms: int
    from_ms: int
    until_ms: int
    asked_ms: int
    totals: dict[str, Any]
    topics: list[dict[str, Any]]
    partitions: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    partition_windows: list[dict[str, Any]]
    sizes: list[dict[str, Any]]
    hot_keys: dict[str, list[dict[str, Any]]]
    errors: list[dict[str, Any]]
    cursors: list[dict[str, Any]]
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return (self.until_ms - self.from_ms) / _S

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def look(
    messages: DataFrame,
    topics: Sequence[str],
    cursors: Iterable[dict[str, Any]],
    *,
    asked_ms: int,
    since_ms: int | None = None,
    window_ms: int | None = None,
    top: int = TOP_DEFAULT,
    tell: Callable[[str], None] = lambda _: None,
) -> Insight:
    """Look at messages of `topics` and of their dead letter topics, which are not among `topics` unless asked for."""
    tell("reading the log")
    read = rules.measured(messages)
    rows = (read if since_ms is None else read.where(f.col("time_ms") >= since_ms)).persist(StorageLevel.DISK_ONLY)
    try:
        times = rows.selectExpr("min(time_ms)", "max(time_ms)").collect()[0]
        width = fitting_window_ms(window_ms, times[0], times[1])
        tell("counting by time and size")
        counts = rules.counted(rows.where(f.col("topic").isin(*topics)), width).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            return _gathered(rows, counts, topics, list(cursors), width=width, asked_ms=asked_ms, top=top, tell=tell)
        finally:
            counts.unpersist()
    finally:
        rows.unpersist()


def fitting_window_ms(asked_ms: int | None, first_ms: int | None, last_ms: int | None) -> int:
    """The window that is asked for, or a round one; twice as long, and again, where there would be too many."""
    span_ms = 0 if first_ms is None or last_ms is None else last_ms - first_ms
    if asked_ms is None:
        round_ms = next((each * _S for each in _WIDTHS_S if span_ms < each * _S * WINDOWS_USUAL), None)
        return round_ms or math.ceil((span_ms + 1) / WINDOWS_USUAL / _DAY_MS) * _DAY_MS
    while span_ms >= asked_ms * (WINDOWS_MAX - 1):
        asked_ms *= 2
    return asked_ms


def _gathered(
    rows: DataFrame,
    counts: DataFrame,
    topics: Sequence[str],
    cursors: list[dict[str, Any]],
    *,
    width: int,
    asked_ms: int,
    top: int,
    tell: Callable[[str], None],
) -> Insight:
    left_out: dict[str, int] = {}

    def taken(name: str, found: DataFrame, most: int, *order: Any) -> list[dict[str, Any]]:
        """At most so many rows, the first in this order; how many more there are is noted."""
        shown = [row.asDict() for row in found.orderBy(*order).limit(most + 1).collect()]
        if len(shown) > most:
            left_out[name] = found.count() - most
        return shown[:most]

    newest = f.desc("window_ms")
    of_topics = {row["topic"]: row.asDict() for row in rules.summary(counts, "topic").collect()}
    _add(of_topics, rules.partition_loads(counts).collect())
    busiest = rules.busiest_windows(counts, asked_ms, width).withColumnRenamed("messages", "busiest").collect()
    _add(of_topics, busiest)
    partitions = taken("partitions", rules.summary(counts, "topic", "partition"), PARTITIONS_MAX, "topic", "partition")
    windows = taken("windows", rules.summary(counts, "topic", "window_ms"), ROWS_MAX, newest, "topic")
    fine = rules.summary(counts, "topic", "partition", "window_ms")
    partition_windows = taken("partition_windows", fine, ROWS_MAX, newest, "topic", "partition")
    sizes = [row.asDict() for row in rules.summary(counts, "window_ms").orderBy("window_ms").collect()]
    totals = rules.summary(counts).collect()[0].asDict()
    tell("counting keys")
    key_rows = rules.keys(rows.where(f.col("topic").isin(*topics))).persist(StorageLevel.DISK_ONLY)
    try:
        hot = {
            by: taken(f"keys_by_{by}", rules.hottest(key_rows, by, top), ROWS_MAX, "topic", "rank")
            for by in ("messages", "bytes")
        }
        _add(of_topics, rules.key_spread(key_rows).collect())
    finally:
        key_rows.unpersist()
    tell("counting errors")
    # Messages are only looked through for those that letters name if there are such letters.
    named = rows.where("dead_of is not null").select("dead_of.topic").distinct().collect()
    names, is_asked = [row["topic"] for row in named], f.col("topic").isin(*topics)
    letters = rules.dead_letters(rows, width, names).where(is_asked).persist(StorageLevel.MEMORY_AND_DISK)
    failed = rules.failed(rows, width, names).where(is_asked).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        errors = taken("errors", rules.dead_by_kind(letters), KINDS_MAX, f.desc("dead"), "topic", "kind")
        dead = taken("dead_windows", rules.dead_by_window(letters, failed), ROWS_MAX, newest, "topic")
        _add(of_topics, rules.dead_by_topic(letters, failed).collect())
    finally:
        failed.unpersist()
        letters.unpersist()
    left_out |= {"cursors": len(cursors) - CURSORS_MAX} if len(cursors) > CURSORS_MAX else {}
    begins = min((row["window_ms"] for row in (*sizes, *dead)), default=asked_ms - asked_ms % width)
    found = Insight(
        window_ms=width,
        from_ms=begins,
        until_ms=max((row["window_ms"] + width for row in (*sizes, *dead)), default=begins),
        asked_ms=asked_ms,
        totals={name: value or 0 for name, value in totals.items()},
        topics=[{"topic": topic, "messages": 0, "bytes": 0, **of_topics.get(topic, {})} for topic in topics],
        partitions=partitions,
        windows=_with_dead(windows, dead),
        partition_windows=_oldest_first(partition_windows),
        sizes=sizes,
        hot_keys={by: [_shown_key(row) for row in ranked] for by, ranked in hot.items()},
        errors=errors,
        cursors=sorted(cursors, key=lambda each: (-each["lag"], each["topic"], each["cursor"]))[:CURSORS_MAX],
        left_out=left_out,
    )
    _complete(found)
    return found


def _add(of_topics: dict[str, dict[str, Any]], rows: Iterable[Row]) -> None:
    for row in rows:
        of_topics.setdefault(row["topic"], {}).update(row.asDict())


def _oldest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["window_ms"], row["topic"], row.get("partition", -1)))


def _with_dead(windows: list[dict[str, Any]], dead: Iterable[Any]) -> list[dict[str, Any]]:
    """The windows of topics, each with its dead letters; one that has nothing else has a row as well."""
    rows = {(row["topic"], row["window_ms"]): {**row, "dead": 0, "failed": 0} for row in windows}
    nothing = dict.fromkeys(next(iter(windows), {"messages": 0}), 0)
    for row in dead:
        place = (row["topic"], row["window_ms"])
        at = {"topic": row["topic"], "window_ms": row["window_ms"]}
        rows.setdefault(place, {**nothing, **at}).update(dead=row["dead"], failed=row["failed"])
    return _oldest_first(list(rows.values()))


def _complete(found: Insight) -> None:
    """Rates and shares, which follow from the counts."""
    for row in (found.totals, *found.topics, *found.partitions):
        row["messages_per_s"] = _rate(row["messages"], found.seconds)
        row["bytes_per_s"] = _rate(row["bytes"], found.seconds)
    window_s = found.window_ms / _S
    for row in (*found.windows, *found.partition_windows, *found.sizes):
        # What a window has so far that is not over yet is no rate.
        is_over = row["window_ms"] + found.window_ms <= found.asked_ms
        row["messages_per_s"] = _rate(row["messages"], window_s) if is_over else None
        row["bytes_per_s"] = _rate(row["bytes"], window_s) if is_over else None
    for row in found.windows:
        row["dead_share"] = _share(row["failed"], row["messages"])
    lags: dict[str, int] = {}
    for cursor in found.cursors:
        lags[cursor["topic"]] = max(lags.get(cursor["topic"], 0), cursor["lag"])
    found.topics.sort(key=lambda row: (-row["messages"], row["topic"]))
    for row in found.topics:
        fullest, busiest, even = row.pop("fullest", 0), row.pop("busiest", None), row.pop("even_keys", None)
        row["messages_per_s_max"] = None if busiest is None else _rate(busiest, window_s)
        row["partitions"] = row.get("partitions", 0)
        # How many times as much the fullest partition has as it would if all had the same.
        row["partition_skew"] = _share(fullest * row["partitions"], row["messages"])
        row["keys"] = row.get("keys", 0)
        row["even_keys"] = None if even is None else round(even, 1)
        row["hottest_key_share"] = _share(row.pop("hottest", 0), row.get("keyed", 0))
        row["dead"], row["failed"] = row.get("dead", 0), row.get("failed", 0)
        row["dead_share"] = _share(row["failed"], row["messages"])
        row["lag_max"] = lags.get(row["topic"])
    of_topic = {row["topic"]: row for row in found.topics}
    for by, whole in (("messages", "keyed"), ("bytes", "bytes")):
        for row in found.hot_keys[by]:
            row["share"] = _share(row[by], of_topic[row["topic"]][whole])
    for name in ("dead", "failed"):
        found.totals[name] = sum(row[name] for row in found.topics)
    found.totals["dead_share"] = _share(found.totals["failed"], found.totals["messages"])


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds else 0.0


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _shown_key(row: dict[str, Any]) -> dict[str, Any]:
    """A key as text, or in hexadecimal digits where it is none."""
    key = bytes(row["key"])
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        text = "0x" + key.hex()
    return {**row, "key": text if len(text) <= _KEY_CHARACTERS else text[: _KEY_CHARACTERS - 1] + "…"}

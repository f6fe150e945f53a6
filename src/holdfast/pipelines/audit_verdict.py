"""The audit's verdict: small tables, counted by Spark from millions of rows, and a few examples of each flaw.

Nothing else comes to the driver: a fact is a topic, a partition, a receiver, one of at most `BINS_MAX` stretches of
time and a step of latency. Lists are cut at `ROWS_MAX` and `EXAMPLES_MAX`, and say so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import StorageLevel

from holdfast.pipelines import audit_rules as rules
from holdfast.pipelines import tuning
from holdfast.pipelines.errors import BadRecords
from holdfast.pipelines.flaws import FLAWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from holdfast.pipelines.record_files import Records

EXAMPLES_MAX: Final = 10
ROWS_MAX: Final = 1000
BINS_MAX: Final = 240
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
# Of a line that is no record, what an error shows.
_LINE_SHOWN: Final = 60
_NOTHING_SENT: Final = "the records of what was sent are empty, so there is nothing to hold anything against"
# Both sides of the join are cut by the same hash of a message: without the first setting Spark would cut them once
# more, by all that is joined. What it keeps on disk it would press first, for more time than the bytes are worth.
_JOINING: Final = {
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
_BIN_STEPS_MS: Final = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
_MINUTE_MS: Final = 60_000


@dataclass
class Verdict:
    """What the audit found. `as_json` has everything; the fields are what the page and the table are made of."""

    counts: Counter[str]
    topics: list[dict[str, Any]]
    receivers: list[dict[str, Any]]
    latency_ms: dict[str, int | None]
    rate: dict[str, Any]
    gaps: list[dict[str, Any]] = field(default_factory=list)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    every_receiver: bool = False

    def is_flawless(self, allowed: Iterable[str] = ()) -> bool:
        """Whether nothing is wrong but what is allowed."""
        return not any(self.counts[name] for name in FLAWS if name not in allowed)

    def as_json(self) -> dict[str, Any]:
        names = ("sent", "acknowledged", "received", *FLAWS, "resent", "delivered", "missed")
        return {
            **{name: self.counts[name] for name in names},
            "flawless": self.is_flawless(),
            "every_receiver": self.every_receiver,
            "latency_ms": self.latency_ms,
            "longest_silence_ms": max((each["silence_ms"] for each in self.receivers), default=0),
            "topics": self.topics[:ROWS_MAX],
            "topics_left_out": max(0, len(self.topics) - ROWS_MAX),
            "receivers": self.receivers[:ROWS_MAX],
            "receivers_left_out": max(0, len(self.receivers) - ROWS_MAX),
            "gaps": self.gaps,
            "rate": self.rate,
            "examples": self.examples,
        }


def audit_records(
    sent: Records, received: Records, *, every_receiver: bool = False, tell: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Judge two sets of records. `tell` hears what is being done."""
    if sent.is_empty:
        raise BadRecords(_NOTHING_SENT)
    tell("reading the records and finding each message's receptions")
    pieces = tuning.pieces(sent.bytes + received.bytes)
    with tuning.configured(sent.good.sparkSession, {tuning.SHUFFLE: str(pieces), **_JOINING}):
        return _audit_records(sent, received, pieces, every_receiver=every_receiver, tell=tell)


def _audit_records(
    sent: Records, received: Records, pieces: int, *, every_receiver: bool, tell: Callable[[str], None]
) -> Verdict:
    rows = rules.joined(sent.good, received.good, pieces).persist(StorageLevel.DISK_ONLY)
    runs = rules.runs(rows).persist(StorageLevel.MEMORY_AND_DISK)
    late = None
    try:
        times = runs.selectExpr("min(from_ms)", "max(until_ms)", "count(*) as runs").collect()[0]
        late = rules.late(rows, runs, times["runs"]).persist(StorageLevel.MEMORY_AND_DISK)
        if times[0] is None:
            times = rows.selectExpr("min(sent_ms)", "max(sent_ms)").collect()[0]
        from_ms, until_ms = (int(times[0] or 0), int(times[1] or 0))
        bin_ms = _bin_width_ms(until_ms - from_ms)
        tell("looking at their order and their times")
        facts = _Facts(
            sent=rules.sent_facts(rows, from_ms, bin_ms).collect(),
            received=rules.received_facts(rows, from_ms, bin_ms).collect(),
            late=rules.late_facts(late, from_ms, bin_ms).collect(),
            silences=rules.silences(rows).collect(),
        )
        verdict = _verdict(facts, from_ms, bin_ms, every_receiver=every_receiver)
        _count_malformed(verdict, {"sent": sent, "received": received})
        if not verdict.counts["sent"]:
            raise BadRecords(nothing_sent(verdict))
        tell("gathering examples")
        _add_examples(verdict, rows, late)
    finally:
        if late is not None:
            late.unpersist()
        runs.unpersist()
        rows.unpersist()
    return verdict


class _Facts(NamedTuple):
    sent: Sequence[Row]
    received: Sequence[Row]
    late: Sequence[Row]
    silences: Sequence[Row]


def nothing_sent(verdict: Verdict) -> str:
    bad = verdict.counts["malformed"]
    if not bad:
        return _NOTHING_SENT
    shown = next(iter(verdict.examples.get("malformed", ())), {})
    line = str(shown.get("line"))
    # A file may be anything, and what it holds is for no terminal.
    such = ascii(line[:_LINE_SHOWN]) + ("…" if len(line) > _LINE_SHOWN else "")
    return f"{shown.get('file')}: no line tells of a sent message, and {bad:,} are no records, such as {such}"


def _bin_width_ms(span_ms: int) -> int:
    """The first round width with which at most `BINS_MAX` stretches of time cover everything."""
    fits = (width for width in _BIN_STEPS_MS if span_ms // width < BINS_MAX)
    minutes = math.ceil((span_ms + 1) / BINS_MAX / _MINUTE_MS)
    return next(fits, minutes * _MINUTE_MS)


def _verdict(facts: _Facts, from_ms: int, bin_ms: int, *, every_receiver: bool) -> Verdict:
    totals: Counter[str] = Counter()
    topics: dict[tuple[str, int], Counter[str]] = {}
    receivers: dict[tuple[str, str], Counter[str]] = {}
    acknowledged: Counter[str] = Counter()
    for row in facts.sent:
        counted = {name: row[name] for name in ("sent", "resent", "acknowledged", "lost")}
        totals.update(counted)
        topics.setdefault((row["topic"], row["partition"]), Counter()).update(counted)
        acknowledged[row["topic"]] += row["acknowledged"]
    names = ("received", "duplicated", "out_of_order", "phantom", "delivered", "acknowledged_delivered")
    for row in (*facts.received, *facts.late):
        counted = {name: row[name] for name in names if name in row}
        totals.update(counted)
        topics.setdefault((row["topic"], row["partition"]), Counter()).update(counted)
        receivers.setdefault((row["topic"], row["receiver"]), Counter()).update(counted)
    silences = {(row["topic"], row["receiver"]): row for row in facts.silences}
    for (topic, _), counted in receivers.items():
        counted["missed"] = acknowledged[topic] - counted["acknowledged_delivered"]
        totals["missed"] += counted["missed"]
    if every_receiver:
        # A topic that nobody read at all has no receiver that could have missed anything.
        read = {topic for topic, _ in receivers}
        totals["lost"] = totals["missed"] + sum(
            counts["lost"] for (topic, _), counts in topics.items() if topic not in read
        )
    return Verdict(
        counts=totals,
        topics=[
            {
                "topic": topic,
                "partition": None if partition < 0 else partition,
                **{name: counts[name] for name in ("sent", "acknowledged", "received", *FLAWS[:-1])},
            }
            for (topic, partition), counts in sorted(topics.items())
        ],
        receivers=[
            {
                "topic": topic,
                "receiver": receiver,
                **{name: counts[name] for name in ("received", "missed", *FLAWS[1:-1])},
                "silence_ms": silences[topic, receiver]["silence_ms"] if (topic, receiver) in silences else 0,
                "silent_from_ms": silences[topic, receiver]["silent_from_ms"]
                if (topic, receiver) in silences
                else None,
            }
            for (topic, receiver), counts in sorted(receivers.items())
        ],
        latency_ms=_latencies(facts.received),
        rate=_rate(facts, from_ms, bin_ms),
        every_receiver=every_receiver,
    )


def _latencies(rows: Sequence[Row]) -> dict[str, int | None]:
    """Nearest-rank percentiles; `negative` are those that clocks which differ have made."""
    steps: Counter[int] = Counter()
    for row in rows:
        if row["latency_ms"] is not None:
            steps[row["latency_ms"]] += row["delivered"]
    known = [row for row in rows if row["latency_max"] is not None]
    found: dict[str, int | None] = {name: percentile(steps, share) for name, share in PERCENTILES.items()}
    found["max"] = max((row["latency_max"] for row in known), default=None)
    found["min"] = min((row["latency_min"] for row in known), default=None)
    found["negative"] = sum(count for step, count in steps.items() if step < 0)
    return found


def percentile(steps: Counter[int], share: float) -> int | None:
    """The least step that so many of all are not above."""
    wanted = math.ceil(share * steps.total())
    seen = 0
    for step in sorted(steps):
        seen += steps[step]
        if seen >= wanted > 0:
            return step
    return None


def _rate(facts: _Facts, from_ms: int, bin_ms: int) -> dict[str, Any]:
    """Counts of each stretch of time, and the latencies of what came in it."""
    sides = [(name, facts.sent) for name in ("sent", "acknowledged", "lost")]
    sides += [(name, facts.late if name == "out_of_order" else facts.received) for name in ("received", *FLAWS[1:-1])]
    last = max((row["bin"] for rows in facts[:2] for row in rows if row["bin"] is not None), default=-1)
    columns: dict[str, Any] = {name: [0] * (last + 1) for name, _ in sides}
    for name, rows in sides:
        for row in rows:
            # A time before the first, or none at all, has no place in the picture.
            if row["bin"] is not None and row["bin"] >= 0:
                columns[name][row["bin"]] += row[name]
    steps: dict[int, Counter[int]] = {}
    for row in facts.received:
        if row["latency_ms"] is not None and row["bin"] is not None and row["bin"] >= 0:
            steps.setdefault(row["bin"], Counter())[row["latency_ms"]] += row["delivered"]
    for name, share in (("latency_p50_ms", 0.5), ("latency_p99_ms", 0.99)):
        columns[name] = [percentile(steps[bin_], share) if bin_ in steps else None for bin_ in range(last + 1)]
    return {"from_ms": from_ms, "bin_ms": bin_ms, **columns}


# --- examples -----------------------------------------------------------------------------------------------


def _count_malformed(verdict: Verdict, sides: dict[str, Records]) -> None:
    """They were counted while the records were read; only where there are some are they looked for."""
    shown = verdict.examples.setdefault("malformed", [])
    for side, records in sides.items():
        count = records.malformed_count()
        verdict.counts["malformed"] += count
        if count and len(shown) < EXAMPLES_MAX:
            found = records.malformed.limit(EXAMPLES_MAX - len(shown)).collect()
            shown += [{"side": side, **row.asDict()} for row in found]
    if not shown:
        del verdict.examples["malformed"]


def _add_examples(verdict: Verdict, rows: DataFrame, late: DataFrame) -> None:
    """Only flaws that were counted are looked for: each takes a pass."""
    columns = ("topic", "partition", "id", "sequence")
    lost = rules.missed(rows) if verdict.every_receiver and verdict.receivers else rules.lost(rows)
    sought = {
        "lost": (lost, (*columns, "sent_ms", *(("receiver",) if "receiver" in lost.columns else ()))),
        "duplicated": (rules.duplicated(rows), (*columns, "receiver", "copies")),
        "out_of_order": (late, (*columns, "receiver", "producer")),
        "phantom": (rules.phantom(rows), ("topic", "partition", "id", "receiver", "received_ms")),
    }
    for name, (found, shown) in sought.items():
        if verdict.counts[name]:
            chosen = found.select(*shown).orderBy("topic", "partition", "sequence" if "sequence" in shown else "id")
            verdict.examples[name] = [row.asDict() for row in chosen.limit(EXAMPLES_MAX).collect()]
    if verdict.counts["lost"]:
        longest = rules.gaps(rows).orderBy(
            "messages", "topic", "producer", "first", ascending=[False, True, True, True]
        )
        verdict.gaps = [row.asDict() for row in longest.limit(EXAMPLES_MAX).collect()]

"""The audit's verdict as a page: what was found, over time, by topic and by receiver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from holdfast.pipelines.audit_verdict import ROWS_MAX, Verdict
from holdfast.pipelines.charts import Series, moment, over_time, page, table
from holdfast.pipelines.flaws import FLAWS

# With fewer the last one is shown like all.
_STRETCHES_FEW: Final = 4
_MOMENTS: Final = ("silent_from_ms", "sent_ms", "received_ms")
_COLOURS: Final = {"lost": "red", "duplicated": "amber", "out_of_order": "violet", "phantom": "teal"}


def drawn(verdict: Verdict, allowed: Sequence[str] = ()) -> str:
    """One HTML file."""
    return page("Holdfast audit", _parts(verdict, allowed))


def summary(verdict: Verdict, allowed: Sequence[str] = ()) -> str:
    """One sentence: the flaws, and which of them are allowed, or that there is none."""
    counts = verdict.counts
    if verdict.is_flawless():
        return f"All {counts['acknowledged']:,} acknowledged messages were received, each once and in order."
    is_fine = verdict.is_flawless(allowed)
    found = ", ".join(
        f"{counts[name]:,} {name.replace('_', ' ')}{' (allowed)' if name in allowed and not is_fine else ''}"
        for name in FLAWS
        if counts[name]
    )
    return f"Nothing but what is allowed: {found}." if is_fine else f"Not flawless: {found}."


def _parts(verdict: Verdict, allowed: Sequence[str]) -> Iterator[str]:
    counts, rate = verdict.counts, verdict.rate
    yield "<h1>Audit: what was sent, and what was received</h1>"
    mood = "good" if verdict.is_flawless(allowed) else "bad"
    yield f'<p class="{mood}">{escape(summary(verdict, allowed))}</p>'
    names = ("sent", "acknowledged", "received", *FLAWS)
    yield table([name.replace("_", " ") for name in names], [[counts[name] for name in names]])
    bin_s, from_ms = rate["bin_ms"] / 1000, rate["from_ms"]

    def per_second(name: str) -> list[float | None]:
        # The last stretch ends with the records, wherever that is: what it has is no rate.
        counts = rate[name] if len(rate[name]) < _STRETCHES_FEW else [*rate[name][:-1], None]
        return [None if count is None else count / bin_s for count in counts]

    yield "<h2>Rate</h2>"
    lines = [Series("sent", "blue", per_second("sent"), is_behind=True)]
    lines.append(Series("received", "green", per_second("received")))
    yield over_time("messages a second, sent and received", "messages/s", bin_s, lines, from_ms=from_ms)
    if any(sum(rate[name]) for name in _COLOURS):
        yield "<h2>Flaws</h2>"
        yield (
            "<p>Lost messages stand at the time when they were sent, all others at the time when they came; duplicates "
            "at that of the first of their message.</p>"
        )
        flawed = [Series(name.replace("_", " "), _COLOURS[name], rate[name]) for name in _COLOURS if sum(rate[name])]
        yield over_time(
            "flaws in each stretch of time", f"messages in {bin_s:g} s", bin_s, flawed, from_ms=from_ms, is_stacked=True
        )
    if any(value is not None for value in rate["latency_p50_ms"]):
        yield "<h2>Latency</h2>"
        yield f"<p>{escape(_latency_words(verdict))}</p>"
        lines = [
            Series("99 of 100 below", "amber", rate["latency_p99_ms"]),
            Series("half below", "green", rate["latency_p50_ms"]),
        ]
        yield over_time("milliseconds from sending to receiving", "milliseconds", bin_s, lines, from_ms=from_ms)
        columns = [name if name == "negative" else f"{name}, ms" for name in verdict.latency_ms]
        yield table(columns, [["–" if each is None else each for each in verdict.latency_ms.values()]])
    yield from _tables(verdict)


def _latency_words(verdict: Verdict) -> str:
    words = "From the sender's clock to the receiver's; if those differ, so do all numbers here, and nothing else."
    negative = verdict.latency_ms["negative"]
    return words + (f" They do differ: {negative:,} messages came before they were sent." if negative else "")


def _tables(verdict: Verdict) -> Iterator[str]:
    for title, rows in (("Topics and partitions", verdict.topics), ("Receivers", verdict.receivers)):
        if rows:
            columns = list(rows[0])
            more = f"<p>{len(rows) - ROWS_MAX:,} more are not shown.</p>" if len(rows) > ROWS_MAX else ""
            values = [[_shown(name, row[name]) for name in columns] for row in rows[:ROWS_MAX]]
            words = [_words(name) for name in columns]
            yield f"<h2>{title}</h2>{table(words, values, text=('topic', 'receiver'))}{more}"
    if verdict.gaps:
        yield "<h2>Gaps</h2><p>Runs of lost messages of one producer, the longest first.</p>"
        yield table(list(verdict.gaps[0]), [list(gap.values()) for gap in verdict.gaps], text=("topic", "producer"))
    for name, examples in verdict.examples.items():
        columns = [each for each in examples[0] if any(example[each] is not None for example in examples)]
        values = [[_shown(column, each[column]) for column in columns] for each in examples]
        left = ("topic", "id", "receiver", "producer", "file", "line", "side")
        words = [_words(column) for column in columns]
        yield f"<h2>{name.replace('_', ' ').capitalize()}: examples</h2>{table(words, values, text=left)}"


def _words(column: str) -> str:
    """A column's name for people: what is a time says so by itself, and what is a length has its unit."""
    if column in _MOMENTS:
        return column.removesuffix("_ms").replace("_", " ")
    return column.replace("_ms", ", ms").replace("_", " ")


def _shown(name: str, value: object) -> object:
    if value is None:
        return "–"
    return moment(value, with_ms=True) if name in _MOMENTS and isinstance(value, int) else value

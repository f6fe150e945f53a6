"""The audit's verdict as a page: what was found, over time, by topic and by receiver."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from holdfast.pipelines.audit_verdict import ROWS_MAX, Verdict
from holdfast.pipelines.charts import Series, over_time, page, table
from holdfast.pipelines.flaws import FLAWS

_MOMENTS: Final = ("silent_from_ms", "sent_ms", "received_ms")
_COLOURS: Final = {"lost": "red", "duplicated": "amber", "out_of_order": "violet", "phantom": "blue"}


def drawn(verdict: Verdict) -> str:
    """One HTML file."""
    return page("Holdfast audit", _parts(verdict))


def summary(verdict: Verdict) -> str:
    """One sentence: the flaws, or that there is none."""
    counts = verdict.counts
    found = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in FLAWS if counts[name])
    if found:
        return f"Not flawless: {found}."
    return f"All {counts['acknowledged']:,} acknowledged messages were received, each once and in order."


def _parts(verdict: Verdict) -> Iterator[str]:
    counts, rate = verdict.counts, verdict.rate
    yield "<h1>Audit: what was sent, and what was received</h1>"
    yield f'<p class="{"good" if verdict.is_flawless() else "bad"}">{escape(summary(verdict))}</p>'
    names = ("sent", "acknowledged", "received", *FLAWS)
    yield table([name.replace("_", " ") for name in names], [[counts[name] for name in names]])
    bin_s = rate["bin_ms"] / 1000

    def per_second(name: str) -> list[float | None]:
        return [count / bin_s for count in rate[name]]

    yield "<h2>Rate</h2>"
    lines = [Series("sent", "blue", per_second("sent")), Series("received", "green", per_second("received"))]
    yield over_time("messages a second, sent and received", "messages/s", bin_s, lines)
    if any(sum(rate[name]) for name in _COLOURS):
        yield "<h2>Flaws</h2>"
        yield "<p>Lost messages stand at the time when they were sent, all others at the time when they came.</p>"
        flawed = [Series(name.replace("_", " "), _COLOURS[name], rate[name]) for name in _COLOURS if sum(rate[name])]
        yield over_time("flaws in each stretch of time", f"messages in {bin_s:g} s", bin_s, flawed)
    if any(value is not None for value in rate["latency_p50_ms"]):
        yield "<h2>Latency</h2>"
        yield f"<p>{escape(_latency_words(verdict))}</p>"
        lines = [
            Series("99 of 100 below", "amber", rate["latency_p99_ms"]),
            Series("half below", "green", rate["latency_p50_ms"]),
        ]
        yield over_time("milliseconds from sending to receiving", "milliseconds", bin_s, lines)
        yield table(list(verdict.latency_ms), [["–" if each is None else each for each in verdict.latency_ms.values()]])
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
            words = [name.replace("_", " ") for name in columns]
            yield f"<h2>{title}</h2>{table(words, values, text=('topic', 'receiver'))}{more}"
    if verdict.gaps:
        yield "<h2>Gaps</h2><p>Runs of lost messages of one producer, the longest first.</p>"
        yield table(list(verdict.gaps[0]), [list(gap.values()) for gap in verdict.gaps], text=("topic", "producer"))
    for name, examples in verdict.examples.items():
        columns = list(examples[0])
        values = [[_shown(column, each[column]) for column in columns] for each in examples]
        left = ("topic", "id", "receiver", "producer", "file", "line", "side")
        yield f"<h2>{name.replace('_', ' ').capitalize()}: examples</h2>{table(columns, values, text=left)}"


def _shown(name: str, value: object) -> object:
    """A moment is one number, not thousands of something."""
    if value is None:
        return "–"
    return str(value) if name in _MOMENTS else value

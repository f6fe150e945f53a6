"""What `insight` found as a page: rates and sizes over time, errors, hot keys, how far readers are behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from holdfast.pipelines.charts import Series, bars, byte_unit, bytes_text, moment, over_time, page, table
from holdfast.pipelines.insight_findings import Insight

# Topics that have a line of their own in a picture; the others are one line together.
_LINES_MAX: Final = 5
_COLOURS: Final = ("blue", "green", "amber", "violet", "teal")
_OTHERS: Final = "all others"
# Tables and bars of the page; the JSON has all.
_ROWS_SHOWN: Final = 50
_TOPICS_WITH_KEYS: Final = 8
_BARS_SHOWN: Final = 10
_SIZES: Final = ("median size", "p99 size", "largest")


def drawn(found: Insight, *, again_s: float | None = None) -> str:
    """One HTML file."""
    return page("Holdfast insight", _parts(found), again_s=again_s)


def summary(found: Insight) -> str:
    """One sentence: how much there is, and from when."""
    totals = found.totals
    if not totals["messages"]:
        return "There are no messages in this time."
    topics = sum(1 for row in found.topics if row["messages"])
    failed = f"{percent(totals['dead_share'])} of the messages failed"
    dead = f", {totals['dead']:,} dead letters ({failed})" if totals["dead"] else ""
    return (
        f"{totals['messages']:,} messages ({bytes_text(totals['bytes'])}) of {_count(topics, 'topic')} from "
        f"{moment(found.from_ms)} to {moment(found.until_ms)}{dead}, in windows of {span(found.window_ms)}."
    )


def span(length_ms: int) -> str:
    """`2 h`, `90 s`: in the largest unit that it is a whole number of."""
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
    return next(f"{length_ms // unit_ms:,} {name}" for unit_ms, name in units if not length_ms % unit_ms)


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %" if share >= 0.001 or not share else f"{100 * share:.4f} %"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _parts(found: Insight) -> Iterator[str]:
    yield "<h1>Insight: what the log says</h1>"
    yield f"<p>{escape(summary(found))}</p>"
    yield "<h2>Topics</h2>"
    yield _topics(found)
    if found.windows:
        yield from _over_time(found)
    yield from _errors(found)
    yield from _keys(found)
    yield from _cursors(found)
    if len(found.partitions) > len(found.topics):
        yield from _partitions(found)


def _topics(found: Insight) -> str:
    columns = ("topic", "messages", "mean/s", "peak/s", "bytes", *_SIZES, "headers each", "keys", "dead letters")
    rows = [
        (
            row["topic"],
            row["messages"],
            rate(row["messages_per_s"]),
            rate(row["messages_per_s_max"]),
            bytes_text(row["bytes"]),
            *(_size(row, name) for name in ("p50_bytes", "p99_bytes", "max_bytes")),
            f"{row['headers'] / row['messages']:.1f}" if row["messages"] else "–",
            row["keys"],
            f"{row['dead']:,} ({percent(row['dead_share'])})" if row["dead"] else "0",
        )
        for row in found.topics[:_ROWS_SHOWN]
    ]
    return table(columns, rows, text=("topic",)) + _more(len(found.topics))


def rate(per_s: float | None) -> str:
    return "–" if per_s is None else f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:,.3g}"


def _size(row: dict[str, Any], name: str) -> str:
    return bytes_text(row[name]) if row["messages"] else "–"


def _more(rows: int) -> str:
    return f"<p>{rows - _ROWS_SHOWN:,} more are not shown.</p>" if rows > _ROWS_SHOWN else ""


# --- over time ----------------------------------------------------------------------------------------------


def _over_time(found: Insight) -> Iterator[str]:
    bin_s = found.window_ms / 1000
    rates = _lines(found, "messages_per_s")
    if not any(value is not None for line in rates for value in line.values):
        yield "<p>There is one window, which is not over yet, and so there are no rates.</p>"
    else:
        yield "<h2>Messages</h2>"
        yield over_time("messages a second, by topic", "messages/s", bin_s, rates, from_ms=found.from_ms)
        volumes = _lines(found, "bytes_per_s")
        divisor, unit = byte_unit(max(value or 0 for line in volumes for value in line.values))
        scaled = [line._replace(values=_divided(line.values, divisor)) for line in volumes]
        yield "<h2>Volume</h2>"
        yield over_time(f"{unit} a second, by topic", f"{unit}/s", bin_s, scaled, from_ms=found.from_ms)
    sizes = {row["window_ms"]: row for row in found.sizes}
    columns = {name: [sizes.get(at, {}).get(name) for at in _windows(found)] for name in ("p50_bytes", "p99_bytes")}
    divisor, unit = byte_unit(max((value or 0 for values in columns.values() for value in values), default=0))
    yield "<h2>Size of a message</h2><p>Value, key and headers together, of all topics.</p>"
    lines = [
        Series("99 of 100 are up to", "amber", _divided(columns["p99_bytes"], divisor)),
        Series("half are up to", "green", _divided(columns["p50_bytes"], divisor)),
    ]
    yield over_time(f"{unit} of a message", unit, bin_s, lines, from_ms=found.from_ms)


def _divided(values: Sequence[float | None], divisor: float) -> list[float | None]:
    return [None if value is None else value / divisor for value in values]


def _windows(found: Insight) -> range:
    return range(found.from_ms, found.until_ms, found.window_ms)


def _lines(found: Insight, name: str) -> list[Series]:
    """A line for each of the largest topics, and one for what all others have together."""
    order = [row["topic"] for row in found.topics if row["messages"]]
    own = order[:_LINES_MAX] if len(order) > _LINES_MAX + 1 else order[: _LINES_MAX + 1]
    names = [*own, _OTHERS] if len(order) > len(own) else own
    over = [at + found.window_ms <= found.asked_ms for at in _windows(found)]
    values: dict[str, list[float | None]] = {each: [0.0 if is_over else None for is_over in over] for each in names}
    for row in found.windows:
        index = (row["window_ms"] - found.from_ms) // found.window_ms
        if row[name] is not None and row["messages"]:
            line = values[row["topic"] if row["topic"] in own else _OTHERS]
            line[index] = (line[index] or 0.0) + row[name]
    colours = (*_COLOURS, "faint" if _OTHERS in names else "red")
    return [Series(each, colours[place], values[each]) for place, each in enumerate(names)]


# --- errors, keys, readers ------------------------------------------------------------------------------------


def _errors(found: Insight) -> Iterator[str]:
    if not found.errors:
        return
    yield "<h2>Errors</h2>"
    failing = sorted((row for row in found.topics if row["dead"]), key=lambda row: -row["dead"])[:_LINES_MAX]
    # Letters whose messages are not there any more have no share.
    has_shares = all(row["failed"] for row in found.windows if row["dead"])
    name, unit = ("dead_share", "percent") if has_shares else ("dead", f"dead letters in {span(found.window_ms)}")
    if has_shares:
        yield "<p>Messages with dead letters as a share of all of their topic, at the time of the message.</p>"
    else:
        yield "<p>Dead letters at the time of their message, or their own where that is not there any more.</p>"
    values = {(row["topic"], row["window_ms"]): row[name] for row in found.windows}
    nothing, factor = (None, 100) if has_shares else (0, 1)

    def line(topic: str) -> list[float | None]:
        told = (values.get((topic, at), nothing) for at in _windows(found))
        return [None if value is None else factor * value for value in told]

    lines = [Series(row["topic"], _COLOURS[place], line(row["topic"])) for place, row in enumerate(failing)]
    what = "percent of messages that failed" if has_shares else "dead letters in each window"
    yield over_time(what, unit, found.window_ms / 1000, lines, from_ms=found.from_ms)
    rows = [(each["topic"], each["kind"], each["dead"], each["error"]) for each in found.errors[:_ROWS_SHOWN]]
    yield table(("topic", "error", "dead letters", "such as"), rows, text=("topic", "error", "such as"))
    yield _more(len(found.errors))


def _keys(found: Insight) -> Iterator[str]:
    keyed = [row for row in found.topics if row["keys"]]
    if not keyed:
        return
    yield "<h2>Hot keys</h2><p>Messages of a key, and their share of those that have one.</p>"
    for row in keyed[:_TOPICS_WITH_KEYS]:
        topic = row["topic"]
        even = f"as concentrated as {row['even_keys']:,g} that share everything evenly"
        yield f"<h3>{escape(topic)}</h3><p>{_count(row['keys'], 'key')}, {even}.</p>"
        shown = [each for each in found.hot_keys["messages"] if each["topic"] == topic][:_BARS_SHOWN]
        if shown:
            yield bars(
                "blue",
                [(each["key"], each["messages"], f"{each['messages']:,} ({percent(each['share'])})") for each in shown],
            )
        elif not found.left_out.get("keys_by_messages"):
            yield "<p>No key has notably more messages than the others.</p>"
        by_bytes = [each for each in found.hot_keys["bytes"] if each["topic"] == topic][:3]
        sizes = (f"{each['key']} {bytes_text(each['bytes'])} ({percent(each['share'])})" for each in by_bytes)
        if by_bytes:
            yield f"<p>Most bytes: {escape(', '.join(sizes))}</p>"
    if len(keyed) > _TOPICS_WITH_KEYS:
        yield f"<p>{len(keyed) - _TOPICS_WITH_KEYS:,} more topics have keys.</p>"


def _cursors(found: Insight) -> Iterator[str]:
    if not found.cursors:
        return
    yield "<h2>Readers</h2><p>Messages that a cursor has not read yet.</p>"
    behind = [each for each in found.cursors if each["lag"]]
    if len(behind) < len(found.cursors):
        done = len(found.cursors) - len(behind)
        yield f"<p>{done:,} of {_count(len(found.cursors), 'cursor')} have read everything.</p>"
    rows = [(f"{each['cursor']} ({each['topic']})", each["lag"], f"{each['lag']:,}") for each in behind[:_ROWS_SHOWN]]
    if rows:
        yield bars("violet", rows) + _more(len(behind))


def _partitions(found: Insight) -> Iterator[str]:
    yield "<h2>Partitions</h2>"
    columns = ("topic", "partition", "messages", "mean/s", "bytes", *_SIZES)
    rows = [
        (
            row["topic"],
            row["partition"],
            row["messages"],
            rate(row["messages_per_s"]),
            bytes_text(row["bytes"]),
            *(_size(row, name) for name in ("p50_bytes", "p99_bytes", "max_bytes")),
        )
        for row in found.partitions[:_ROWS_SHOWN]
    ]
    yield table(columns, rows, text=("topic",)) + _more(len(found.partitions) + found.left_out.get("partitions", 0))

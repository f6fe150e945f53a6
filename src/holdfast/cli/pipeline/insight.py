"""`holdfast pipeline insight`: what a log says of itself, once or again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import SERVER_DEFAULT, JsonLines, examples
from holdfast.cli.pipeline.options import (
    SETTINGS,
    Conf,
    Config,
    Master,
    Once,
    Server,
    WholeReportTopic,
    conf_pairs,
    report_whole,
)
from holdfast.cli.quantities import bytes_text, duration_s

if TYPE_CHECKING:
    from holdfast.pipelines.frame import Progress, Stop
    from holdfast.pipelines.insight_findings import Insight

_SETTINGS: Final[dict[str, type]] = {
    **SETTINGS,
    "topic": list,
    "topics_like": str,
    "since": str,
    "from": str,
    "window": str,
    "top": int,
    "every": str,
    "out": str,
}
_EVERY_S_DEFAULT: Final = 60.0
_AWAY: Final = "connection_lost"
_TOP_DEFAULT: Final = 10
_TOP_MAX: Final = 1000
_KEYS_SHOWN: Final = 3
_ROWS_SHOWN: Final = 20
# In one table where there is room for all of them.
_COLUMNS: Final = (("messages", "mean/s", "peak/s", "bytes", "lag"), ("p50", "p99", "max", "keys", "dead", "dead %"))
_WIDE: Final = 110
EXAMPLES: Final = examples(
    "holdfast pipeline insight --once",
    "holdfast pipeline insight --topic orders --topic payments --since 1h --window 1m --out report --once",
    "holdfast pipeline insight --topics-like 'orders-.*' --since 1d --every 5m --out report",
    "holdfast pipeline insight --topic orders --from 2026-11-18T06:00:00Z --once --json",
)


def insight(
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="A topic to look at; without any, all of them.")
    ] = None,
    topics_like: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Topics whose whole names match, too.", show_default=False),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Look at what came in this time.", show_default=False)
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Look at what came from then on (ISO 8601).", show_default=False),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long windows are (default: a round time).", show_default=False),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_TOP_MAX, help="Hot keys of each topic (default: 10).", show_default=False
        ),
    ] = None,
    once: Once = False,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="The time from look to look (default: 1m).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write insight.json and insight.html there.", show_default=False)
    ] = None,
    report_topic: WholeReportTopic = None,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    server: Server = None,
    as_json: JsonLines = False,
) -> None:
    """Say what a log has: rates, sizes, hot keys, errors and the lag of readers, for each topic and window of time.

    With --once it looks once; else it looks again and again, and its page, which may stay open, with it.
    """
    from holdfast.pipelines import frame
    from holdfast.pipelines import insight as run

    flags: dict[str, Any] = {"master": master, "conf": conf_pairs(conf), "topic": topic, "topics_like": topics_like}
    flags |= {"since": since, "from": start, "window": window, "top": top, "once": once, "every": every}
    flags |= {"out": None if out is None else str(out), "server": server, "report_topic": report_topic}
    flags |= {"json": as_json}
    chosen_master, spark_conf, own = frame.settings("insight", config, _SETTINGS, flags)
    looks_once = own.get("once", False)
    every_s = duration_s(own["every"]) if "every" in own else _EVERY_S_DEFAULT
    window_ms = round(duration_s(own["window"]) * 1000) if "window" in own else None
    from_ms, ago_ms = _beginning(own)
    _check(own, looks_once=looks_once)
    servers = own.get("server", SERVER_DEFAULT)
    stop = None if looks_once else frame.Stop("look")
    with frame.running("insight", chosen_master, spark_conf, stop, servers=servers) as (spark, progress):
        looks, told = 0, ""

        def look() -> None:
            nonlocal looks, told
            looks, told = looks + 1, ""

            def tell(what: str) -> None:
                progress.tell(what if looks_once else f"look {looks:,}: {what}")

            tell("asking the broker for topics and readers")
            began = time.monotonic()
            found = run(
                spark,
                topics=own.get("topic", []),
                pattern=own.get("topics_like"),
                servers=servers,
                since_ms=from_ms if ago_ms is None else time.time_ns() // 1_000_000 - ago_ms,
                window_ms=window_ms,
                top=own.get("top", _TOP_DEFAULT),
                tell=tell,
            )
            seconds = time.monotonic() - began
            times = {name: getattr(found, name) for name in ("window_ms", "from_ms", "until_ms", "asked_ms")}
            report_whole(own, "insight", {**times, **found.totals, "seconds": round(seconds, 3)})
            told = _told(looks, found, seconds)
            show(
                found, seconds, own.get("out"), as_json=own.get("json", False), again_s=None if looks_once else every_s
            )

        look()
        while stop is not None and not _is_asked_within(every_s, stop, progress, told):
            look_again(look)


def _told(number: int, found: Insight, seconds: float) -> str:
    """A look in words, for the line of progress, as a batch of other pipelines."""
    rate = found.totals["messages"] / max(seconds, 0.001)
    lag = max((each["lag"] for each in found.cursors), default=0)
    return f"look {number:,} done, {rate:,.0f} rows/s, readers' lag at most {lag:,} messages; "


def _is_asked_within(seconds: float, stop: Stop, progress: Progress, told: str) -> bool:
    progress.tell(f"{told}looks again every {seconds:g} s")
    return stop.asked.wait(seconds)


def look_again(look: Callable[[], None]) -> None:
    """A broker that is away is waited for, once there has been one; its page stays as it was."""
    from pyspark.errors import PySparkException

    from holdfast.model.errors import HoldfastError
    from holdfast.pipelines.errors import from_spark

    try:
        look()
    except (HoldfastError, PySparkException) as error:
        failed = error if isinstance(error, HoldfastError) else from_spark(str(error))
        if failed.code != _AWAY:
            raise
        output.clear_line()
        output.note(f"insight: {failed}; looks again")


def _beginning(own: dict[str, Any]) -> tuple[int | None, int | None]:
    """Where to begin: milliseconds since 1970, or how many ago; neither for everything."""
    if "since" in own:
        return None, round(duration_s(own["since"]) * 1000)
    if "from" not in own:
        return None, None
    try:
        when = datetime.fromisoformat(own["from"])
    except ValueError as error:
        raise typer.BadParameter(
            f"{own['from']!r} is no time; write it as 2026-11-18T06:00:00Z", param_hint="'--from'"
        ) from error
    return round(when.replace(tzinfo=when.tzinfo or UTC).timestamp() * 1000), None


def _check(own: dict[str, Any], *, looks_once: bool) -> None:
    from holdfast.pipelines.errors import BadPipelineSetting

    if "since" in own and "from" in own:
        raise BadPipelineSetting("give --since or --from, not both")
    if looks_once and "every" in own:
        raise BadPipelineSetting("--every says when to look again, and --once that nobody does: give one of them")
    if not 1 <= own.get("top", 1) <= _TOP_MAX:
        raise BadPipelineSetting(f"--top is between 1 and {_TOP_MAX}")


def show(found: Insight, seconds: float, out: str | None, *, as_json: bool, again_s: float | None) -> None:
    import msgspec

    from holdfast.pipelines import insight_page

    told: dict[str, Any] = {**found.as_json(), "seconds": round(seconds, 3)}
    if out is not None:
        directory = Path(out)
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory / "insight.json", msgspec.json.encode(told) + b"\n")
        _replace(directory / "insight.html", insight_page.drawn(found, again_s=again_s).encode())
        told["page"] = str(directory / "insight.html")
    output.clear_line()
    if as_json:
        output.print_json(told)
        return
    _print(found)
    if out is not None:
        output.console().print(output.printable(f"page: {told['page']}"), markup=False)


def _replace(file: Path, content: bytes) -> None:
    """Whoever has the file open sees the old one or the new one, never a half."""
    half = file.with_name(f".{file.name}.{os.getpid()}")
    half.write_bytes(content)
    half.replace(file)


def _print(found: Insight) -> None:
    from holdfast.pipelines.insight_page import percent, rate, summary

    console = output.console()
    for numbers in _COLUMNS if console.width < _WIDE else (sum(_COLUMNS, ()),):
        table = output.table("topic", *numbers, numbers=numbers)
        for row in found.topics[:_ROWS_SHOWN]:
            sizes = {
                name: bytes_text(row[f"{name}_bytes"]) if row["messages"] else "–" for name in ("p50", "p99", "max")
            }
            cells = {
                "messages": f"{row['messages']:,}",
                "mean/s": rate(row["messages_per_s"]),
                "peak/s": rate(row["messages_per_s_max"]),
                "bytes": bytes_text(row["bytes"]),
                "lag": "–" if row["lag_max"] is None else f"{row['lag_max']:,}",
                **sizes,
                "keys": f"{row['keys']:,}",
                "dead": f"{row['dead']:,}",
                "dead %": percent(row["dead_share"]),
            }
            table.add_row(row["topic"], *(cells[name] for name in numbers))
        console.print(table)
    if len(found.topics) > _ROWS_SHOWN:
        console.print(f"and {len(found.topics) - _ROWS_SHOWN:,} topics more")
    for line in (*_lines(found), summary(found)):
        console.print(output.printable(line), markup=False, soft_wrap=True)


def _lines(found: Insight) -> Iterator[str]:
    from holdfast.pipelines.insight_page import percent

    for row in (each for each in found.hot_keys["messages"] if each["rank"] <= _KEYS_SHOWN):
        yield f"hot key of {row['topic']}: {row['key']} ({row['messages']:,} messages, {percent(row['share'])})"
    hot = {each["topic"] for each in found.hot_keys["messages"]}
    for row in found.topics[:_ROWS_SHOWN] if not found.left_out.get("keys_by_messages") else ():
        if row["keys"] and row["topic"] not in hot:
            yield f"hot key of {row['topic']}: none, no key has notably more messages than the others"
    for each in found.errors[:_ROWS_SHOWN]:
        yield f"errors of {each['topic']}: {each['dead']:,} {each['kind']}, as {each['error']}"
    for each in found.cursors[:_ROWS_SHOWN]:
        if each["lag"]:
            yield f"behind in {each['topic']}: {each['cursor']}, {each['lag']:,} messages"

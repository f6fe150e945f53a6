"""`holdfast pipeline archive`: topics to Parquet files."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import SERVER_DEFAULT, Json, examples
from holdfast.cli.pipeline.options import (
    STREAM_SETTINGS,
    Conf,
    Config,
    Group,
    Interval,
    Master,
    Once,
    ReportTopic,
    Server,
    conf_pairs,
    stream_arguments,
)
from holdfast.cli.quantities import duration_s, plural, size_bytes

EXAMPLES: Final = examples(
    "holdfast pipeline archive orders payments --to archive --once",
    "holdfast pipeline archive --pattern 'orders-.*' --to /mnt/shared/archive --interval 1m",
    "holdfast pipeline archive --config pipelines.toml --master spark://host:7077",
)
_SETTINGS: Final[dict[str, type]] = {
    **{name: kind for name, kind in STREAM_SETTINGS.items() if name != "checkpoint"},
    "topics": list,
    "pattern": str,
    "to": str,
    "batch_size": str,
    "file_size": str,
    "compact_files": int,
    "keep_replaced": str,
    "allow_gaps": bool,
}


def archive(
    topics: Annotated[list[str] | None, typer.Argument(help="The topics to archive.", show_default=False)] = None,
    to: Annotated[
        str | None, typer.Option(metavar="DIR", help="The archive's directory; it is made.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="All topics whose whole names match.", show_default=False)
    ] = None,
    once: Once = False,
    interval: Interval = None,
    batch_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="About what a batch takes (default: 256MiB).", show_default=False)
    ] = None,
    file_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Larger files stay as they are (default: 128MiB).", show_default=False),
    ] = None,
    compact_files: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="So many files of an hour become one (default: 8).", show_default=False),
    ] = None,
    keep_replaced: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long queries may read what was compacted (default: 1h).", show_default=False
        ),
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Go on behind messages that expired or are damaged.")
    ] = False,
    group: Group = None,
    report_topic: ReportTopic = None,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Write topics to Parquet files by topic, date and hour: every message once, whatever dies meanwhile.

    The archive itself says how far it is: start it again, and it goes on there.
    """
    flags: dict[str, Any] = {**locals(), "conf": conf_pairs(conf), "json": as_json}
    from holdfast.pipelines import frame
    from holdfast.pipelines.archive_settings import ArchiveSettings
    from holdfast.pipelines.errors import BadPipelineSetting

    chosen_master, spark_conf, own = frame.settings("archive", config, _SETTINGS, flags)
    if "to" not in own:
        raise BadPipelineSetting("where to? Give the archive's directory with --to")
    servers = own.get("server", SERVER_DEFAULT)
    names = ("pattern", "group", "compact_files", "allow_gaps")
    given: dict[str, Any] = {name: own[name] for name in names if name in own}
    sizes = {"batch_bytes": "batch_size", "file_bytes": "file_size"}
    given |= {name: size_bytes(own[setting]) for name, setting in sizes.items() if setting in own}
    given |= {"keep_replaced_s": duration_s(own["keep_replaced"])} if "keep_replaced" in own else {}
    settings = ArchiveSettings(servers=servers, topics=tuple(map(str, own.get("topics", ()))), **given)
    how = stream_arguments(own, servers)
    stop = frame.Stop()
    with frame.running("archive", chosen_master, spark_conf, stop, servers=servers) as (spark, progress):
        from holdfast.pipelines.archiving import archive_topics

        done = archive_topics(spark, own["to"], settings, tell=progress.tell, stop=stop.asked, **how)
        seconds = progress.seconds
    if own.get("json", False):
        told = {"batches": done.batches, "messages": done.rows, "lag": done.lag, "stopped": done.is_stopped}
        output.print_json({**told, "seconds": round(seconds, 3)})
    else:
        rate = f"{done.rows / seconds:,.0f} a second" if done.rows else "nothing was new"
        output.console().print(
            f"{plural(done.rows, 'message')} archived in {plural(done.batches, 'batch')}, {rate}; "
            f"{plural(done.lag, 'message')} {'wait' if done.lag != 1 else 'waits'}"
        )
    if done.is_stopped and own.get("once", False):
        raise typer.Exit(stop.exit_code)

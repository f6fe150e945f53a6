"""`holdfast pipeline transform`: from a topic to a topic, through a function or a statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import SERVER_DEFAULT, Json, examples
from holdfast.cli.pipeline.options import (
    STREAM_SETTINGS,
    Checkpoint,
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
from holdfast.cli.quantities import duration_s

if TYPE_CHECKING:
    from holdfast.pipelines.streams import StreamRun
    from holdfast.pipelines.transform_plans import Transform

_SETTINGS: Final[dict[str, type]] = {
    **STREAM_SETTINGS,
    "source": str,
    "target": str,
    "function": str,
    "sql": str,
    "stateful": bool,
    "window": str,
    "watermark": str,
    "state_ttl": str,
    "event_time": str,
    "batches": str,
    "batch_rows": int,
    "batch_messages": int,
    "tasks": int,
    "message_bytes_max": int,
    "dead_max": str,
    "call_timeout": str,
    "starting": str,
}
_STARTS: Final = ("earliest", "latest")
# A state's partitions are those of its first start. Spark's 200 are slow on a few cores, and too few on none of ours.
_CONF: Final = {"spark.sql.shuffle.partitions": "16"}


def transform(
    source: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="The topic that is read.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="The topic that results go to.", show_default=False)
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A Python function: package.module:name or path/to/file.py:name.", show_default=False
        ),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(metavar="QUERY", help="A statement instead: SELECT … FROM messages.", show_default=False),
    ] = None,
    stateful: Annotated[
        bool, typer.Option("--stateful", help="The function has a state for each key: (state, batch).")
    ] = False,
    window: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="A state for each key and stretch of time.", show_default=False),
    ] = None,
    watermark: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How late messages may come to their window.", show_default=False),
    ] = None,
    state_ttl: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Forget a key that had no message for so long.", show_default=False),
    ] = None,
    event_time: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION", help="A message's time, in SQL (default: its timestamp).", show_default=False
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="What the function gets: arrow (default) or pandas.", show_default=False),
    ] = None,
    batch_rows: Annotated[
        int | None,
        typer.Option(metavar="N", help="Messages that the function gets at once, at most (10000).", show_default=False),
    ] = None,
    batch_messages: Annotated[
        int | None,
        typer.Option(metavar="N", help="Messages of one transaction, at most (100000).", show_default=False),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tasks of a batch, at least (default: Spark's cores).", show_default=False),
    ] = None,
    message_bytes_max: Annotated[
        int | None,
        typer.Option(metavar="N", help="How large a message may be: the brokers' setting.", show_default=False),
    ] = None,
    dead_max: Annotated[
        str | None,
        typer.Option(metavar="N|P%", help="Stop before a batch with more dead letters is written.", show_default=False),
    ] = None,
    call_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long one call of the function may take (no limit).", show_default=False
        ),
    ] = None,
    starting: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Without a checkpoint: earliest (default) or latest.", show_default=False),
    ] = None,
    once: Once = False,
    interval: Interval = None,
    checkpoint: Checkpoint = None,
    group: Group = None,
    report_topic: ReportTopic = None,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Make messages of a topic out of those of another one, with a Python function or SQL, each exactly once.

    A message for which that raises goes to SOURCE.dead, with the error in its headers; the others go on.
    """
    flags: dict[str, Any] = {**locals(), "conf": conf_pairs(conf), "json": as_json}
    from holdfast.pipelines import frame, reaching
    from holdfast.pipelines.errors import spark_not_installed

    try:
        from holdfast.pipelines.transform_query import BATCH_MESSAGES_MAX_DEFAULT, prepare, run_transform
    except ModuleNotFoundError as missing:
        raise spark_not_installed(missing) from missing

    chosen_master, spark_conf, own = frame.settings("transform", config, _SETTINGS, flags)
    servers = own.get("server", SERVER_DEFAULT)
    wanted = _wanted(own)
    arguments = stream_arguments(own, servers)
    reaching.reach_brokers(servers)
    prepare(servers, wanted)
    stop = frame.Stop()
    with frame.running("transform", chosen_master, {**_CONF, **spark_conf}, stop) as (spark, progress):
        done = run_transform(
            spark,
            wanted,
            servers=servers,
            checkpoint=own["checkpoint"],
            group=own.get("group", f"transform-{wanted.target}"),
            starting=own.get("starting", _STARTS[0]),
            batch_messages_max=own.get("batch_messages", BATCH_MESSAGES_MAX_DEFAULT),
            tasks=own.get("tasks"),
            tell=progress.tell,
            stop=stop.asked,
            **arguments,
        )
        seconds = progress.seconds
    _conclude(wanted, done, seconds, as_json=own.get("json", False))
    if done.is_stopped and arguments["once"]:
        raise typer.Exit(stop.exit_code)


def _wanted(own: dict[str, Any]) -> Transform:
    """What the settings ask for, looked at before Spark is started."""
    from holdfast.model.limits import MESSAGE_BYTES_MAX
    from holdfast.pipelines.errors import BadPipelineSetting
    from holdfast.pipelines.made_rows import ARROW
    from holdfast.pipelines.transform_functions import find
    from holdfast.pipelines.transform_plans import BATCH_ROWS_MAX_DEFAULT, Transform

    for name, what in (("source", "is read"), ("target", "results go to"), ("checkpoint", "keeps how far it is")):
        if name not in own:
            raise BadPipelineSetting(f"what {what}? Give --{name}")
    if own.get("starting", _STARTS[0]) not in _STARTS:
        raise BadPipelineSetting(f"starting is {' or '.join(_STARTS)}, not {own['starting']}")
    for name in ("batch_messages", "tasks"):
        if own.get(name, 1) < 1:
            raise BadPipelineSetting(f"{name} is at least 1")
    durations = ("window", "watermark", "state_ttl", "call_timeout")
    times = {f"{name}_s": duration_s(own[name]) for name in durations if name in own}
    is_stateful = own.get("stateful", False)
    return Transform(
        source=own["source"],
        target=own["target"],
        function=find(own["function"], is_stateful=is_stateful) if "function" in own else None,
        sql=own.get("sql"),
        is_stateful=is_stateful,
        event_time=own.get("event_time"),
        batches=own.get("batches", ARROW),
        batch_rows_max=own.get("batch_rows", BATCH_ROWS_MAX_DEFAULT),
        message_bytes_max=own.get("message_bytes_max", MESSAGE_BYTES_MAX),
        dead_max=own.get("dead_max"),
        **times,
    )


def _conclude(wanted: Transform, done: StreamRun, seconds: float, *, as_json: bool) -> None:
    made, dead = done.counts.get("made", 0), done.counts.get("dead", 0)
    if as_json:
        output.print_json(
            {
                "source": wanted.source,
                "target": wanted.target,
                "batches": done.batches,
                "read": done.rows,
                "made": made,
                "dead": dead,
                "late": done.late,
                "lag": done.lag,
                "stopped": done.is_stopped,
                "seconds": round(seconds, 3),
            }
        )
        return
    console = output.console()
    console.print(f"{done.rows:,} messages of {wanted.source} became {made:,} of {wanted.target}, in {seconds:.0f} s")
    if dead:
        console.print(f"{dead:,} raised: see {wanted.source}.dead", style="red")
    if done.late:
        console.print(f"{done.late:,} came too late for their window and were left out", style="red")


TRANSFORM_EPILOG: Final = examples(
    "holdfast pipeline transform --source orders --target large-orders --checkpoint large --function shop.py:large",
    "holdfast pipeline transform --source orders --target teas --checkpoint teas --once"
    " --sql \"SELECT key, value FROM messages WHERE CAST(value AS STRING) LIKE '%tea%'\"",
    "holdfast pipeline transform --config transform.toml --master spark://host:7077",
)

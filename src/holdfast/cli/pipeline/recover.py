"""`holdfast pipeline recover`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import Json, examples
from holdfast.cli.pipeline.options import (
    SETTINGS,
    AlwaysOnce,
    Conf,
    Config,
    Master,
    WholeReportTopic,
    conf_pairs,
    report_whole,
)
from holdfast.cli.quantities import plural
from holdfast.model.errors import DataDirectoryError, Unavailable

if TYPE_CHECKING:
    from holdfast.pipelines.recover_run import Recovered

EXIT_SET_ASIDE: Final = 1
_SETTINGS: Final[dict[str, type]] = {
    **SETTINGS,
    "directories": list,
    "store": str,
    "failed": bool,
    "allow_duplicates": bool,
    "order_by": str,
    "partitions": int,
    "report_server": str,
}

EPILOG: Final = examples(
    "holdfast pipeline recover /mnt/spills/* --store postgresql://app@db.example.org/shop",
    "holdfast pipeline recover n1/spill n2/spill --server 127.0.0.1:8090,127.0.0.1:8092 --json",
    "holdfast pipeline recover --config recover.toml --master spark://host:7077",
)


def recover(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="Spill directories of brokers that do not run.", show_default=False)
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The PostgreSQL to store in: postgresql://USER@HOST/DATABASE; or HOLDFAST_STORE in the environment.",
            show_default=False,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…", help="Or brokers, of any store, to store through.", show_default=False),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Also what is in failed/ and can be read, before everything else.")
    ] = False,
    allow_duplicates: Annotated[
        bool,
        typer.Option(
            "--allow-duplicates",
            help="With --server: also messages without ids, which their brokers' PostgreSQL may have stored.",
        ),
    ] = False,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Order within a partition: time, the messages' own, or kept, when brokers took them.",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="NUMBER", help="Of topics that are missing and made. [default: 1]", show_default=False
        ),
    ] = None,
    once: AlwaysOnce = False,
    report_topic: WholeReportTopic = None,
    report_server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The broker that has that topic, if not --server.", show_default=False),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Store what many brokers have spilled, in bulk: each message once, in order, by all cores there are.

    Safe to kill and to start again. Files go to recovered/ when everything is stored.

    Exit code 1: some lines are not stored; they are in failed/, each with the reason.
    """
    from holdfast.node import logs
    from holdfast.pipelines import frame
    from holdfast.pipelines import recover as run
    from holdfast.pipelines.errors import BadPipelineSetting
    from holdfast.pipelines.recover_settings import ORDER_DEFAULT, check

    flags: dict[str, Any] = {"master": master, "conf": conf_pairs(conf), "store": store, "server": server}
    flags |= {"directories": [str(each) for each in directories or []], "failed": failed}
    flags |= {"order_by": order_by, "partitions": partitions, "allow_duplicates": allow_duplicates}
    flags |= {"once": once, "report_topic": report_topic, "report_server": report_server, "json": as_json}
    chosen_master, spark_conf, own = frame.settings("recover", config, _SETTINGS, flags)
    if not own.get("directories"):
        raise BadPipelineSetting("which directories? Name the spills of brokers, such as n1/spill n2/spill")
    if "store" not in own and "server" not in own and "HOLDFAST_STORE" in os.environ:
        own["store"] = os.environ["HOLDFAST_STORE"]
    check(own.get("store"), own.get("server"), own.get("order_by", ORDER_DEFAULT), own.get("partitions", 1))
    if "report_topic" in own and "report_server" not in own and "server" not in own:
        raise BadPipelineSetting("which broker has the topic of --report-topic? Give --report-server HOST:PORT")
    if missing := [each for each in own["directories"] if not Path(each).is_dir()]:
        raise DataDirectoryError(f"there is no spill in {missing[0]}: name directories of brokers' spills")
    # The error that ends the command says it all: a broker's log would have it try again.
    logs.configure("critical", "text")
    # Rows of Spark's are blocks of lines here.
    running = frame.running("recover", chosen_master, spark_conf, has_rows=False, servers=own.get("server"))
    with running as (spark, progress):
        try:
            recovered = run(
                spark,
                own["directories"],
                store=own.get("store"),
                servers=own.get("server"),
                failed=own.get("failed", False),
                allow_duplicates=own.get("allow_duplicates", False),
                order_by=own.get("order_by", ORDER_DEFAULT),
                partitions=own.get("partitions", 1),
                tell=progress.tell,
            )
        except Unavailable as away:
            if "store" not in own:
                raise
            raise Unavailable(
                f"{away.message}. Start the database, or correct --store, and run the same again: it goes on where it "
                "was, and stores nothing twice"
            ) from away
        seconds = progress.seconds
    report_whole(own, "recover", {**recovered.counts, "seconds": round(seconds, 3)})
    conclude(recovered, seconds, own["directories"], as_json=own.get("json", False))
    if recovered.failed:
        raise typer.Exit(EXIT_SET_ASIDE)


def conclude(recovered: Recovered, seconds: float, directories: Sequence[str], *, as_json: bool) -> None:
    from holdfast.recovery.spill_files import RECOVERED

    counts = recovered.counts
    if as_json:
        output.print_json({**recovered.as_json(), "seconds": round(seconds, 3)})
        return
    if not counts["files"]:
        done = sum(each.is_file() for directory in directories for each in (Path(directory) / RECOVERED).glob("**/*"))
        print(f"nothing waits; {plural(done, 'file')} {'is' if done == 1 else 'are'} in {RECOVERED}/")
        _tell_of_failed(recovered, directories)
        return
    columns = ("events", "stored", "duplicates", "already_stored")
    table = output.table("queue", *columns, numbers=columns)
    for queue, counted in sorted(recovered.queues.items()):
        table.add_row(queue, *(f"{counted[name]:,}" for name in columns))
    if recovered.queues:
        output.console().print(table)
    rate = counts["events"] / max(seconds, 0.001)
    print(
        f"{plural(counts['files'], 'file')}, {plural(counts['events'], 'event')} in {seconds:.1f} s ({rate:,.0f}/s): "
        f"{counts['stored']:,} stored, {plural(counts['duplicates'], 'duplicate')}, "
        f"{counts['already_stored']:,} stored before, {counts['set_aside']:,} set aside"
    )
    _tell_of_failed(recovered, directories)


def _tell_of_failed(recovered: Recovered, directories: Sequence[str]) -> None:
    from holdfast.backends.spill import files
    from holdfast.cli.spill import command

    if count := recovered.failed:
        are = "line is" if count == 1 else "lines are"
        where = [Path(each) for each in directories if files.failed_files(Path(each))]
        commands = ", ".join(f"`{command('export', each)} --failed`" for each in where)
        output.note(f"holdfast: {count:,} {are} in failed/; see why with {commands}")

"""Options that pipelines share: where Spark runs, a file with settings, and how a streaming one runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from holdfast.cli.options import SERVER_DEFAULT
from holdfast.cli.quantities import duration_s

Master = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER",
        help="Where Spark runs: local\\[*], local\\[2], spark://HOST:PORT, yarn, …",
        show_default=False,
    ),
]
# As everywhere, but for the default: a file's setting stands behind the option, and before that.
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT[,HOST:PORT]",
        envvar="HOLDFAST_SERVER",
        help="The HTTP address of the broker, or of several that are one.",
        show_default=SERVER_DEFAULT,
    ),
]
Conf = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark's own.")]
Config = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, metavar="FILE", help="A TOML file with settings; flags go before it."),
]
Once = Annotated[bool, typer.Option("--once", help="End when everything that is there now is done.")]
# For those that have no other way, so that whoever starts pipelines need not know which ones they are.
AlwaysOnce = Annotated[
    bool, typer.Option("--once", help="Changes nothing, and is there as in other pipelines: this one always runs once.")
]
Interval = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="The time from batch to batch (default: 10s).", show_default=False),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Where it keeps how far it is; each pipeline its own.", show_default=False),
]
Group = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The cursor that shows its progress and lag.", show_default=False),
]
ReportTopic = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Publish each batch's figures there, as JSON.", show_default=False),
]
WholeReportTopic = Annotated[
    str | None,
    typer.Option("--report-topic", metavar="TOPIC", help="Publish the figures there, as JSON.", show_default=False),
]

# The same in a file, as `frame.settings` wants them: those of all pipelines, and of streaming ones.
SETTINGS: Final[dict[str, type]] = {"once": bool, "report_topic": str, "server": str, "json": bool}
STREAM_SETTINGS: Final[dict[str, type]] = {
    **SETTINGS,
    "interval": str,
    "checkpoint": str,
    "group": str,
}


def conf_pairs(given: list[str] | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in given or []]
    if bad := [name for name, equals, _ in pairs if not equals or not name]:
        raise typer.BadParameter(f"{bad[0]!r} is no setting; write NAME=VALUE", param_hint="'--conf'")
    return {name: value for name, _, value in pairs}


def report_whole(own: Mapping[str, Any], name: str, figures: Mapping[str, Any]) -> None:
    """Publish the figures of a pipeline that has no batches, where its settings ask for that."""
    from holdfast.pipelines.streams import Reports

    if "report_topic" in own:
        servers = own.get("report_server", own.get("server", SERVER_DEFAULT))
        with contextlib.closing(Reports(servers, own["report_topic"])) as reports:
            reports.publish_whole(name, figures)


def stream_arguments(own: Mapping[str, Any], servers: str) -> dict[str, Any]:
    """What `streams.run` is told of a pipeline's settings: `once`, `interval_s` and `reports`."""
    from holdfast.pipelines.streams import INTERVAL_S_DEFAULT, Reports

    reports = Reports(servers, own["report_topic"]) if "report_topic" in own else None
    interval_s = duration_s(own["interval"]) if "interval" in own else INTERVAL_S_DEFAULT
    return {"once": own.get("once", False), "interval_s": interval_s, "reports": reports}

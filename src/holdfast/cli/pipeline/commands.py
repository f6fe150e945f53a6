"""The commands of `holdfast pipeline`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import SERVER_DEFAULT, Json, examples
from holdfast.cli.pipeline import archive as archive_command
from holdfast.cli.pipeline import insight as insight_command
from holdfast.cli.pipeline import recover as recover_command
from holdfast.cli.pipeline import transform as transform_command
from holdfast.cli.pipeline.arguments import ManyValues
from holdfast.cli.pipeline.options import (
    SETTINGS,
    AlwaysOnce,
    Conf,
    Config,
    Master,
    Server,
    WholeReportTopic,
    conf_pairs,
    report_whole,
)

if TYPE_CHECKING:
    from holdfast.pipelines.audit_verdict import Verdict

app = typer.Typer(help="Data pipelines on Spark, on this machine or on a cluster.", no_args_is_help=True)
app.command("archive", epilog=archive_command.EXAMPLES)(archive_command.archive)
app.command("insight", epilog=insight_command.EXAMPLES)(insight_command.insight)
app.command("recover", epilog=recover_command.EPILOG)(recover_command.recover)
app.command("transform", epilog=transform_command.TRANSFORM_EPILOG)(transform_command.transform)

EXIT_FLAWED: Final = 1
_EXAMPLES_SHOWN: Final = 3
_AUDIT_SETTINGS: Final[dict[str, type]] = {
    **SETTINGS,
    "sent": list,
    "received": list,
    "sent_topic": list,
    "received_topic": list,
    "every_receiver": bool,
    "allow": list,
    "out": str,
}


@app.command(
    "audit",
    cls=ManyValues,
    epilog=examples(
        "holdfast pipeline audit --sent sent.ndjson --received received.ndjson",
        "holdfast pipeline audit --sent runs/*/sent.ndjson --received runs/*/received.ndjson --json",
        "holdfast pipeline audit --sent sent.ndjson --received-topic orders --out report",
        "holdfast pipeline audit --config audit.toml --master spark://host:7077",
    ),
)
def audit(
    sent: Annotated[
        list[str] | None, typer.Option(metavar="FILE…", help="Records of what was sent: files, directories, patterns.")
    ] = None,
    received: Annotated[
        list[str] | None, typer.Option(metavar="FILE…", help="Records of what was received, likewise.")
    ] = None,
    sent_topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="What stands in a topic counts as sent and acknowledged.")
    ] = None,
    received_topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="What stands in a topic counts as received.")
    ] = None,
    every_receiver: Annotated[
        bool,
        typer.Option("--every-receiver", help="Lost is also what came to some receivers of its topic and not to all."),
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLAW", help="End with 0 all the same: lost, duplicated, out_of_order, phantom, malformed."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write audit.json and audit.html there.", show_default=False)
    ] = None,
    once: AlwaysOnce = False,
    report_topic: WholeReportTopic = None,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Say which messages were lost, duplicated, out of order or never sent, from records of both sides.

    `publish`, `subscribe` and the demos write such records with `--record`.

    Exit code 1: something was, or a line is no record.
    """
    from holdfast.pipelines import audit as run
    from holdfast.pipelines import frame
    from holdfast.pipelines.errors import BadPipelineSetting

    flags: dict[str, Any] = {"master": master, "conf": conf_pairs(conf), "sent": sent, "received": received}
    flags |= {"sent_topic": sent_topic, "received_topic": received_topic, "every_receiver": every_receiver}
    flags |= {"allow": allow, "out": None if out is None else str(out), "server": server}
    flags |= {"report_topic": report_topic, "once": once, "json": as_json}
    chosen_master, spark_conf, own = frame.settings("audit", config, _AUDIT_SETTINGS, flags)
    allowed = own.get("allow", [])
    from holdfast.pipelines.flaws import FLAWS

    if unknown := [name for name in allowed if name not in FLAWS]:
        raise BadPipelineSetting(f"--allow {unknown[0]}: there are {', '.join(FLAWS)}")
    for side in ("sent", "received"):
        if not own.get(side) and not own.get(f"{side}_topic"):
            raise BadPipelineSetting(f"what was {side}? Give records with --{side}, or a topic with --{side}-topic")
    servers = own.get("server", SERVER_DEFAULT)
    asked = servers if own.get("sent_topic") or own.get("received_topic") else None
    with frame.running("audit", chosen_master, spark_conf, servers=asked) as (spark, progress):
        verdict = run(
            spark,
            sent=own.get("sent", []),
            received=own.get("received", []),
            sent_topics=own.get("sent_topic", []),
            received_topics=own.get("received_topic", []),
            servers=servers,
            every_receiver=own.get("every_receiver", False),
            tell=progress.tell,
        )
        seconds = progress.seconds
    figures = {name: value for name, value in verdict.as_json().items() if isinstance(value, int)}
    report_whole(own, "audit", {**figures, "latency_ms": verdict.latency_ms, "seconds": round(seconds, 3)})
    place = Path(own["out"]) if "out" in own else None
    conclude(verdict, seconds, place, as_json=own.get("json", False), allowed=allowed)
    if not verdict.is_flawless(allowed):
        raise typer.Exit(EXIT_FLAWED)


def conclude(verdict: Verdict, seconds: float, out: Path | None, *, as_json: bool, allowed: Sequence[str] = ()) -> None:
    import msgspec

    from holdfast.pipelines import audit_page

    found = {**verdict.as_json(), "seconds": round(seconds, 3)}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "audit.json").write_bytes(msgspec.json.encode(found) + b"\n")
        (out / "audit.html").write_text(audit_page.drawn(verdict, allowed), "utf-8")
        found["page"] = str(out / "audit.html")
    if as_json:
        output.print_json(found)
        return
    console = output.console()
    columns = ("sent", "acknowledged", "received", "lost", "duplicated", "out_of_order", "phantom")
    # Of a width that leaves room for ten digits in 80 columns.
    shorter = {"acknowledged": "acked", "duplicated": "dupl.", "out_of_order": "out of\norder"}
    words = tuple(shorter.get(name, name) for name in columns)
    table = output.table("topic", "part", *words, numbers=words)
    for row in verdict.topics:
        table.add_row(
            row["topic"],
            "–" if row["partition"] is None else str(row["partition"]),
            *(f"{row[name]:,}" for name in columns),
        )
    table.add_row("all", "", *(f"{verdict.counts[name]:,}" for name in columns), style="bold")
    console.print(table)
    for name, shown in verdict.examples.items():
        for each in shown[:_EXAMPLES_SHOWN]:
            told = f"{name.replace('_', ' ')}: {msgspec.json.encode(each).decode()}"
            console.print(output.printable(told), markup=False, soft_wrap=True)
        told_of = sum(each["copies"] - 1 if name == "duplicated" else 1 for each in shown[:_EXAMPLES_SHOWN])
        if told_of < verdict.counts[name]:
            console.print(f"{name.replace('_', ' ')}: {told_of:,} of {verdict.counts[name]:,} are shown")
    latency = ", ".join(
        f"{name} {value} ms" for name, value in verdict.latency_ms.items() if name.startswith("p") and value is not None
    )
    if latency:
        console.print(f"latency, if both clocks agree: {latency}")
    colour = "green" if verdict.is_flawless(allowed) else "red"
    console.print(audit_page.summary(verdict, allowed), style=colour, soft_wrap=True)
    if out is not None:
        console.print(output.printable(f"page: {out / 'audit.html'}"), markup=False)

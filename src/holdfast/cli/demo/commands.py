"""The commands of `holdfast demo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import Json, examples
from holdfast.cli.quantities import duration_s, rate_per_s

if TYPE_CHECKING:
    from holdfast.cli.demo.cluster_score import ClusterScore
    from holdfast.cli.demo.failover_score import FailoverScore
    from holdfast.cli.demo.outage_score import OutageScore
    from holdfast.cli.demo.play import Score

Record = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write sent.ndjson and received.ndjson for `holdfast pipeline audit`."),
]

app = typer.Typer(help="See what Holdfast is for.", no_args_is_help=True)

EXIT_LOST: Final = 1


@app.command("broker", epilog=examples("holdfast demo broker", "holdfast demo broker --seconds 40 --json"))
def broker(
    seconds: Annotated[float, typer.Option(min=3, max=3600, metavar="N", help="How long to publish.")] = 13.0,
    rate: Annotated[float, typer.Option(parser=rate_per_s, metavar="NUMBER", help="Messages a second.")] = "10",  # type: ignore[assignment]
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Publish 1, 2, 3, … to a broker of its own, kill it half way, restart it, and count what was lost.

    Uses a temporary directory and free ports. Exit code 1: an acknowledged message was lost.
    """
    import asyncio
    import tempfile

    from holdfast.cli.demo.play import Score, perform
    from holdfast.cli.demo.process import BrokerProcess
    from holdfast.cli.demo.view import View, drawn
    from holdfast.storage.doctor import examine

    score = Score()
    view = View(lambda seconds: drawn(score, seconds), quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as directory, view.shown():
        process = BrokerProcess(Path(directory))
        try:
            asyncio.run(perform(process, seconds, rate, score, view.tell))
        finally:
            process.kill()
        findings = [finding.kind.value for finding in examine(process.data).problems]
    score.ledger.write(record)
    _conclude(score, findings, as_json=as_json)


def _conclude(score: Score, findings: list[str], *, as_json: bool) -> None:
    from holdfast.cli.demo import view

    if as_json:
        output.print_json(
            {
                "sent": score.sent,
                "acknowledged": len(score.acknowledged),
                "readers": {name: verdict._asdict() for name, verdict in score.verdicts().items()},
                "lost": score.lost,
                "data_directory": findings or "clean",
            }
        )
    else:
        console = output.console()
        console.print(view.table(score))
        found = ", ".join(findings) if findings else "all is well"
        console.print(f"data directory after it all: {found}")
        if score.lost:
            console.print(f"[red]{score.lost} acknowledged messages were lost.[/red]")
        else:
            console.print("[green]The broker was killed in the middle, and no acknowledged message was lost.[/green]")
    if score.lost:
        raise typer.Exit(EXIT_LOST)


@app.command(
    "cluster",
    epilog=examples(
        "holdfast demo cluster",
        "holdfast demo cluster --seconds 60 --rate 1000 --kill-after 20 --back-after 40 --out pictures",
        "holdfast demo cluster --nodes 5 --json",
    ),
)
def cluster(
    nodes: Annotated[int, typer.Option(min=3, max=9, metavar="N", help="How many nodes.")] = 3,
    seconds: Annotated[float, typer.Option(min=3, max=3600, metavar="N", help="How long to publish.")] = 20.0,
    rate: Annotated[
        float, typer.Option(parser=rate_per_s, metavar="NUMBER", help="Messages a second, of all publishers together.")
    ] = "200",  # type: ignore[assignment]
    kill_after: Annotated[
        float, typer.Option(min=0.5, metavar="N", help="When the leader is killed, in seconds from the start.")
    ] = 5.0,
    back_after: Annotated[
        float, typer.Option(min=1, metavar="N", help="When it is started again, in seconds from the start.")
    ] = 10.0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the picture and the verdict go; made if it is not there.")
    ] = Path("holdfast-demo"),
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Publish to a cluster of its own through every node, kill the leader, bring it back, and count what was lost.

    Uses a temporary directory and free ports. Draws what was acknowledged and received over time.

    Exit code 1: something that was acknowledged was lost or duplicated.
    """
    if not kill_after < back_after < seconds:
        raise typer.BadParameter(
            f"--kill-after ({kill_after:g}) must come before --back-after ({back_after:g}), and that before --seconds "
            f"({seconds:g})"
        )
    import asyncio

    from holdfast.cli.demo import cluster_view, timeline
    from holdfast.cli.demo.cluster_play import Plan, perform
    from holdfast.cli.demo.cluster_score import ClusterScore
    from holdfast.cli.demo.view import View
    from holdfast.testing import LocalCluster

    out.mkdir(parents=True, exist_ok=True)
    score = ClusterScore()
    view = View(lambda passed_s: cluster_view.drawn(score, passed_s), quiet=as_json)
    plan = Plan(seconds=seconds, rate=rate, kill_after_s=kill_after, back_after_s=back_after)
    with view.shown():
        view.tell(f"starting {nodes} nodes")
        with LocalCluster(nodes) as running:
            asyncio.run(perform(running, plan, score, view.tell))
    shown = (cluster_view.table(score), cluster_view.summary(score))
    score.ledger.write(record)
    _conclude_with_picture("cluster", score, timeline.drawn(score), shown, out, as_json=as_json)


@app.command(
    "failover",
    epilog=examples(
        "holdfast demo failover",
        "holdfast demo failover --kill-after 5s --then 5s --rate 100 --out pictures",
        "holdfast demo failover --json",
    ),
)
def failover(
    kill_after: Annotated[
        float, typer.Option(parser=duration_s, metavar="DURATION", help="When the primary is killed.")
    ] = "30s",  # type: ignore[assignment]
    then: Annotated[
        float, typer.Option(parser=duration_s, metavar="DURATION", help="How long to go on after that.")
    ] = "10s",  # type: ignore[assignment]
    rate: Annotated[float, typer.Option(parser=rate_per_s, metavar="NUMBER", help="Messages a second.")] = "10",  # type: ignore[assignment]
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the picture and the verdict go; made if it is not there.")
    ] = Path("holdfast-demo"),
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Publish 1, 2, 3, … to a pair of its own, kill the primary, and count what the subscriber of both brokers gets.

    Uses a temporary directory and free ports. Draws every message when it arrived, coloured by its broker.

    Exit code 1: something that was acknowledged was lost, duplicated or out of order.
    """
    import asyncio

    from holdfast.cli.demo import failover_timeline, failover_view
    from holdfast.cli.demo.failover_play import Plan, perform
    from holdfast.cli.demo.failover_score import FailoverScore
    from holdfast.cli.demo.pair_process import PairProcesses
    from holdfast.cli.demo.view import View
    from holdfast.testing.temporary import TemporaryDirectory

    out.mkdir(parents=True, exist_ok=True)
    score = FailoverScore()
    view = View(lambda passed_s: failover_view.drawn(score, passed_s), quiet=as_json)
    directory = TemporaryDirectory("holdfast-demo-")
    try:
        with view.shown():
            pair = PairProcesses(directory.path)
            try:
                view.tell(f"starting a pair: {' and '.join(pair.addresses.values())}")
                pair.start()
                view.tell(f"both are up (processes {pair.pid('primary')} and {pair.pid('backup')})")
                asyncio.run(perform(pair, Plan(rate, kill_after, then), score, view.tell))
            finally:
                pair.stop()
    finally:
        directory.remove()
    shown = (failover_view.table(score), failover_view.summary(score))
    score.ledger.write(record)
    _conclude_with_picture("failover", score, failover_timeline.drawn(score), shown, out, as_json=as_json)


@app.command(
    "outage",
    epilog=examples(
        "holdfast demo outage",
        "holdfast demo outage --seconds 40 --rate 1000 --out pictures",
        "holdfast demo outage --json",
    ),
)
def outage(
    seconds: Annotated[float, typer.Option(min=4, max=3600, metavar="N", help="How long to push.")] = 20.0,
    rate: Annotated[
        float, typer.Option(parser=rate_per_s, metavar="NUMBER", help="Messages a second, of all customers together.")
    ] = "200",  # type: ignore[assignment]
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the picture and the verdict go; made if it is not there.")
    ] = Path("holdfast-demo"),
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Push to a broker over a PostgreSQL of its own, kill the database, then the broker, too, and count the rows.

    Pushes go on all the time: what the database cannot take waits in the broker's spill. Both come back, and at the end
    the database is asked what it has. Uses a temporary directory and a free port.

    Exit code 1: something that was acknowledged was lost, duplicated or out of order.
    """
    import asyncio

    from holdfast.cli.demo import outage_timeline, outage_view
    from holdfast.cli.demo.outage_play import Plan, perform_in
    from holdfast.cli.demo.outage_score import OutageScore
    from holdfast.cli.demo.view import View
    from holdfast.node import logs
    from holdfast.testing.temporary import TemporaryDirectory

    # The database is this process's own child; what is worth knowing about it is told.
    logs.configure("error", "text")

    out.mkdir(parents=True, exist_ok=True)
    score = OutageScore()
    view = View(lambda passed_s: outage_view.drawn(score, passed_s), quiet=as_json)
    directory = TemporaryDirectory("holdfast-demo-")
    try:
        with view.shown():
            view.tell("starting PostgreSQL and a broker")
            asyncio.run(perform_in(directory.path, Plan.over(seconds, rate), score, view))
    finally:
        directory.remove()
    shown = (outage_view.table(score), outage_view.summary(score))
    score.ledger.write(record)
    _conclude_with_picture("outage", score, outage_timeline.drawn(score), shown, out, as_json=as_json)


@app.command(
    "membership",
    epilog=examples(
        "holdfast demo membership",
        "holdfast demo membership --scene dynamic-membership --scene fault-tolerance",
        "holdfast demo membership --json",
    ),
)
def membership(
    scene: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="basic, one-subscriber, two-subscribers, fault-tolerance, dynamic-membership or "
            "same-election-timeout; all of them if none is named.",
        ),
    ] = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Play the scenes of a cluster whose nodes come and go, live: subscribers, a dead leader, a node that joins.

    Real brokers on free ports, which call subscribers at their own addresses. Each line is what a node logged, or what
    a publisher or subscriber says, in words that can be compared with those of small Raft brokers.

    Exit code 1: a scene did not show what it is for.
    """
    from holdfast.cli.demo.membership_play import SCENES, MembershipPlay

    wanted = scene or list(SCENES)
    for name in wanted:
        if name not in SCENES:
            raise typer.BadParameter(f"there is no scene {name}; there are {', '.join(SCENES)}", param_hint="--scene")
    play = MembershipPlay(lambda line: None if as_json else print(line, flush=True))
    play.perform(wanted)
    play.ledger.write(record)
    is_passed = all(each.is_passed for each in play.scenes)
    if as_json:
        scenes = [
            {
                "scene": each.name,
                "passed": each.is_passed,
                "checks": [{"what": check.what, "holds": check.holds} for check in each.checks],
            }
            for each in play.scenes
        ]
        output.print_json({"passed": is_passed, **play.ledger.counts, "scenes": scenes})
    else:
        table = output.table("scene", "shown", "holds")
        for each in play.scenes:
            for check in each.checks:
                table.add_row(each.name, check.what, "[green]yes[/green]" if check.holds else "[red]no[/red]")
        console = output.console()
        console.print()
        console.print(table)
    if not is_passed:
        raise typer.Exit(EXIT_LOST)


def _conclude_with_picture(
    name: str,
    score: ClusterScore | FailoverScore | OutageScore,
    picture_text: str,
    shown: Sequence[object],
    out: Path,
    *,
    as_json: bool,
) -> None:
    """Write picture and verdict, show them, and end with 1 if something went wrong."""
    import msgspec

    picture = out / f"demo-{name}.svg"
    picture.write_text(picture_text, "utf-8")
    verdict = {**score.verdict(), "picture": str(picture)}
    (out / f"demo-{name}.json").write_bytes(msgspec.json.encode(verdict) + b"\n")
    if as_json:
        output.print_json(verdict)
    else:
        console = output.console()
        for each in shown:
            console.print(each)
        console.print(f"picture: {picture}")
    if not score.is_flawless:
        raise typer.Exit(EXIT_LOST)

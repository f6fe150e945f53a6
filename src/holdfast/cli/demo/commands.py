"""The commands of `holdfast demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import Json, examples
from holdfast.cli.quantities import rate_per_s

if TYPE_CHECKING:
    from holdfast.cli.demo.play import Score

app = typer.Typer(help="See what Holdfast is for.", no_args_is_help=True)

EXIT_LOST: Final = 1


@app.command("broker", epilog=examples("holdfast demo broker", "holdfast demo broker --seconds 40 --json"))
def broker(
    seconds: Annotated[float, typer.Option(min=3, max=3600, metavar="N", help="How long to publish.")] = 13.0,
    rate: Annotated[float, typer.Option(parser=rate_per_s, metavar="NUMBER", help="Messages a second.")] = "10",  # type: ignore[assignment]
    as_json: Json = False,
) -> None:
    """Publish 1, 2, 3, … to a broker of its own, kill it half way, restart it, and count what was lost.

    Uses a temporary directory and free ports. Exit code 1: an acknowledged message was lost.
    """
    import asyncio
    import tempfile
    from pathlib import Path

    from holdfast.cli.demo.play import Score, perform
    from holdfast.cli.demo.process import BrokerProcess
    from holdfast.cli.demo.view import View
    from holdfast.storage.doctor import examine

    score = Score()
    view = View(score, quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as directory, view.shown():
        process = BrokerProcess(Path(directory))
        try:
            asyncio.run(perform(process, seconds, rate, score, view.tell))
        finally:
            process.kill()
        findings = [finding.kind.value for finding in examine(process.data).problems]
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

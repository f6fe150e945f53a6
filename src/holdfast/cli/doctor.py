"""`holdfast doctor`: look at a data directory while no broker runs, and say what is wrong with it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import Json, examples
from holdfast.cli.quantities import bytes_text, plural
from holdfast.model.errors import DataDirectoryError

if TYPE_CHECKING:
    from holdfast.storage.doctor import Finding, Report

EXAMPLES = examples(
    "holdfast doctor /var/lib/holdfast",
    "holdfast doctor holdfast-data --repair",
    "holdfast doctor holdfast-data --read-only --json",
)
EXIT_FINDINGS: Final = 1
EXIT_NOT_EXAMINED: Final = 2


def doctor(
    directory: Annotated[Path, typer.Argument(help="The data directory.", show_default=False)],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Cut torn tails and rebuild bad indexes, as a start would. Damaged messages are never touched.",
        ),
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Look even if a broker runs here; what it has half written is left out."),
    ] = False,
    spill_dir: Annotated[
        Path | None,
        typer.Option(
            "--spill-dir",
            metavar="DIR",
            help="Where messages wait for their store, if it is not spill under the data directory.",
            envvar=["HOLDFAST_SPILL_DIR", "FILE_BUFFER_DIR"],
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Examine a data directory: every batch, every index, topics and cursors, and what waits in the spill.

    Exit code 0: all is well. 1: there are findings. 2: nothing was examined: it is no data directory, or in use.
    """
    if repair and read_only:
        raise typer.BadParameter("--repair writes, --read-only does not; choose one")

    spill = spill_dir or directory / "spill"
    try:
        report = _examined(directory, spill, repair=repair, read_only=read_only)
    except DataDirectoryError as error:
        output.note(f"holdfast: {error.message} [{error.code}]")
        raise typer.Exit(EXIT_NOT_EXAMINED) from None
    if as_json:
        output.print_json(_as_object(report, spill))
    else:
        _show(report, spill)
    if report.problems:
        raise typer.Exit(EXIT_FINDINGS)


def _examined(directory: Path, spill: Path, *, repair: bool, read_only: bool) -> Report:
    from holdfast.backends.spill.examining import examine_spill
    from holdfast.cli import settings
    from holdfast.storage import doctor as storage_doctor

    with contextlib.ExitStack() as stack:
        in_use = False
        try:
            stack.enter_context(storage_doctor.held(directory, for_repair=repair))
        except storage_doctor.InUse as error:
            in_use = True
            if not read_only:
                raise DataDirectoryError(f"{error.message}, or look without touching it with --read-only") from error
        bar = stack.enter_context(output.bar(in_bytes=True))
        task = bar.add_task("examining", total=None)
        if spill.exists() and not storage_doctor.is_data_directory(directory):
            # Of a broker whose messages are in a database by address: the spill is all it has.
            report = storage_doctor.Report(directory=str(directory), in_use=in_use)
        else:
            report = storage_doctor.examine(
                directory,
                in_use=in_use,
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        examine_spill(spill, report, free_bytes_min=settings.load(None, {}).spill_free_bytes_min)
        if repair:
            storage_doctor.repair(directory, report)
    return report


def _as_object(report: Report, spill: Path) -> dict[str, object]:
    import msgspec

    from holdfast.cli.advice import ADVICE

    described: dict[str, object] = msgspec.to_builtins(report)
    described["findings"] = [
        {
            **msgspec.to_builtins(finding),
            "meaning": ADVICE[finding.kind].meaning,
            "action": ADVICE[finding.kind].action_for(spill),
        }
        for finding in report.findings
    ]
    described["clean"] = not report.problems
    return described


def _show(report: Report, spill: Path) -> None:
    from rich.markup import escape

    console = output.console()
    looked_at = (
        plural(report.topics, "topic"),
        plural(report.partitions, "partition"),
        plural(report.segments, "segment"),
        plural(report.batches, "batch"),
        plural(report.messages, "message"),
        bytes_text(report.size_bytes),
        *([f"{plural(report.spilled_messages, 'message')} in the spill"] if report.spilled_messages else []),
    )
    node = f" of {report.node}" if report.node else ""
    console.print(f"[bold]{escape(report.directory)}[/bold]{escape(node)}: {', '.join(looked_at)}")
    if report.findings:
        console.print(_table(report.findings, spill))
    if report.in_use:
        console.print("[yellow]A broker runs here: what it has half written was left out.[/yellow]")
    if report.problems:
        console.print(f"[red]{plural(len(report.problems), 'finding')} left.[/red]")
    else:
        console.print("[green]All is well.[/green]")


def _table(findings: list[Finding], spill: Path) -> object:
    from rich.markup import escape
    from rich.table import Table

    from holdfast.cli.advice import ADVICE
    from holdfast.storage.doctor import NOTES

    table = Table(show_lines=True)
    for name in ("finding", "where", "what it means", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        advice = ADVICE[finding.kind]
        colour = "green" if finding.repaired else "yellow" if finding.kind in NOTES else "red"
        done = (
            f"[green]Done: {escape(finding.repaired)}.[/green]"
            if finding.repaired
            else escape(advice.action_for(spill))
        )
        where = [escape(finding.file), escape(finding.detail)]
        if finding.first_offset is not None:
            where.append(_offsets(finding))
        title = f"[{colour}]{finding.kind.replace('_', ' ')}[/{colour}]"
        table.add_row(title, "\n".join(where), escape(advice.meaning), done)
    return table


def _offsets(finding: Finding) -> str:
    assert finding.first_offset is not None and finding.next_offset is not None
    if finding.next_offset <= finding.first_offset:
        return f"offsets from {finding.first_offset} on"
    return f"offsets {finding.first_offset} to {finding.next_offset - 1}"

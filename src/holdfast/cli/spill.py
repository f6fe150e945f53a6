"""`holdfast spill`: look at what a broker keeps while its store is away, and store it without that broker."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import output, settings
from holdfast.cli.options import Json, examples
from holdfast.cli.quantities import bytes_text, plural
from holdfast.cli.settings import ConfigFile
from holdfast.model.errors import ConfigError, DataDirectoryError

if TYPE_CHECKING:
    from holdfast.backends.spill.inspecting import Report

app = typer.Typer(
    help="Look at messages that are kept until their store is back, and store them by hand.", no_args_is_help=True
)

EXIT_FINDINGS: Final = 1

Directory = Annotated[
    Path | None,
    typer.Argument(
        help="The directory of the spill, or the data directory that it is in; without it, the one of the settings.",
        show_default=False,
    ),
]


def _directory(given: Path | None, config: Path | None) -> Path:
    """The spill that is meant. Raises `DataDirectoryError`: "nothing waits" would invite people to delete it."""
    from holdfast.recovery import spill_files

    path = given if given is not None else settings.load(config, {}).spill_directory
    if not path.is_dir():
        raise DataDirectoryError(
            f"there is no spill in {path}; give its directory as the argument, or the settings with --config"
        )
    below = path / "spill"
    # A lock file alone does not make a spill of a data directory: `replay` used to leave one there.
    if spill_files.is_spill(below) and not spill_files.has_files(path):
        return below
    if not spill_files.is_spill(path):
        raise DataDirectoryError(
            f"{path} is not a spill: it has no spill.lock. Name the directory of the spill. It is spill in the "
            "data directory, or what the setting spill_dir says"
        )
    return path


@app.command(
    "status",
    epilog=examples("holdfast spill status", "holdfast spill status /var/lib/holdfast/spill --json"),
)
def status(directory: Directory = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Show the files, how many messages wait in them, and what could not be stored. A broker may be running."""
    report = _examined(_directory(directory, config))
    if as_json:
        output.print_json(_as_object(report))
        return
    _show(report)


@app.command("verify", epilog=examples("holdfast spill verify", "holdfast spill verify holdfast-data/spill --json"))
def verify(directory: Directory = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Check every line against its sum. Exit code 1: some are damaged, and will go to failed/."""
    report = _examined(_directory(directory, config))
    if as_json:
        output.print_json(_as_object(report))
    else:
        for file in report.files:
            for fault in file.bad:
                print(f"{file.file}, {fault}")
        good = report.lines - report.bad
        print(f"{plural(good, 'message')} in {plural(len(report.files), 'file')} can be stored, {report.bad} cannot")
    if report.bad:
        raise typer.Exit(EXIT_FINDINGS)


@app.command(
    "export",
    epilog=examples("holdfast spill export > kept.jsonl", "holdfast spill export --queue orders | jq .payload"),
)
def export(
    directory: Directory = None,
    queue: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only messages of this topic.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="What is in failed/ instead, with the reasons.")] = False,
    config: ConfigFile = None,
) -> None:
    """Write all messages that wait to standard output, one JSON object a line, oldest first."""
    from holdfast.backends.spill import inspecting

    path = _directory(directory, config)
    if failed and queue is not None:
        raise typer.BadParameter("--queue does not go with --failed: what failed may not even say which topic it is of")
    for line in inspecting.exported_failed(path) if failed else inspecting.exported(path, queue):
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


@app.command(
    "replay",
    epilog=examples(
        "HOLDFAST_STORE=postgresql://app@db.example.org/shop holdfast spill replay /var/lib/holdfast/spill",
        "holdfast spill replay --config holdfast.toml --failed",
    ),
)
def replay(
    directory: Directory = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Also what is in failed/ and can be read, before everything else.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long the store may be away, or take.")
    ] = 3600.0,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Store what waits, without its broker: it was lost, or shall not be started again.

    The store is the one of the settings. Refused while a broker runs over the directory: that one does it itself.

    Exit code 1: some could not be stored; they are in failed/, each with the reason.
    """
    import asyncio

    from holdfast.node import logs, replaying

    checked = settings.load(config, {})
    if checked.store is None:
        raise ConfigError(
            "name the PostgreSQL to store in: HOLDFAST_STORE=postgresql://…, HOLDFAST_STORE=postgres for the broker's "
            "own one, or store in the settings file"
        )
    path = _directory(directory, config)
    logs.configure("error", checked.log_format)
    with output.counter("messages") as counter:
        task = counter.add_task("storing")
        done = asyncio.run(
            replaying.replay(
                checked,
                path,
                is_with_failed=failed,
                timeout_s=timeout_s,
                on_progress=lambda stored: counter.update(task, completed=stored),
            )
        )
    if as_json:
        output.print_json(done)
    else:
        print(
            f"stored {plural(done.stored, 'message')}; {done.already_stored} were there already; "
            f"{done.set_aside} were set aside, {done.failed} are in failed/"
        )
    if done.set_aside or (failed and done.failed):
        output.note(f"holdfast: see why with `{command('export', path)} --failed`. {_what_helps(path, config, failed)}")
        raise typer.Exit(EXIT_FINDINGS)


def command(name: str, directory: Path) -> str:
    """A command as it can be typed: from where this one was, whatever the settings say there."""
    return f"holdfast spill {name} {shlex.quote(str(directory))}"


def _what_helps(path: Path, config: Path | None, was_with_failed: bool) -> str:
    """To run the same again would end the same, so what comes before it is said."""
    damaged = "Damaged lines are never stored; a copy of the file may have them whole."
    if was_with_failed:
        return f"Run the same again when the reasons are gone. {damaged}"
    settings_file = "" if config is None else f" --config {shlex.quote(str(config))}"
    again = f"{command('replay', path)} --failed{settings_file}"
    return f"When the reasons are gone, `{again}` stores these messages. {damaged}"


def _examined(path: Path) -> Report:
    from holdfast.backends.spill import inspecting

    return inspecting.examine(path)


def _as_object(report: Report) -> dict[str, object]:
    import msgspec

    return {**msgspec.to_builtins(report), "lines": report.lines, "bad": report.bad}


def _show(report: Report) -> None:
    from rich.markup import escape

    console = output.console()
    directory = Path(report.directory)
    process = f" (process {report.broker})" if report.broker else ""
    runs = "no broker runs here" if report.broker is None else f"a broker runs here{process}"
    console.print(f"[bold]{escape(report.directory)}[/bold]: {plural(report.lines, 'message')} wait, {runs}")
    if report.files:
        table = output.table("file", "state", "messages", "size", "from", "to", numbers=("messages", "size"))
        for file in report.files:
            state = (
                "complete" if file.is_complete else "being written" if report.broker is not None else "left by a crash"
            )
            table.add_row(
                file.file,
                state,
                f"{file.lines:,}",
                bytes_text(file.size_bytes),
                _time(file.oldest_ms),
                _time(file.newest_ms),
            )
        console.print(table)
    for queue, count in sorted(report.queues.items()):
        console.print(f"  {escape(queue)}: {plural(count, 'message')}")
    if report.bad:
        _hint("red", f"{plural(report.bad, 'line')} damaged", f"see {command('verify', directory)}")
    if report.recovering:
        finish = "finish that with holdfast pipeline recover, with the directories it had"
        _hint("yellow", f"{plural(report.recovering, 'file')} in recovering/", finish)
    if report.failed:
        see = f"see {command('export', directory)} --failed"
        _hint("yellow", f"{plural(report.failed, 'line')} in failed/", see)


def _hint(colour: str, what: str, advice: str) -> None:
    """In one line, so that a command in it can be copied."""
    from rich.markup import escape

    output.console().print(f"[{colour}]{what}: {escape(advice)}[/{colour}]", soft_wrap=True)


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")

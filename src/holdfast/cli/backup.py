"""`holdfast backup`: what a running cluster holds, as files; checked, and made a new broker of.

The word has a second meaning, which was there first: `holdfast backup PORT PRIMARY` runs the second broker of a pair.
A port or an option behind the word means that (`run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from holdfast.cli import output, pair, session
from holdfast.cli.options import SERVER_DEFAULT, Json, Server, examples
from holdfast.cli.quantities import bytes_text, duration_text, plural
from holdfast.model.errors import BackupUnusable, TopicNotFound

if TYPE_CHECKING:
    from holdfast.backup.format import Manifest
    from holdfast.backup.verifying import Verified

EXIT_DAMAGED: Final = 1
EXIT_NO_BACKUP: Final = 2
EXIT_TOPIC_GONE: Final = 1
_PAIR: Final = "run"


class _BackupGroup(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        is_broker = first.isdigit() or (first.startswith("-") and first not in ctx.help_option_names)
        return super().parse_args(ctx, [_PAIR, *args] if is_broker else args)


app = typer.Typer(
    help="Back up a cluster, check a backup, restore one. `holdfast backup PORT PRIMARY` runs the backup of a pair.",
    no_args_is_help=True,
    cls=_BackupGroup,
)
app.command(_PAIR, epilog=pair.BACKUP_EXAMPLES)(pair.backup)

Directory = Annotated[Path, typer.Argument(help="The directory of the backup.", show_default=False)]


@app.command(
    "create",
    epilog=examples(
        "holdfast backup create /backups/monday",
        "holdfast backup create /backups/monday --server 10.0.0.5:8090,10.0.0.6:8090",
        "holdfast backup create /backups/monday --update",
    ),
)
def create(
    directory: Directory,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Only this topic; may be given several times.", show_default=False
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Bring a finished backup up to date: only what is new is fetched.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="With --update: give up what the cluster has no more. Default: keep it."),
    ] = False,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Copy all topics, messages and cursors as they are now, while everybody goes on.

    Name all nodes: when one goes, the next one is asked. A backup that was cut off is gone on with when the same
    command is given again.
    """
    import asyncio

    from holdfast.backup import creating

    if prune and not update:
        raise typer.BadParameter("--prune goes with --update")
    session.require_broker(server)
    session.show_client_warnings()
    with _messages_bar("backing up") as tell:

        def on_progress(*, messages: int, of: int, fetched_bytes: int) -> None:
            tell(messages, of, fetched_bytes)

        def on_found(begun: Manifest) -> None:
            ago = duration_text(max(0, _now_ms() - begun.begun_ms) / 1000)
            output.note(
                f"holdfast: this goes on with what was begun {ago} ago, and has what the cluster held "
                "then; --update, once this is done, brings it up to date"
            )

        made = asyncio.run(
            creating.create(
                server,
                directory,
                topics=topic or None,
                update=update,
                prune=prune,
                now_ms=_now_ms,
                on_progress=on_progress,
                on_found=on_found,
            )
        )
    if not made.is_between_transactions:
        output.note(
            "holdfast: transactions were committed all the time; the last one of a writer may be in the backup in "
            "part, or as a whole without its number, and is committed again after a restore"
        )
    if as_json:
        output.print_json({"directory": str(directory), **_summary(made)})
    else:
        print(f"{directory}: {_words(made)}")
        for line in _differences(made):
            print(line)
        if update:
            print("What was in the backup before was not read again; `holdfast backup verify` does that.")
    gone = sorted(set(topic or ()) & {*made.left_out, *(each.topic for each in made.kept)})
    if gone:
        output.note(f"holdfast: deleted while it was backed up: {', '.join(gone)} [{TopicNotFound.code}]")
        raise typer.Exit(EXIT_TOPIC_GONE)


@app.command("verify", epilog=examples("holdfast backup verify /backups/monday", "holdfast backup verify b --json"))
def verify(directory: Directory, as_json: Json = False) -> None:
    """Read every byte of a backup and say exactly what is damaged.

    Exit code 1: something is. 2: this is no backup, or one that was not finished.
    """
    from holdfast.backup import verifying

    try:
        with output.bar(in_bytes=True) as bar:
            task = bar.add_task("verifying", total=None)
            verified = verifying.verify(directory, lambda done, total: bar.update(task, completed=done, total=total))
    except BackupUnusable as error:
        output.note(f"holdfast: {error.message} [{error.code}]")
        raise typer.Exit(EXIT_NO_BACKUP) from None
    if as_json:
        import msgspec

        output.print_json({**msgspec.to_builtins(verified), "sound": verified.is_sound})
    else:
        _show(verified)
    if not verified.is_sound:
        raise typer.Exit(EXIT_DAMAGED)


@app.command(
    "restore",
    epilog=examples(
        "holdfast backup restore /backups/monday --data /var/lib/holdfast",
        "holdfast serve --data /var/lib/holdfast",
    ),
)
def restore(
    directory: Directory,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="A new data directory, empty or not there.", show_default=False),
    ] = ...,  # type: ignore[assignment]
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="The name of the new broker.")] = "n1",
    subscriptions: Annotated[
        bool,
        typer.Option(
            "--subscriptions/--no-subscriptions",
            help="Whether the new broker connects to the callbacks of the old one. Leave them out to try a backup.",
        ),
    ] = True,
    aside: Annotated[
        bool, typer.Option("--aside", help="Also what updates have set aside, as topics named TOPIC.aside-1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a new broker of a backup: the same topics, messages, offsets and cursors, as a cluster of its own."""
    import asyncio

    import msgspec

    from holdfast.backup import restoring
    from holdfast.model.names import NODE_NAME

    if not NODE_NAME.match(node):
        raise typer.BadParameter(f"{node!a} is no name; it has 1 to 64 letters, digits, '_' and '-'")
    with output.bar(in_bytes=True) as bar:
        tasks = {step: bar.add_task(step, total=None) for step in ("verifying", "restoring")}
        restored = asyncio.run(
            restoring.restore(
                directory,
                data,
                node=node,
                now_ms=_now_ms,
                with_subscriptions=subscriptions,
                with_aside=aside,
                on_progress=lambda step, done, total: bar.update(tasks[step], completed=done, total=total),
            )
        )
    if as_json:
        output.print_json(msgspec.to_builtins(restored))
        return
    parts = (
        plural(restored.topics, "topic"),
        plural(restored.messages, "message"),
        plural(restored.cursors, "cursor"),
        *([plural(restored.subscriptions, "subscription")] if restored.subscriptions else []),
    )
    print(f"{data}: {', '.join(parts)} ({bytes_text(restored.bytes)})")
    if restored.kept:
        print(f"Were gone from the cluster, and are here again: {', '.join(restored.kept)}")
    if restored.aside:
        print(f"Were set aside, and are topics now: {', '.join(restored.aside)}")
    if restored.aside_left:
        print(f"Not restored: {plural(restored.aside_left, 'partition')} set aside; --aside restores them, too")
    print(f"Serve it:  holdfast serve --data {data}")


def _now_ms() -> Any:
    from holdfast.node.node import now_ms

    return now_ms()


@contextmanager
def _messages_bar(what: str) -> Iterator[Callable[[int, int, int], None]]:
    """Messages of how many, bytes that came, and messages a second."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f} messages/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Speed(),
        TextColumn("{task.fields[size]}"),
    )
    console = output.error_console()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=None, size="")
        yield lambda messages, of, size: progress.update(task, completed=messages, total=of, size=bytes_text(size))


def _summary(manifest: Manifest) -> dict[str, object]:
    return {
        "cluster": manifest.cluster,
        "begun_ms": manifest.begun_ms,
        "finished_ms": manifest.finished_ms,
        "topics": len(manifest.topics),
        "partitions": sum(len(topic.partitions) for topic in manifest.topics),
        "messages": manifest.messages,
        "bytes": manifest.bytes,
        "cursors": len(manifest.cursors),
        "subscriptions": len(manifest.subscriptions),
        "writers": len(manifest.writers),
        "is_between_transactions": manifest.is_between_transactions,
        "kept": [each.topic for each in manifest.kept],
        "left_out": manifest.left_out,
        "aside": [
            {"topic": topic.topic, "partition": each.partition, "first": each.first, "end": each.end}
            for topic, each in manifest.partitions_aside()
        ],
    }


def _differences(manifest: Manifest) -> Iterator[str]:
    """What the backup has and the cluster has not, and the other way round."""
    if manifest.kept:
        yield f"Kept, though gone from the cluster: {', '.join(each.topic for each in manifest.kept)}"
    for topic, each in manifest.partitions_aside():
        yield f"Set aside: {topic.topic}/{each.partition} from offset {each.first} to {each.end - 1}"
    if manifest.left_out:
        yield f"Left out, for it is gone from the cluster: {', '.join(manifest.left_out)}"


def _words(manifest: Manifest) -> str:
    parts = (
        plural(len(manifest.topics), "topic"),
        plural(manifest.messages, "message"),
        plural(len(manifest.cursors), "cursor"),
        *([plural(len(manifest.subscriptions), "subscription")] if manifest.subscriptions else []),
        *([plural(len(manifest.writers), "writer")] if manifest.writers else []),
    )
    return f"{', '.join(parts)} ({bytes_text(manifest.bytes)})"


def _show(verified: Verified) -> None:
    from rich.markup import escape

    console = output.console()
    parts = (
        plural(verified.topics, "topic"),
        plural(verified.files, "file"),
        plural(verified.messages, "message"),
        plural(verified.cursors, "cursor"),
    )
    console.print(f"[bold]{escape(verified.directory)}[/bold]: {', '.join(parts)} ({bytes_text(verified.bytes)})")
    for finding in verified.findings:
        console.print(f"[red]{escape(finding.file)}[/red]: {escape(finding.problem)}")
    if verified.plan_problem is not None:
        console.print(
            f"{escape(verified.plan_problem)}; it is of an update that was not finished, and the backup does not need "
            "it: delete the file before the next update."
        )
    if verified.has_unfinished_update:
        console.print("An update was begun and not finished; give `holdfast backup create … --update` again.")
    if verified.is_sound:
        console.print("[green]All is well.[/green]")
    else:
        console.print(f"[red]{plural(len(verified.findings), 'finding')}: do not rely on this backup.[/red]")

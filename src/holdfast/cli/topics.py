"""`holdfast topics`: list, create, describe and delete."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output, session
from holdfast.cli.options import SERVER_DEFAULT, Json, JsonLines, Server, Topic, Yes, examples
from holdfast.cli.quantities import bytes_text, duration_s, duration_text, plural, size_bytes

if TYPE_CHECKING:
    from holdfast.model.topics import TopicDescription

app = typer.Typer(help="List, create, describe and delete topics.", no_args_is_help=True)


@app.command("list", epilog=examples("holdfast topics list", "holdfast topics list --json | jq -r .topic"))
def list_topics(server: Server = SERVER_DEFAULT, as_json: JsonLines = False) -> None:
    """List all topics."""
    with session.connected(server) as broker:
        topics = sorted(broker.topics(), key=lambda each: each.topic)
    if as_json:
        for each in topics:
            output.print_json(each)
        return
    table = output.table(
        "topic", "partitions", "messages", "size", "kept for", numbers=("partitions", "messages", "size")
    )
    for each in topics:
        table.add_row(
            each.topic, str(len(each.partitions)), f"{each.messages:,}", bytes_text(each.size_bytes), _kept(each)
        )
    output.console().print(table)


@app.command(
    "create",
    epilog=examples(
        "holdfast topics create orders --partitions 4",
        "holdfast topics create logs --retention 7d --retention-bytes 10GB",
    ),
)
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(min=1, metavar="N", help="How many partitions.")] = 1,
    retention: Annotated[
        float | None,
        typer.Option(parser=duration_s, metavar="DURATION", help="How long messages are kept; absent: for ever."),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option(parser=size_bytes, metavar="SIZE", help="How much each partition keeps; absent: everything."),
    ] = None,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    with session.connected(server) as broker:
        created = broker.create_topic(
            topic,
            partitions=partitions,
            retention_ms=None if retention is None else round(retention * 1000),
            retention_bytes=retention_bytes,
        )
    if as_json:
        output.print_json(created)
    else:
        print(f"created {created.topic} with {plural(len(created.partitions), 'partition')}; kept {_kept(created)}")


@app.command("describe", epilog=examples("holdfast topics describe orders"))
def describe(topic: Topic, server: Server = SERVER_DEFAULT, as_json: Json = False) -> None:
    """Show a topic and its partitions."""
    with session.connected(server) as broker:
        described = broker.describe(topic)
    if as_json:
        output.print_json(described)
        return
    from rich.markup import escape

    created = datetime.fromtimestamp(described.created_ms / 1000).astimezone()
    console = output.console()
    console.print(
        f"[bold]{escape(described.topic)}[/bold], created {created:%Y-%m-%d %H:%M:%S}, kept {_kept(described)}"
    )
    if described.delivers_from != described.topic:
        console.print(f"subscribers read {escape(described.delivers_from)}, which its processor writes")
    columns = ("partition", "leader", "first offset", "next offset", "messages", "size", "segments", "damaged")
    table = output.table(*columns, numbers=tuple(name for name in columns if name != "leader"))
    for each in described.partitions:
        damaged = output.coloured(str(each.damaged_batches), "red") if each.damaged_batches else "0"
        table.add_row(
            str(each.partition),
            each.leader or output.coloured("none now", "red"),
            str(each.start_offset),
            str(each.end_offset),
            f"{each.end_offset - each.start_offset:,}",
            bytes_text(each.size_bytes),
            str(each.segments),
            damaged,
        )
    console.print(table)


@app.command("delete", epilog=examples("holdfast topics delete orders", "holdfast topics delete orders --yes"))
def delete(topic: Topic, yes: Yes = False, server: Server = SERVER_DEFAULT, as_json: Json = False) -> None:
    """Delete a topic with its messages and cursors."""
    with session.connected(server) as broker:
        described = broker.describe(topic)
        confirm(f"Delete {topic} with {plural(described.messages, 'message')} and its cursors?", yes=yes)
        broker.delete_topic(topic)
    if as_json:
        output.print_json({"deleted": topic, "messages": described.messages})
    else:
        print(f"deleted {topic} with {plural(described.messages, 'message')}")


def confirm(question: str, *, yes: bool, otherwise: str = "nothing was deleted") -> None:
    """Ask before something is gone; where nobody can answer, `--yes` has to."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"standard input is not a terminal, so this cannot be confirmed; add --yes to go ahead. {question}"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        output.note(otherwise)
        raise typer.Exit(1)


def _kept(topic: TopicDescription) -> str:
    limits = []
    if topic.retention_ms is not None:
        limits.append(duration_text(topic.retention_ms / 1000))
    if topic.retention_bytes is not None:
        limits.append(f"{bytes_text(topic.retention_bytes)} a partition")
    return " or ".join(limits) or "for ever"

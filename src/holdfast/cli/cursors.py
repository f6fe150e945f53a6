"""`holdfast cursors`: where named readers stand, and moving or forgetting them."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import output, session
from holdfast.cli.options import SERVER_DEFAULT, CursorName, Json, JsonLines, Server, Topic, Yes, examples
from holdfast.cli.topics import confirm

app = typer.Typer(help="List, move and delete cursors: the places of named readers.", no_args_is_help=True)


def place(text: str) -> str:
    """`earliest`, `latest`, an offset or `-10m`, as it is written; checked before a broker is asked."""
    from holdfast.broker.places import parse_place
    from holdfast.model.errors import BadValue

    try:
        parse_place(text)
    except BadValue as error:
        raise typer.BadParameter(error.message) from None
    return text


@app.command("list", epilog=examples("holdfast cursors list", "holdfast cursors list orders"))
def list_cursors(
    topic: Annotated[str | None, typer.Argument(help="Only cursors of this topic.")] = None,
    server: Server = SERVER_DEFAULT,
    as_json: JsonLines = False,
) -> None:
    """List cursors and how far they are behind."""
    with session.connected(server) as broker:
        cursors = sorted(broker.cursors(topic), key=lambda each: (each.topic, each.name))
    if as_json:
        for each in cursors:
            output.print_json(each)
        return
    table = output.table(
        "topic",
        "name",
        "partition",
        "next offset",
        "end",
        "behind",
        numbers=("partition", "next offset", "end", "behind"),
    )
    for each in cursors:
        for position in each.partitions:
            table.add_row(
                each.topic,
                each.name,
                str(position.partition),
                str(position.offset),
                str(position.end_offset),
                f"{position.lag:,}",
            )
    output.console().print(table)


@app.command(
    "seek",
    epilog=examples(
        "holdfast cursors seek orders billing --to earliest",
        "holdfast cursors seek orders billing --to -10m",
        "holdfast cursors seek orders billing --to 4711 --partition 0",
    ),
)
def seek(
    topic: Topic,
    name: CursorName,
    to: Annotated[
        str,
        typer.Option(
            parser=place, metavar="earliest|latest|OFFSET|-10m", help="Where to: a place, an offset, or how long ago."
        ),
    ],
    partition: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only in this partition.")] = None,
    server: Server = SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Move a cursor, or make one. Readers that are connected go on where they are; callbacks begin anew there."""
    with session.connected(server) as broker:
        moved = broker.seek(topic, name, int(to) if to.isdigit() else to, partition)
    if as_json:
        output.print_json(moved)
        return
    places = ", ".join(f"{each.offset} in partition {each.partition}" for each in moved.partitions)
    print(f"{moved.name} reads on in {moved.topic} at {places}")


@app.command("delete", epilog=examples("holdfast cursors delete orders billing --yes"))
def delete(
    topic: Topic, name: CursorName, yes: Yes = False, server: Server = SERVER_DEFAULT, as_json: Json = False
) -> None:
    """Forget a cursor; a reader of that name begins anew."""
    with session.connected(server) as broker:
        known = broker.cursor(topic, name)
        confirm(f"Forget where {name} stands in {topic} ({known.lag:,} messages left)?", yes=yes)
        broker.delete_cursor(topic, name)
    if as_json:
        output.print_json({"deleted": name, "topic": topic})
    else:
        print(f"forgot {name} in {topic}")

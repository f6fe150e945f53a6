"""`holdfast transactions`: who writes transactions, and how far each has come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output, session
from holdfast.cli.options import SERVER_DEFAULT, Json, JsonLines, Server, Yes, examples
from holdfast.cli.topics import confirm
from holdfast.model.limits import QUERY_BITS

if TYPE_CHECKING:
    from holdfast.model.ids import TimestampMs

app = typer.Typer(help="See who writes transactions, and how far each has come.", no_args_is_help=True)

Writer = Annotated[str, typer.Argument(help="The writer's name.")]


@app.command("list", epilog=examples("holdfast transactions list"))
def list_writers(server: Server = SERVER_DEFAULT, as_json: JsonLines = False) -> None:
    """List the writers of transactions and their last numbers."""
    with session.connected(server) as broker:
        writers = broker.writers()
    if as_json:
        for each in writers:
            output.print_json(each)
        return
    table = output.table("writer", "last number", "Spark batch", "committed", numbers=("last number", "Spark batch"))
    for each in writers:
        number = "-" if each.last_number is None else str(each.last_number)
        table.add_row(each.writer, number, _spark_batch(each.last_number), _when(each.committed_ms))
    output.console().print(table)


@app.command("show", epilog=examples("holdfast transactions show nightly-report"))
def show(writer: Writer, server: Server = SERVER_DEFAULT, as_json: Json = False) -> None:
    """Show the last number that a writer has committed, and when."""
    with session.connected(server) as broker:
        known = broker.writer(writer)
    if as_json:
        output.print_json(known)
    elif known.last_number is None:
        print(f"{known.writer} has committed nothing")
    else:
        batch = _spark_batch(known.last_number)
        told = str(known.last_number) if batch == "-" else f"{known.last_number} (Spark batch {batch})"
        print(f"{known.writer} committed {told} at {_when(known.committed_ms)}")


@app.command("forget", epilog=examples("holdfast transactions forget nightly-report --yes"))
def forget(writer: Writer, yes: Yes = False, server: Server = SERVER_DEFAULT, as_json: Json = False) -> None:
    """Forget a writer that writes no more; one of that name begins anew."""
    with session.connected(server) as broker:
        known = broker.writer(writer)
        last = "nothing yet" if known.last_number is None else f"number {known.last_number}"
        confirm(f"Forget {writer}, which has committed {last}? What it commits again is stored again.", yes=yes)
        broker.forget_writer(writer)
    if as_json:
        output.print_json({"forgot": writer})
    else:
        print(f"forgot {writer}")


def _spark_batch(number: int | None) -> str:
    """The batch in a number so large that it may be of a Spark query with the option `writer`."""
    batch = (number or 0) >> QUERY_BITS
    return str(batch) if batch else "-"


def _when(time_ms: TimestampMs | None) -> str:
    return "-" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"

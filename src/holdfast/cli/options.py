"""Options that many commands share, so that they read and mean the same everywhere."""

from __future__ import annotations

from typing import Annotated, Final

import typer

SERVER_DEFAULT: Final = "127.0.0.1:8090"

Server = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="HOST:PORT[,HOST:PORT]",
        envvar="HOLDFAST_SERVER",
        help="The HTTP address of the broker, or of several that are one.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object, for machines.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Topic = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]
CursorName = Annotated[str, typer.Argument(help="The reader's name.", show_default=False)]


def examples(*lines: str) -> str:
    """The examples under a command's help; blank lines keep each on its own line."""
    return "\n\n".join(("[bold]Examples[/bold]", *(f"  {line}".replace("[", "\\[") for line in lines)))

"""Options that all pipelines have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Master = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER",
        help="Where Spark runs: local\\[*], local\\[2], spark://HOST:PORT, yarn, …",
        show_default=False,
    ),
]
Conf = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark's own.")]
Config = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, metavar="FILE", help="A TOML file with settings; flags go before it."),
]


def pairs(given: list[str]) -> dict[str, str]:
    """Settings of Spark by their names; what is no NAME=VALUE is refused."""
    parted = [each.partition("=") for each in given]
    if bad := [name for name, equals, _ in parted if not equals or not name]:
        raise typer.BadParameter(f"{bad[0]!r} is no setting; write NAME=VALUE", param_hint="'--conf'")
    return {name: value for name, _, value in parted}

"""`holdfast serve`: run a broker until it is told to stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import settings
from holdfast.cli.options import examples
from holdfast.cli.settings import ConfigFile, with_flags
from holdfast.node import config as node_config

EXAMPLES = examples(
    "holdfast serve",
    "holdfast serve --data /var/lib/holdfast --text 0.0.0.0:8080 --http 0.0.0.0:8090",
    "holdfast serve --config holdfast.toml --sync interval:50",
    "holdfast serve --compute-ms 50:150",
    "holdfast serve --store postgres",
)


@with_flags(node_config.SETTINGS)
def serve(
    config: ConfigFile = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the addresses as JSON to FILE once the broker serves."),
    ] = None,
    **flags: object,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C."""
    checked = settings.load(config, flags)
    if ready_file is not None and not ready_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {ready_file.absolute().parent}", param_hint="'--ready-file'")

    from holdfast.node import logs, process

    logs.configure(checked.log_level, checked.log_format)
    raise typer.Exit(process.run(checked, ready_file, quiet="HOLDFAST_QUIET" in os.environ))

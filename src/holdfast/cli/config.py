"""`holdfast config check`: what a broker would run with, and where it is wrong."""

from __future__ import annotations

import typer

from holdfast.cli import output, settings
from holdfast.cli.options import Json, examples
from holdfast.cli.settings import ConfigFile
from holdfast.node import config as node_config

app = typer.Typer(help="Look at settings.", no_args_is_help=True)

EXAMPLES = examples("holdfast config check --config holdfast.toml", "HOLDFAST_SYNC=none holdfast config check --json")


@app.command("check", epilog=EXAMPLES)
def check(
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Check settings from file and environment, and show what would be used."""
    checked = settings.load(config, {}).shown()
    if as_json:
        output.print_json(checked)
        return

    table = output.table("setting", "value", "what it is")
    for name in node_config.SETTINGS:
        value = getattr(checked, name)
        shown = "" if value in (None, []) else ", ".join(value) if isinstance(value, list) else str(value)
        table.add_row(name, shown, settings.description(name))
    console = output.console()
    console.print(table)
    console.print("These settings are fine.")

"""`holdfast serve`: run a broker until it is told to stop."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from holdfast.cli import settings
from holdfast.cli.options import examples
from holdfast.cli.settings import SETTINGS_PANEL, ConfigFile
from holdfast.node import config as node_config

EXAMPLES = examples(
    "holdfast serve",
    "holdfast serve --data /var/lib/holdfast --text 0.0.0.0:8080 --http 0.0.0.0:8090",
    "holdfast serve --config holdfast.toml --sync interval:50",
    "holdfast serve --compute-ms 50:150",
    "holdfast serve --store postgres",
)


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every setting, so that none can be forgotten here."""
    signature = inspect.signature(command)
    own_hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=own_hints[parameter.name])
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    flags = []
    for name in node_config.SETTINGS:
        flag = "--" + name.replace("_", "-")
        is_switch = settings.is_switch(name)
        declarations = [f"{flag}/--no-{flag[2:]}"] if is_switch else [flag]
        option = typer.Option(*declarations, help=_help(name), rich_help_panel=SETTINGS_PANEL, show_default=False)
        kind: Any = bool | None if is_switch else str | None
        flags.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
        )
    command.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
    return command


def _help(name: str) -> str:
    default = settings.default_text(name)
    shown = f" [default: {default}]" if default else ""
    text = settings.description(name)
    return f"{text[0].upper()}{text[1:]}." + shown.replace("[", "\\[")


@_with_settings
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

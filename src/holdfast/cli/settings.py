"""The broker's settings as commands see them: where they come from, and what each is for."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from holdfast.node import config as node_config
from holdfast.node.config import Config

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.", envvar="HOLDFAST_CONFIG")
]
SETTINGS_PANEL = "Settings (also in the file and as HOLDFAST_…)"


def load(file: Path | None, flags: dict[str, object]) -> Config:
    """Settings from file, environment and flags; a flag that was not given is `None`."""
    return node_config.load(file, os.environ, flags)


@cache
def hints() -> dict[str, Any]:
    """The type of every setting with its description; found out once, since that takes a while."""
    return get_type_hints(Config, include_extras=True)


def kind(name: str) -> Any:
    """The type of a setting alone."""
    return hints()[name].__origin__


def is_switch(name: str) -> bool:
    """Whether a setting is turned on and off, and has a flag for each."""
    return kind(name) in (bool, bool | None)


def description(name: str) -> str:
    """What a setting is for."""
    return next(str(meta.description) for meta in hints()[name].__metadata__ if hasattr(meta, "description"))


def default_text(name: str) -> str:
    """A setting's default as one would write it; empty where there is none."""
    value = getattr(Config(), name)
    if value in (None, []):
        return ""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_flags(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each of these settings, so that none can be forgotten or described differently."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        own_hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=own_hints[parameter.name])
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters = [*own, *map(_flag, names)]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorated


def _flag(name: str) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    declarations = [f"{flag}/--no-{flag[2:]}"] if is_switch(name) else [flag]
    option = typer.Option(*declarations, help=_help(name), rich_help_panel=SETTINGS_PANEL, show_default=False)
    value: Any = bool | None if is_switch(name) else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[value, option])


def _help(name: str) -> str:
    default = default_text(name)
    shown = f" [default: {default}]" if default else ""
    text = description(name)
    return f"{text[0].upper()}{text[1:]}." + shown.replace("[", "\\[")

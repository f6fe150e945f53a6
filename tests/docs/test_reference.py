"""docs/cli.md and docs/configuration.md say everything that is there, and nothing that is not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from holdfast.cli import settings
from holdfast.cli.app import app
from holdfast.node import config
from holdfast.storage.doctor import Kind
from tests.docs.console import DOCS

CLI = (DOCS / "cli.md").read_text()
CONFIGURATION = (DOCS / "configuration.md").read_text()
# Every command has it, and the text says so once.
EVERYWHERE = {"--help", "-h"}


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*path, name))


COMMANDS = dict(_commands(get_command(app), ("holdfast",)))
LEAVES = [name for name, command in COMMANDS.items() if not getattr(command, "commands", None)]


def _section(name: str) -> str:
    """What stands under the heading of a command, up to the next heading."""
    match = re.search(rf"^##+ {re.escape(name)}\n(.*?)(?=^##+ |\Z)", CLI, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/cli.md has no heading '{name}'"
    return match[1]


def _options(command: Any) -> set[str]:
    return {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-")
    }


def _named_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def _arguments(command: Any) -> list[str]:
    return [parameter.name.upper() for parameter in command.params if parameter.param_type_name == "argument"]


def test_every_option_and_argument_of_a_command_is_documented() -> None:
    missing = [
        f"{name} {option}"
        for name in LEAVES
        for option in _options(COMMANDS[name]) - EVERYWHERE
        if f"`{option}" not in _section(name)
    ]
    missing += [
        f"{name} {argument}"
        for name in LEAVES
        for argument in _arguments(COMMANDS[name])
        if f"`{argument}`" not in _section(name)
    ]
    assert missing == []


def test_no_option_is_documented_that_is_not_there() -> None:
    known = set().union(*map(_options, COMMANDS.values()))
    strange = []
    for name in LEAVES:
        section = _section(name)
        in_its_table = {match[1] for match in re.finditer(r"^\| `(--[a-z-]+)", section, re.MULTILINE)}
        strange += [(name, option) for option in _named_options(section) - known]
        strange += [(name, option) for option in in_its_table - _options(COMMANDS[name])]
    assert strange == []


def test_every_group_and_the_root_are_documented() -> None:
    for name in COMMANDS:
        if name != "holdfast":
            _section(name)
    assert [option for option in _options(COMMANDS["holdfast"]) if option not in CLI] == []


def test_every_command_has_help_and_examples() -> None:
    leaves = {name: COMMANDS[name] for name in LEAVES}
    assert [name for name, command in leaves.items() if not command.help or name not in command.epilog] == []
    parameters = [(name, parameter) for name, command in leaves.items() for parameter in command.params]
    assert [(name, parameter.name) for name, parameter in parameters if not parameter.help] == []


def test_every_finding_of_the_doctor_is_documented() -> None:
    section = _section("holdfast doctor")
    assert [kind for kind in Kind if f"`{kind}`" not in section] == []


# --- settings ---------------------------------------------------------------------------------------------


def _rows() -> dict[str, list[str]]:
    rows = [line.strip("|").split("|") for line in CONFIGURATION.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row] for row in rows}


def test_every_setting_is_documented_and_no_other() -> None:
    assert set(_rows()) == set(config.SETTINGS)


def test_every_setting_has_its_names_and_its_default() -> None:
    rows = _rows()
    told = {}
    for name in config.SETTINGS:
        _, environment, flag, default, meaning = rows[name][:5]
        told[name] = (environment, flag, default.strip("`"), bool(meaning))
    assert told == {name: _documented(name) for name in config.SETTINGS}


def _documented(name: str) -> tuple[str, str, str, bool]:
    """What stands in the row of a setting: two names, the default, and whether there is a meaning."""
    dashed = name.replace("_", "-")
    flag = f"`--{dashed}`, `--no-{dashed}`" if settings.is_switch(name) else f"`--{dashed}`"
    return f"`HOLDFAST_{name.upper()}`", flag, settings.default_text(name), True


def test_example_file_is_a_good_one(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)
    assert example is not None
    file = tmp_path / "holdfast.toml"
    file.write_text(example[1])
    loaded = config.load(file, {}, {})
    for name, value in tomllib.loads(example[1]).items():
        assert getattr(loaded, name) == value

"""Every statement this backend runs, by name, from the `.sql` files beside it. None is put together at run time."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


class Migration(NamedTuple):
    version: int
    name: str
    statements: str


@cache
def _all() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(files(__package__).joinpath("sql").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two statements are named {name}"
            found[name] = text.strip()
    return found


def sql(name: str) -> str:
    """The text of a statement."""
    return _all()[name]


@cache
def migrations() -> tuple[Migration, ...]:
    """All steps from nothing to what this version needs, in order."""
    found = []
    for file in files(__package__).joinpath("sql").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, rest = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), rest, file.read_text("utf-8")))
    found.sort()
    assert [each.version for each in found] == list(range(1, len(found) + 1)), "a migration is missing"
    return tuple(found)

"""Two builds in one process: what this one understands, and what one that comes after it would."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from holdfast.backends.cluster import levels, state_schema
from holdfast.backends.cluster.levels import Level

OLD, NEW = levels.LEVEL, levels.LEVEL + 1
OLD_SCHEMA, NEW_SCHEMA = state_schema.NEWEST_SCHEMA, state_schema.NEWEST_SCHEMA + 1


Steps = dict[int, tuple[str, ...]]


class Build:
    """Which build nodes are of that are started from now on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._older = dict(levels.LEVELS)

    def is_older(self) -> None:
        """The one that is under test."""
        self._understands(self._older, {})

    def is_later(self) -> None:
        """One more level, with a table."""
        steps: Steps = {NEW_SCHEMA: ("CREATE TABLE words (word TEXT) STRICT",)}
        self._understands({**self._older, NEW: Level(commands=(), state_schema=NEW_SCHEMA)}, steps)

    def is_much_later(self) -> None:
        """Three more levels, of which the one in the middle has no table."""
        steps: Steps = {NEW_SCHEMA + n: (f"CREATE TABLE words_{n} (word TEXT) STRICT",) for n in range(2)}
        more = {NEW: NEW_SCHEMA, NEW + 1: state_schema.BASELINE_SCHEMA, NEW + 2: NEW_SCHEMA + 1}
        new = {number: Level(commands=(), state_schema=schema) for number, schema in more.items()}
        self._understands({**self._older, **new}, steps)

    def _understands(self, known: dict[int, Level], steps: Steps) -> None:
        old = {schema: step for schema, step in state_schema._STEPS.items() if schema <= OLD_SCHEMA}
        self._patch.setattr(levels, "LEVELS", known)
        self._patch.setattr(levels, "LEVEL", max(known))
        self._patch.setattr(state_schema, "_STEPS", {**old, **steps})
        self._patch.setattr(state_schema, "NEWEST_SCHEMA", max([OLD_SCHEMA, *steps]))


def content(directory: Path) -> dict[str, str]:
    """All that is in a directory, to be compared."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }

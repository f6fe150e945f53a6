"""A build of the day after: the source tree with a newer protocol, one more command, and a table that it needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import holdfast

VERSION = "9.9.9"
# What whoever writes the next version would do, as `levels.py` tells them. Its command takes a cursor away.
_PATCH = {
    "wire/peer.py": [("PROTOCOL_VERSION: Final = 1", "PROTOCOL_VERSION: Final = 2")],
    "backends/cluster/commands.py": [
        (
            "class RaiseLevel(",
            "class ForgetCursor(msgspec.Struct, array_like=True, frozen=True, tag=31):\n"
            "    topic: TopicName\n    token: str\n    name: CursorName\n\n\nclass RaiseLevel(",
        ),
        ("    | RaiseLevel\n", "    | RaiseLevel\n    | ForgetCursor\n"),
    ],
    "backends/cluster/levels.py": [
        ("    MoveCursor,\n    NoteNode,", "    ForgetCursor,\n    MoveCursor,\n    NoteNode,"),
        ("    ),\n}\n# What this", "    ),\n    2: Level(commands=(ForgetCursor,), state_schema=7),\n}\n# What this"),
        ("BUILD: Final = _installed_version()", f'BUILD: Final = "{VERSION}"'),
    ],
    "backends/cluster/state_schema.py": [
        ("_STEPS: Final[dict[int, tuple[str, ...]]] = {\n", "{0}    7: ('CREATE TABLE words (word TEXT) STRICT',),\n"),
    ],
    "backends/cluster/control_state.py": [
        ("    DropCursor,\n", "    DropCursor,\n    ForgetCursor,\n"),
        ("case DropCursor():", "case DropCursor() | ForgetCursor():"),
    ],
    "backends/cluster/cursor_table.py": [
        ("import Command, DrawCursor, DropCursor,", "import Command, DrawCursor, ForgetCursor,"),
        ("self._propose(DropCursor(", "self._propose(ForgetCursor("),
    ],
}


def make(root: Path) -> Path:
    """The directory that Python has to look in first."""
    made = root / "later"
    package = Path(holdfast.__file__).parent
    shutil.copytree(package, made / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in _PATCH.items():
        file = made / "holdfast" / name
        text = file.read_text("utf-8")
        for before, after in changes:
            assert text.count(before) == 1, f"{name} says no more: {before!r}"
            text = text.replace(before, after.replace("{0}", before))
        file.write_text(text, "utf-8")
    return made

"""The tables of `state.sqlite`, as a ladder: what each version of them added to the one before.

A new file climbs the ladder from the first rung, so there is one description only. How far a file goes is said by the
level of the cluster (`levels.py`), not by the build: a file is also what a node gives to one that is far behind, which
may run an older build.

Crash case: a step and the new `user_version` are one transaction; a file is at one version or at the next.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = (
    """CREATE TABLE topics (
    name TEXT PRIMARY KEY, id INTEGER NOT NULL, token TEXT NOT NULL, voters TEXT NOT NULL, config TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID""",
    """CREATE TABLE cursors (
    topic TEXT NOT NULL, name TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    PRIMARY KEY (topic, name, partition)
) STRICT, WITHOUT ROWID""",
    "CREATE TABLE nodes (node TEXT PRIMARY KEY, life TEXT NOT NULL, addresses TEXT NOT NULL) STRICT, WITHOUT ROWID",
    """CREATE TABLE preferred (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, node TEXT NOT NULL, PRIMARY KEY (topic, partition)
) STRICT, WITHOUT ROWID""",
    "CREATE TABLE applied (log_index INTEGER NOT NULL, term INTEGER NOT NULL) STRICT",
    "INSERT INTO applied VALUES (0, 0)",
)
# Topics of version 1 had no number in the control log; theirs are far above any it will give.
_FIRST_MIGRATED_ID: Final = 1 << 50
_FROM_BEFORE_THE_CONTROL_LOG: Final = (
    "ALTER TABLE topics RENAME TO topics_1",
    _FIRST[0],
    f"""INSERT INTO topics
    SELECT name, {_FIRST_MIGRATED_ID} + row_number() OVER (ORDER BY name), '', '', config, created_ms FROM topics_1
    WHERE deleting != created_ms OR deleting = 0""",
    "DROP TABLE topics_1",
    *_FIRST[2:],
)

# By the version that a step leads to, in order. Steps are never changed once they were released.
_STEPS: Final[dict[int, tuple[str, ...]]] = {
    3: (
        """CREATE TABLE members (
    node TEXT PRIMARY KEY, place TEXT NOT NULL, number INTEGER NOT NULL, since_ms INTEGER NOT NULL, lives TEXT NOT NULL,
    replaces TEXT NOT NULL, is_drained INTEGER NOT NULL
) STRICT, WITHOUT ROWID""",
    ),
    4: (
        """CREATE TABLE callbacks (
    topic TEXT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL, address TEXT NOT NULL, format TEXT NOT NULL,
    created_ms INTEGER NOT NULL, lost TEXT NOT NULL, PRIMARY KEY (topic, name)
) STRICT, WITHOUT ROWID""",
    ),
    5: (
        """CREATE TABLE draws (
    topic TEXT NOT NULL, name TEXT NOT NULL, partition INTEGER NOT NULL, place INTEGER NOT NULL,
    number INTEGER NOT NULL, reader TEXT NOT NULL, request TEXT NOT NULL, first INTEGER NOT NULL,
    count INTEGER NOT NULL, PRIMARY KEY (topic, name, partition, place)
) STRICT, WITHOUT ROWID""",
    ),
    6: (
        "ALTER TABLE nodes ADD COLUMN version TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE nodes ADD COLUMN level INTEGER NOT NULL DEFAULT 1",
        "CREATE TABLE level (level INTEGER NOT NULL) STRICT",
        "INSERT INTO level VALUES (1)",
    ),
}
# What a cluster of the first level has.
BASELINE_SCHEMA: Final = 6
# From this version on the file says at which level its cluster is.
LEVEL_SINCE: Final = 6
# The newest that this build knows.
NEWEST_SCHEMA: Final = max(_STEPS)
_OLDEST_SCHEMA: Final = 2


def statements(version: int, wanted: int) -> list[str]:
    """What takes a file from one version to another, the note of its version included; 0 is an empty file."""
    if version >= wanted:
        return []
    found: list[str] = []
    if version < _OLDEST_SCHEMA:
        found += _FIRST if version == 0 else _FROM_BEFORE_THE_CONTROL_LOG
        version = _OLDEST_SCHEMA
    for reached, step in sorted(_STEPS.items()):
        if version < reached <= wanted:
            found += step
    return [*found, f"PRAGMA user_version = {wanted}"]

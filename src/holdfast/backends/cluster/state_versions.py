"""Who may open a `state.sqlite`: the version of its tables, the level of its cluster, and what this build knows."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from holdfast.backends.cluster import levels, state_schema
from holdfast.model.errors import DataDirectoryError


def checked_version(connection: sqlite3.Connection, name: str) -> int:
    """Of the tables. Raises `BuildTooOld`, or `DataDirectoryError`, for what another build has written."""
    version = version_of(connection)
    levels.check_understood(level_of(connection, version))
    if version > state_schema.NEWEST_SCHEMA:
        raise DataDirectoryError(
            f"{name} has version {version}, this build ({levels.BUILD}) knows {state_schema.NEWEST_SCHEMA}; start the "
            "version of holdfast that wrote it"
        )
    return version


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def level_of(connection: sqlite3.Connection, version: int) -> int:
    if version < state_schema.LEVEL_SINCE:
        return levels.BASELINE
    row = connection.execute("SELECT level FROM level").fetchone()
    if row is None or not isinstance(row[0], int) or not levels.BASELINE <= row[0] <= levels.NUMBER_MAX:
        raise sqlite3.DatabaseError("the level of the cluster is missing, or none that there can be")
    return int(row[0])


def check_understood(path: Path) -> None:
    """Raises `BuildTooOld`, or `DataDirectoryError`, for what another build has written, and `sqlite3.DatabaseError`.

    Neither the file nor anything beside it is changed.
    """
    wal, shm = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    has_wal, had_shm = wal.exists() and wal.stat().st_size > 0, shm.exists()
    # Without a WAL there is nothing that SQLite would have to make files for in order to read it.
    way = "mode=ro" if has_wal else "immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True)) as connection:
            checked_version(connection, path.name)
    finally:
        if not had_shm:
            shm.unlink(missing_ok=True)


def check_before_opening(path: Path) -> None:
    """As `check_understood`, for a file that may be missing or damaged: that is seen to when it is opened."""
    if path.exists():
        with contextlib.suppress(sqlite3.DatabaseError, UnicodeDecodeError):
            check_understood(path)

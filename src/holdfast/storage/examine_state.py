"""Examining what stands around the messages: who wrote the directory, and what `state.sqlite` says is there.

Only the tables are read here. Which version of them a broker takes is for the one who writes them to judge;
a table that is not as expected is told like any other damage.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.model.errors import DataDirectoryError
from holdfast.model.topics import TopicConfig
from holdfast.storage.directory import FORMAT_VERSION, FORMATS_READ, Identity
from holdfast.storage.examined import Kind, Report

STATE_FILE = "state.sqlite"


class State(msgspec.Struct):
    """What state.sqlite says there should be."""

    topics: dict[str, TopicConfig]
    cursors: list[tuple[str, str, int, int]]
    # The last entry of the control log that is in here; 0 where there was none yet.
    applied: int = 0


def examine_identity(directory: Path, report: Report) -> None:
    """Who wrote this. Raises `DataDirectoryError` if this is no data directory, or another version's."""
    file = directory / "holdfast.json"
    try:
        identity = msgspec.json.decode(file.read_bytes(), type=Identity)
    except FileNotFoundError:
        if not (directory / "topics").is_dir():
            raise DataDirectoryError(
                f"{directory} is not a data directory: it has neither holdfast.json nor topics"
            ) from None
        report.found(Kind.IDENTITY_MISSING, file, "the file is not there")
    except OSError as error:
        raise DataDirectoryError(f"cannot read {file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        report.found(Kind.IDENTITY_DAMAGED, file, str(error))
    else:
        if identity.format not in FORMATS_READ:
            raise DataDirectoryError(
                f"{directory} was written in format {identity.format}, this version reads format "
                f"{FORMAT_VERSION}; use the version of holdfast that wrote it"
            )
        report.node = identity.node


def examine_state(directory: Path, report: Report, *, has_topics: bool) -> State | None:
    """What the state file says, or `None` if it cannot be known."""
    file = directory / STATE_FILE
    for aside in sorted(directory.glob(f"{STATE_FILE}.damaged-*")):
        if not aside.name.endswith(("-wal", "-shm")):
            report.found(Kind.STATE_SET_ASIDE, aside, "an earlier broker found it damaged and began a new one")
    if not file.exists():
        if has_topics:
            report.found(Kind.STATE_MISSING, file, "the file is not there, but topics are")
        return None
    try:
        with report.going_on(file), _opened(file, in_place=report.in_use) as connection:
            return _read(connection)
    except (sqlite3.DatabaseError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        report.found(Kind.STATE_DAMAGED, file, str(error))
    return None


@contextlib.contextmanager
def _opened(file: Path, *, in_place: bool) -> Iterator[sqlite3.Connection]:
    """The state file to read from: SQLite writes beside a file with a journal, so it gets a copy.

    A running broker's file is opened `in_place`: a copy taken while it is written to may be torn.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as place:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        if not in_place:
            for path in (file, file.with_name(file.name + "-wal")):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(path, Path(place, path.name))
            uri = Path(place, file.name).as_uri()
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection


def _read(connection: sqlite3.Connection) -> State:
    problems = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise sqlite3.DatabaseError("; ".join(" ".join(problem.split()) for problem in problems))
    state = State({}, [])
    for name, config in connection.execute("SELECT name, config FROM topics"):
        state.topics[name] = msgspec.json.decode(config, type=TopicConfig)
    state.cursors = connection.execute("SELECT topic, name, partition, offset FROM cursors").fetchall()
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'applied'").fetchone():
        (state.applied,) = connection.execute("SELECT log_index FROM applied").fetchone()
    return state

"""Topics and cursors in SQLite: `state.sqlite` in the data directory.

Tables: `topics(name, config JSON, created_ms, deleting)`, `cursors(topic, name, partition, offset)`. The
file is in WAL mode with `synchronous=FULL`: a transaction is on the disk when its commit returns, and after
a crash SQLite itself brings the file back to the last one. Reads are served from memory; writes go through
one thread, which commits everything that waits in one transaction.

Crash cases of our own, in the order of the steps:

- *creating a topic*: directories, then the row. A directory without a row is a topic whose creation was
  not acknowledged; it is empty and is removed at start.
- *deleting a topic*: the row is marked (`deleting` is then its `created_ms`), the directory is moved to the
  trash and removed, the row goes. A marked row is finished at start.
- *the file is damaged*: it is set aside under another name, never deleted; what can still be read from it
  is copied over, and topics that are not among that are found again by the `topic.json` in their
  directories. Cursors that could not be read are gone and say so in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from holdfast.model.errors import DataDirectoryError, DiskFull, StorageFailed
from holdfast.model.ids import CursorName, Offset, TimestampMs, TopicName
from holdfast.model.topics import Topic, TopicConfig

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE topics (
    name TEXT PRIMARY KEY, config TEXT NOT NULL, created_ms INTEGER NOT NULL, deleting INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE cursors (
    topic TEXT NOT NULL, name TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    PRIMARY KEY (topic, name, partition)
) STRICT, WITHOUT ROWID;
"""

# What reading a damaged file may raise; SQLite's own message may quote bytes that are no text.
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError, msgspec.MsgspecError)

CursorKey = tuple[TopicName, CursorName]
Statement = tuple[str, tuple[object, ...]]


class Loaded(msgspec.Struct):
    """What the file held when it was opened; `problem` says what was wrong with it."""

    topics: dict[TopicName, Topic]
    deleting: list[TopicName]
    cursors: dict[CursorKey, dict[int, Offset]]
    problem: str | None = None
    # Whether there may be topics that it does not know: it is damaged, or new.
    is_incomplete: bool = False


class StateStore:
    """Durable writes to `state.sqlite`, grouped; what it holds is kept in memory by its owner."""

    def __init__(self, connection: sqlite3.Connection, on_failure: Callable[[StorageFailed], None]) -> None:
        self._connection = connection
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[list[Statement], asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-state", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, path: Path, *, damaged_suffix: str, on_failure: Callable[[StorageFailed], None]
    ) -> tuple[StateStore, Loaded]:
        """Open or create the file; a damaged one is set aside as `<name><damaged_suffix>`.

        `on_failure` is called when a write fails for another reason than a full disk: what is on the disk is
        unknown then, as after a failed sync of a log.
        """
        try:
            connection, is_new = _connect(path)
            loaded = _load(connection)
            loaded.is_incomplete = is_new
        except _UNREADABLE as error:
            if not _is_damage(error):
                raise DataDirectoryError(
                    f"cannot use {path}: {error}; check room, permissions and who else has it open"
                ) from error
            connection, loaded = _rebuilt(path, path.with_name(path.name + damaged_suffix), str(error))
            loaded.is_incomplete = True
        return cls(connection, on_failure), loaded

    def write(self, statements: list[Statement]) -> asyncio.Future[None]:
        """Run statements in one transaction with others that wait; done once they are on the disk."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._work.put((statements, done))
        return done

    def put_topic(self, topic: Topic) -> asyncio.Future[None]:
        return self.write([_topic_row(topic)])

    def mark_deleting(self, name: TopicName) -> asyncio.Future[None]:
        # Not 1: SQLite has no checksums, and one flipped bit must never read as an order to delete.
        return self.write([("UPDATE topics SET deleting = created_ms WHERE name = ?", (name,))])

    def remove_topic(self, name: TopicName) -> asyncio.Future[None]:
        return self.write(
            [("DELETE FROM cursors WHERE topic = ?", (name,)), ("DELETE FROM topics WHERE name = ?", (name,))]
        )

    def put_cursor(self, key: CursorKey, positions: Mapping[int, Offset]) -> asyncio.Future[None]:
        return self.write(list(_cursor_rows(key, positions)))

    def remove_cursor(self, key: CursorKey) -> asyncio.Future[None]:
        return self.write([("DELETE FROM cursors WHERE topic = ? AND name = ?", key)])

    async def close(self) -> None:
        """Finish what waits, then close the file."""
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            batch = [self._work.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._work.get_nowait())
            stopping = None in batch
            waiting = [item for item in batch if item is not None]
            error = self._commit([statement for statements, _ in waiting for statement in statements])
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._settle, [done for _, done in waiting], error)
        self._connection.close()

    def _commit(self, statements: list[Statement]) -> DiskFull | StorageFailed | None:
        try:
            _write(self._connection, statements)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                return DiskFull("the disk is full: the change was not stored; make room and try again")
            return StorageFailed(f"state.sqlite could not be written: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            return StorageFailed(f"state.sqlite could not be written: {error}")
        return None

    def _settle(self, futures: list[asyncio.Future[None]], error: DiskFull | StorageFailed | None) -> None:
        if isinstance(error, StorageFailed):
            self._on_failure(error)
        for future in futures:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                # Its owner may be gone already; then nobody asks for the reason, and that is fine.
                future.exception()


def _write(connection: sqlite3.Connection, statements: list[Statement]) -> None:
    if not statements:
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            connection.execute(sql, values)


def _connect(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the file; also whether it is new, or as empty as if it were."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
        elif version != _SCHEMA_VERSION:
            raise DataDirectoryError(f"{path.name} has version {version}, this holdfast knows {_SCHEMA_VERSION}")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    except BaseException:
        connection.close()
        raise
    return connection, version == 0


def _load(connection: sqlite3.Connection) -> Loaded:
    loaded = Loaded({}, [], {})
    _read_topics(connection, loaded)
    _read_cursors(connection, loaded)
    return loaded


def _read_topics(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for name, config, created_ms, deleting in connection.execute(
        "SELECT name, config, created_ms, deleting FROM topics"
    ):
        if deleting and deleting == created_ms:
            loaded.deleting.append(name)
        else:
            decoded = msgspec.json.decode(config, type=TopicConfig)
            loaded.topics[name] = Topic(name=name, config=decoded, created_ms=TimestampMs(created_ms))


def _read_cursors(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for topic, name, partition, offset in connection.execute("SELECT topic, name, partition, offset FROM cursors"):
        loaded.cursors.setdefault((topic, name), {})[partition] = Offset(offset)


def _is_damage(error: Exception) -> bool:
    """Whether the file itself is wrong: a lock, a full disk or a failing one pass, and cost no cursors."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _rebuilt(path: Path, set_aside: Path, why: str) -> tuple[sqlite3.Connection, Loaded]:
    """A new file with what can be read from a damaged one; if there is no room for it, all stays as it was."""
    loaded = _salvage(path, set_aside, why)
    try:
        connection, _ = _connect(path)
        _write(connection, list(_statements_for(loaded)))
    except sqlite3.DatabaseError as error:
        _move(set_aside, path)
        raise DataDirectoryError(f"{path} is damaged ({why}) and cannot be rebuilt: {error}") from error
    return connection, loaded


def _move(path: Path, target: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))


def _salvage(path: Path, set_aside: Path, why: str) -> Loaded:
    """Move the damaged file away and read from it what can be read."""
    _move(path, set_aside)
    loaded = Loaded({}, [], {}, f"state.sqlite was damaged ({why}); it was set aside as {set_aside.name}")
    readers: list[Callable[[sqlite3.Connection, Loaded], None]] = [_read_topics, _read_cursors]
    for read in readers:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{set_aside}?mode=ro", uri=True)) as damaged:
                read(damaged, loaded)
        except _UNREADABLE as error:
            loaded.problem = f"{loaded.problem}; {read.__name__[6:]} were read only in part ({error})"
    return loaded


def _statements_for(loaded: Loaded) -> Iterable[Statement]:
    for topic in loaded.topics.values():
        yield _topic_row(topic)
    for key, positions in loaded.cursors.items():
        yield from _cursor_rows(key, positions)


def _topic_row(topic: Topic) -> Statement:
    config = msgspec.json.encode(topic.config).decode()
    return "INSERT OR REPLACE INTO topics VALUES (?, ?, ?, 0)", (topic.name, config, topic.created_ms)


def _cursor_rows(key: CursorKey, positions: Mapping[int, Offset]) -> Iterable[Statement]:
    for partition, offset in positions.items():
        yield "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)", (*key, partition, offset)

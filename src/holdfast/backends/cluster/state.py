"""What the control log has decided so far, in SQLite: `state.sqlite` in the data directory.

Tables: `topics`, `cursors`, `draws` (what readers of a cursor drew and who took it last), `nodes`, `preferred`
(leaders that somebody asked for), `members` (nodes that came, went or are to lead no more, see
`consensus.membership`), `callbacks` (subscriptions that the cluster connects to), `level` (of the cluster, see
`levels.py`) and `applied(log_index, term)` with one row: the last entry of the control log whose changes are in the
others. `state_schema.py` describes them. A node's snapshot is this file. It is in WAL mode with `synchronous=FULL`;
reads are served from memory, writes go through one thread, which commits everything that waits in one transaction,
together with the new `applied`. Of rows that are written over and over in there, such as a busy reader's, only the
last is.

The control log is the truth and this file follows it, a moment behind, so there is nothing to be lost between
the two. Crash cases:

- *the file is behind the log*: entries above `applied` are applied again; the log keeps them until then.
- *the file is ahead of the log*: only after an installation was cut short between its two steps (the file
  first, the log second); the log is begun anew behind `applied`, with the members that `votes.log` has for that entry
  (`snapshots.py`).
- *a topic's directory without a row*, or the other way round: creating makes the directory first and deleting
  removes it first, and both are done again from the log, which recognises a topic by its token.
- *the file is damaged*: it is set aside under another name, never deleted; what can still be read from it
  is copied over, and topics that are not among that are found again by the `topic.json` in their
  directories. Cursors that could not be read are gone and say so in the log. A node that has peers takes a new
  life instead and gets everything from them.
- *a file of version 1* (before there was a control log) gets what it lacks; its `applied` is 0.
- *a file of a cluster whose level this build does not understand* is left as it is, and the node does not start.
- *the level cannot be read*: that is damage. A broker that stands alone takes the highest level it understands, with
  all tables: one table too many does no harm, one too few would.
- *a level and the tables it needs* are written in one transaction, and which tables those are is found by the file's
  own version: applied again, a level makes no table twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.backends.cluster import levels, member_rows, state_schema, state_versions
from holdfast.backends.cluster.draw_table import DrawRow
from holdfast.broker.results import refuse
from holdfast.consensus.membership import Member
from holdfast.model.callbacks import Callback
from holdfast.model.errors import DataDirectoryError, DiskFull, StorageFailed
from holdfast.model.ids import CursorName, LogIndex, Offset, PartitionId, Term, TimestampMs, TopicName
from holdfast.model.topics import Topic, TopicConfig

# What reading a damaged file may raise; SQLite's own message may quote bytes that are no text.
_UNREADABLE = (sqlite3.DatabaseError, ValueError, msgspec.MsgspecError)

_PUT_CURSOR: Final = "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)"
_PUT_DRAW: Final = "INSERT OR REPLACE INTO draws VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_APPLIED: Final = "UPDATE applied SET log_index = ?, term = ?"
# Statements that replace a whole row, with how many of their values say which row.
_REPLACING: Final = {_PUT_CURSOR: 3, _PUT_DRAW: 4, _PUT_APPLIED: 0}

CursorKey = tuple[TopicName, CursorName]
Statement = tuple[str, tuple[object, ...]]
# Stands for the statements that take the file from the version it has to the one that is given.
_CLIMB: Final = "climb"


class NodeRow(msgspec.Struct, frozen=True):
    """What is known of a node: the life of its disk, where it is reached, and what its build understands."""

    node: str
    life: str
    addresses: dict[str, str]
    version: str = ""
    level: int = levels.BASELINE


class Loaded(msgspec.Struct):
    """What the file held when it was opened; `problem` says what was wrong with it."""

    topics: dict[TopicName, Topic]
    cursors: dict[CursorKey, dict[int, Offset]]
    nodes: dict[str, NodeRow]
    preferred: dict[PartitionId, str] = msgspec.field(default_factory=dict)
    draws: dict[CursorKey, dict[int, list[DrawRow]]] = msgspec.field(default_factory=dict)
    callbacks: dict[CursorKey, Callback] = msgspec.field(default_factory=dict)
    members: list[Member] = msgspec.field(default_factory=list)
    applied: LogIndex = LogIndex(0)
    applied_term: Term = Term(0)
    level: int = levels.BASELINE
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
        cls,
        path: Path,
        *,
        damaged_suffix: str,
        on_failure: Callable[[StorageFailed], None],
        on_damage: Callable[[str], None] = lambda reason: None,
        may_salvage: bool = True,
    ) -> tuple[StateStore, Loaded]:
        """Open or create the file; a damaged one is set aside as `<name><damaged_suffix>`, after `on_damage`.

        What can be read from it is taken over if `may_salvage`: with peers, half a state is worse than none. They
        also decide on the level; without them a new file has the highest that this build understands.

        `on_failure` is called when a write fails for another reason than a full disk: what is on the disk is
        unknown then, as after a failed sync of a log.
        """
        try:
            connection, is_new = _connect(path, levels.LEVEL if may_salvage else levels.BASELINE)
            loaded = _load(connection)
            loaded.is_incomplete = is_new
        except _UNREADABLE as error:
            if not _is_damage(error, path):
                raise DataDirectoryError(
                    f"cannot use {path}: {error}; check room, permissions and who else has it open"
                ) from error
            on_damage(f"{path.name} is damaged: {error}")
            set_aside = path.with_name(path.name + damaged_suffix)
            connection, loaded = _rebuilt(path, set_aside, str(error), may_salvage=may_salvage)
            loaded.is_incomplete = True
        return cls(connection, on_failure), loaded

    def write(self, statements: list[Statement]) -> asyncio.Future[None]:
        """Run statements in one transaction with others that wait; done once they are on the disk."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._work.put((statements, done))
        return done

    async def close(self) -> None:
        """Finish what waits, then close the file."""
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    def close_now(self) -> None:
        """Before anything was written."""
        self._work.put(None)
        self._thread.join()

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
            if error is not None:
                refuse(future, error)
            elif not future.done():
                future.set_result(None)


def _write(connection: sqlite3.Connection, statements: list[Statement]) -> None:
    if not statements:
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for sql, values in _last_ones(statements):
            if sql == _CLIMB:
                _climb(connection, *values)
            else:
                connection.execute(sql, values)


def _climb(connection: sqlite3.Connection, wanted: object) -> None:
    assert isinstance(wanted, int)
    for step in state_schema.statements(state_versions.version_of(connection), wanted):
        connection.execute(step)


def _last_ones(statements: list[Statement]) -> Iterable[Statement]:
    """All but those whose row is replaced by a later one: whatever is deleted between the two, that one makes it."""
    last: dict[tuple[object, ...], int] = {}
    for index, (sql, values) in enumerate(statements):
        keys = _REPLACING.get(sql)
        last[(index,) if keys is None else (sql, *values[:keys])] = index
    return (statements[index] for index in sorted(last.values()))


def _connect(path: Path, level_of_new: int) -> tuple[sqlite3.Connection, bool]:
    """Open the file; also whether it is new, or as empty as if it were."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        version = state_versions.checked_version(connection, path.name)
        level = level_of_new if version == 0 else state_versions.level_of(connection, version)
        if version < levels.schema_of(level):
            _write(connection, level_rows(level))
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    except BaseException:
        connection.close()
        raise
    return connection, version == 0


def _load(connection: sqlite3.Connection) -> Loaded:
    loaded = Loaded({}, {}, {})
    for read in _READERS:
        read(connection, loaded)
    return loaded


def _read_topics(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for name, number, token, voters, config, created_ms in connection.execute(
        "SELECT name, id, token, voters, config, created_ms FROM topics"
    ):
        loaded.topics[name] = Topic(
            name=name,
            config=msgspec.json.decode(config, type=TopicConfig),
            created_ms=TimestampMs(created_ms),
            id=number,
            token=token,
            voters=tuple(voters.split(",")) if voters else (),
        )


def _read_nodes(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for node, life, addresses, version, level in connection.execute(
        "SELECT node, life, addresses, version, level FROM nodes"
    ):
        places = msgspec.json.decode(addresses, type=dict[str, str])
        loaded.nodes[node] = NodeRow(node, life, places, version, level)


def _read_preferred(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for topic, partition, node in connection.execute("SELECT topic, partition, node FROM preferred"):
        loaded.preferred[PartitionId(topic, partition)] = node


def _read_members(connection: sqlite3.Connection, loaded: Loaded) -> None:
    loaded.members += member_rows.read(connection)


def _read_applied(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for index, term in connection.execute("SELECT log_index, term FROM applied"):
        # In a damaged file even what may not be null can be.
        loaded.applied, loaded.applied_term = LogIndex(index or 0), Term(term or 0)


def _read_level(connection: sqlite3.Connection, loaded: Loaded) -> None:
    loaded.level = state_versions.level_of(connection, state_schema.LEVEL_SINCE)


def _read_cursors(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for topic, name, partition, offset in connection.execute("SELECT topic, name, partition, offset FROM cursors"):
        loaded.cursors.setdefault((topic, name), {})[partition] = Offset(offset)


def _read_draws(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for topic, name, partition, *row in connection.execute(
        "SELECT topic, name, partition, place, number, reader, request, first, count FROM draws"
    ):
        loaded.draws.setdefault((topic, name), {}).setdefault(partition, []).append(DrawRow(*row))


def _read_callbacks(connection: sqlite3.Connection, loaded: Loaded) -> None:
    for topic, name, number, address, form, created_ms, lost in connection.execute(
        "SELECT topic, name, number, address, format, created_ms, lost FROM callbacks"
    ):
        loaded.callbacks[topic, name] = Callback(
            topic=topic,
            name=name,
            number=number,
            address=address,
            format=form,
            created_ms=created_ms,
            lost=msgspec.json.decode(lost, type=dict[int, int]),
        )


_READERS: Final = (
    _read_topics,
    _read_cursors,
    _read_draws,
    _read_nodes,
    _read_preferred,
    _read_callbacks,
    _read_members,
    _read_applied,
    _read_level,
)


def _is_damage(error: Exception, path: Path) -> bool:
    """Whether the file itself is wrong: a lock, a full disk or a failing one pass, and cost no cursors."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code & 0xFF == sqlite3.SQLITE_READONLY:
        # The file's header says so: a flipped bit makes it the work of a later SQLite.
        return os.access(path, os.W_OK)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _rebuilt(path: Path, set_aside: Path, why: str, *, may_salvage: bool) -> tuple[sqlite3.Connection, Loaded]:
    """A new file with what can be read from a damaged one; if there is no room for it, all stays as it was."""
    loaded = _salvage(path, set_aside, why)
    if not may_salvage:
        # Its level, too, is what the log or a peer says.
        loaded = Loaded({}, {}, {}, problem=loaded.problem)
    try:
        connection, _ = _connect(path, loaded.level)
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
    why = f"state.sqlite was damaged ({why}); it was set aside as {set_aside.name}"
    loaded = Loaded({}, {}, {}, level=levels.LEVEL, problem=why)
    for read in _READERS:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{set_aside}?mode=ro", uri=True)) as damaged:
                read(damaged, loaded)
        except _UNREADABLE as error:
            loaded.problem = f"{loaded.problem}; {read.__name__[6:]} were read only in part ({error})"
    return loaded


def _statements_for(loaded: Loaded) -> Iterable[Statement]:
    for topic in loaded.topics.values():
        yield topic_row(topic)
    for key, positions in loaded.cursors.items():
        yield from cursor_rows(key, positions)
    for key, by_partition in loaded.draws.items():
        for partition, rows in by_partition.items():
            yield from (draw_row(key, partition, each) for each in rows)
    for row in loaded.nodes.values():
        yield node_row(row)
    for place, node in loaded.preferred.items():
        yield preferred_row(*place, node)
    for callback in loaded.callbacks.values():
        yield callback_row(callback)
    for member in loaded.members:
        yield member_rows.put(member)
    yield applied_row(loaded.applied, loaded.applied_term)


# --- statements: what an applied command changes ------------------------------------------------------------


def topic_row(topic: Topic) -> Statement:
    config = msgspec.json.encode(topic.config).decode()
    values = (topic.name, topic.id, topic.token, ",".join(topic.voters), config, topic.created_ms)
    return "INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?, ?, ?)", values


def without_topic(name: TopicName) -> list[Statement]:
    return [
        ("DELETE FROM cursors WHERE topic = ?", (name,)),
        ("DELETE FROM draws WHERE topic = ?", (name,)),
        ("DELETE FROM preferred WHERE topic = ?", (name,)),
        ("DELETE FROM callbacks WHERE topic = ?", (name,)),
        ("DELETE FROM topics WHERE name = ?", (name,)),
    ]


def cursor_rows(key: CursorKey, positions: Mapping[int, Offset]) -> list[Statement]:
    return [(_PUT_CURSOR, (*key, partition, offset)) for partition, offset in positions.items()]


def draw_row(key: CursorKey, partition: int, row: DrawRow) -> Statement:
    return _PUT_DRAW, (*key, partition, row.place, row.number, row.reader, row.request, row.first, row.count)


def without_cursor(key: CursorKey) -> list[Statement]:
    return [
        ("DELETE FROM cursors WHERE topic = ? AND name = ?", key),
        ("DELETE FROM draws WHERE topic = ? AND name = ?", key),
    ]


def node_row(row: NodeRow) -> Statement:
    values = (row.node, row.life, msgspec.json.encode(row.addresses).decode(), row.version, row.level)
    return "INSERT OR REPLACE INTO nodes (node, life, addresses, version, level) VALUES (?, ?, ?, ?, ?)", values


def level_rows(level: int) -> list[Statement]:
    """A level, and the tables it needs."""
    return [(_CLIMB, (levels.schema_of(level),)), ("UPDATE level SET level = ?", (level,))]


def preferred_row(topic: TopicName, partition: int, node: str) -> Statement:
    return "INSERT OR REPLACE INTO preferred VALUES (?, ?, ?)", (topic, partition, node)


def callback_row(callback: Callback) -> Statement:
    lost = msgspec.json.encode(callback.lost).decode()
    place = (callback.topic, callback.name, callback.number, callback.address)
    return "INSERT OR REPLACE INTO callbacks VALUES (?, ?, ?, ?, ?, ?, ?)", (
        *place,
        callback.format,
        callback.created_ms,
        lost,
    )


def without_callback(key: CursorKey) -> Statement:
    return "DELETE FROM callbacks WHERE topic = ? AND name = ?", key


def applied_row(index: LogIndex, term: Term) -> Statement:
    return _PUT_APPLIED, (index, term)

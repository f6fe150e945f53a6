"""The control state as a whole, for a node whose control log ends before another's begins.

The leader makes a copy of its `state.sqlite` and gives it away in pieces; the receiver writes them to
`state.sqlite.incoming`. Once all are there and the file is sound, the configuration that holds at the state's last
entry, which came with it, is saved in `votes.log`, and the file takes the place of its own. Then it deletes
and makes the directories of topics that are gone or new, and at last the control log begins behind the state. Crash
cases:

- *before the exchange*: an incoming file is deleted at start, and asked for again. A configuration whose entry is not
  in the log does not count.
- *behind it*: a topic of the state has no directory, or that of another topic which had its name. Nothing was promised
  in it, for the votes know nothing of its groups, so it is made at start (`opening.py`). A directory whose topic is
  gone stays until a topic of that name is made. The control log is begun anew behind the state, as told in `state.py`,
  with the configuration that was saved. The same holds until the log has caught up with the state.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import uuid_utils

from holdfast.backends.cluster.configurations import Known
from holdfast.backends.cluster.forwarding import Peers
from holdfast.backends.cluster.requests import Method, SnapshotReply, SnapshotRequest, encode
from holdfast.backends.cluster.state_versions import check_understood
from holdfast.model.errors import BadValue, HoldfastError, Unavailable
from holdfast.model.ids import LogIndex
from holdfast.model.limits import MIB
from holdfast.storage.durable import sync_file

_PIECE_BYTES: Final = 1 * MIB
_REPLY_S: Final = 30.0
# Whoever reads on does so sooner, also where an answer took its time.
_UNREAD_S: Final = 2 * _REPLY_S
# Each is as large as the state. One is enough unless the log drops what stands behind it while it is being read.
_COPIES_MAX: Final = 3
_COPY_PREFIX: Final = "state.sqlite.copy-"
_INCOMING: Final = "state.sqlite.incoming"
_decode_request = msgspec.msgpack.Decoder(SnapshotRequest).decode
_decode_reply = msgspec.msgpack.Decoder(SnapshotReply).decode


class _Copy(NamedTuple):
    path: Path
    # The last entry of the control log that is in it.
    applied: LogIndex
    # The configuration there, if it is certain.
    known: Known | None
    read_at_s: float


class Fetched(NamedTuple):
    path: Path
    # The configuration at the last entry that is in it, if the other node knows it for certain.
    known: Known | None


class SnapshotGiver:
    """Copies of this node's state that others are reading.

    Whoever begins gets the newest one, as long as the control log, which begins behind `log_base`, goes on from there:
    so nodes that need a state at the same time share one, and none of them takes it away from another.
    """

    def __init__(
        self, state_file: Path, log_base: Callable[[], LogIndex], known_at: Callable[[LogIndex], Known | None]
    ) -> None:
        self._state_file = state_file
        self._log_base = log_base
        self._known_at = known_at
        self._copies: dict[str, _Copy] = {}
        self._copying = asyncio.Lock()
        self._sweeping: asyncio.TimerHandle | None = None
        for left_over in state_file.parent.glob(f"{_COPY_PREFIX}*"):
            left_over.unlink()

    async def give(self, body: memoryview) -> bytes:
        """One piece. Raises `BadValue` for a copy that is gone: whoever reads it begins again; `Unavailable`."""
        wanted = _decode_request(body)
        name = wanted.name if wanted.position else await self._begun()
        copy = self._copies.get(name)
        if copy is None:
            raise BadValue("that copy is gone; begin again")
        loop = asyncio.get_running_loop()
        self._copies[name] = copy._replace(read_at_s=loop.time())
        if self._sweeping is None:
            self._sweeping = loop.call_later(_UNREAD_S, self._sweep)
        size, piece = await asyncio.to_thread(_piece, copy.path, wanted.position)
        return encode(SnapshotReply(name, size, piece, copy.known.encode() if copy.known else ""))

    async def _begun(self) -> str:
        async with self._copying:
            newest = next(reversed(self._copies), None)
            if newest is not None and self._copies[newest].applied >= self._log_base():
                return newest
            if len(self._copies) >= _COPIES_MAX:
                raise Unavailable("others are reading older states of this node; try again in a moment")
            name = str(uuid_utils.uuid7())
            path = self._state_file.with_name(f"{_COPY_PREFIX}{name}")
            copying = asyncio.ensure_future(asyncio.to_thread(self._copy, path))
            try:
                applied = await asyncio.shield(copying)
            except asyncio.CancelledError:
                # Whoever asked is gone, and the thread is not: what it makes is nobody's.
                copying.add_done_callback(partial(_drop, path))
                raise
            try:
                known = self._known_at(applied)
            except Unavailable:
                path.unlink(missing_ok=True)
                raise
            self._copies[name] = _Copy(path, applied, known, asyncio.get_running_loop().time())
            return name

    def _copy(self, path: Path) -> LogIndex:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self._state_file}?mode=ro", uri=True)) as source:
                source.execute("VACUUM INTO ?", (str(path),))
        except sqlite3.Error as error:
            path.unlink(missing_ok=True)
            raise Unavailable(f"the state could not be copied: {error}") from error
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as copied:
            row = copied.execute("SELECT log_index FROM applied").fetchone()
        return LogIndex(0 if row is None else row[0])

    def _sweep(self) -> None:
        """Delete what nobody reads any more: all who needed it have it, or are gone."""
        loop = asyncio.get_running_loop()
        for name, copy in list(self._copies.items()):
            if copy.read_at_s + _UNREAD_S <= loop.time():
                del self._copies[name]
                copy.path.unlink(missing_ok=True)
        self._sweeping = loop.call_later(_UNREAD_S, self._sweep) if self._copies else None

    def close(self) -> None:
        """What is left is deleted at the next start."""
        if self._sweeping is not None:
            self._sweeping.cancel()


def _drop(path: Path, copying: asyncio.Future[LogIndex]) -> None:
    if copying.exception() is None:
        path.unlink(missing_ok=True)


def _piece(path: Path, position: int) -> tuple[int, bytes]:
    with path.open("rb") as file:
        file.seek(position)
        return path.stat().st_size, file.read(_PIECE_BYTES)


async def fetch(peers: Peers, node: str, directory: Path, on_progress: Callable[[int, int], None]) -> Fetched:
    """Get a node's state into a file beside one's own. Raises `Unavailable`, and `BuildTooOld` for a newer build's."""
    incoming = directory / _INCOMING
    name, position, size, known = "", 0, 1, ""
    with incoming.open("wb") as file:
        while position < size:
            request = encode(SnapshotRequest(name, position))
            try:
                reply = _decode_reply(await peers.request(node, Method.SNAPSHOT, request, _REPLY_S))
            except (HoldfastError, msgspec.MsgspecError) as error:
                # Whatever is the matter there, it is no reason for this node to leave.
                raise Unavailable(f"{node} did not give its state: {error}") from error
            name, size, known = reply.name, reply.size, reply.known
            if not reply.piece:
                raise Unavailable(f"{node} gave nothing of its state")
            await asyncio.to_thread(file.write, reply.piece)
            position += len(reply.piece)
            on_progress(position, size)
        file.flush()
    await asyncio.to_thread(_check, incoming)
    try:
        return Fetched(incoming, Known.decode(known) if known else None)
    except ValueError as error:
        raise Unavailable(f"{node} does not say clearly who belongs to the cluster: {error}") from error


def _check(path: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        check_understood(path)
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict != "ok":
        raise Unavailable(f"the state that was sent is damaged: {verdict}")
    with path.open("rb+") as file:
        sync_file(file.fileno())


def remove_incoming(directory: Path) -> None:
    (directory / _INCOMING).unlink(missing_ok=True)

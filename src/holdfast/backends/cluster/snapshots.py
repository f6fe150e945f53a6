"""The control state as a whole, for a node whose control log ends before another's begins.

The leader makes a copy of its `state.sqlite` and gives it away in pieces; the receiver writes them to
`state.sqlite.incoming`, and once all are there and the file is sound, puts it in the place of its own. Then it deletes
and makes the directories of topics that are gone or new, and at last the control log begins behind the state. Crash
cases:

- *before the exchange*: an incoming file is deleted at start, and asked for again.
- *behind it*: a topic of the state has no directory, or that of another topic which had its name. Nothing was promised
  in it, for the votes know nothing of its groups, so it is made at start (`opening.py`). A directory whose topic is
  gone stays until a topic of that name is made. The control log is begun anew behind the state, as told in `state.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import uuid_utils

from holdfast.backends.cluster.forwarding import Peers
from holdfast.backends.cluster.requests import Method, SnapshotReply, SnapshotRequest, encode
from holdfast.backends.cluster.state_versions import check_understood
from holdfast.model.errors import BadValue, HoldfastError, Unavailable
from holdfast.model.limits import MIB
from holdfast.storage.durable import sync_file

_PIECE_BYTES: Final = 1 * MIB
_REPLY_S: Final = 30.0
_COPY_PREFIX: Final = "state.sqlite.copy-"
_INCOMING: Final = "state.sqlite.incoming"
_decode_request = msgspec.msgpack.Decoder(SnapshotRequest).decode
_decode_reply = msgspec.msgpack.Decoder(SnapshotReply).decode


class SnapshotGiver:
    """Copies of this node's state that others are reading; the newest one is kept."""

    def __init__(self, state_file: Path) -> None:
        self._state_file = state_file
        self._name = ""
        self._copying = asyncio.Lock()
        for left_over in state_file.parent.glob(f"{_COPY_PREFIX}*"):
            left_over.unlink()

    async def give(self, body: memoryview) -> bytes:
        """One piece. Raises `BadValue` for a copy that is gone: whoever reads it begins again."""
        wanted = _decode_request(body)
        async with self._copying:
            if wanted.position == 0:
                await asyncio.to_thread(self._copy)
            elif wanted.name != self._name:
                raise BadValue("that copy is gone; begin again")
            path = self._path(self._name)
            size, piece = await asyncio.to_thread(_piece, path, wanted.position)
            if wanted.position + len(piece) >= size:
                path.unlink(missing_ok=True)
        return encode(SnapshotReply(self._name, size, piece))

    def _copy(self) -> None:
        self._path(self._name).unlink(missing_ok=True)
        self._name = str(uuid_utils.uuid7())
        with contextlib.closing(sqlite3.connect(f"file:{self._state_file}?mode=ro", uri=True)) as source:
            source.execute("VACUUM INTO ?", (str(self._path(self._name)),))

    def _path(self, name: str) -> Path:
        return self._state_file.with_name(f"{_COPY_PREFIX}{name}")


def _piece(path: Path, position: int) -> tuple[int, bytes]:
    with path.open("rb") as file:
        file.seek(position)
        return path.stat().st_size, file.read(_PIECE_BYTES)


async def fetch(peers: Peers, node: str, directory: Path, on_progress: Callable[[int, int], None]) -> Path:
    """Get a node's state into a file beside one's own. Raises `Unavailable`, and `BuildTooOld` for a newer build's."""
    incoming = directory / _INCOMING
    name, position, size = "", 0, 1
    with incoming.open("wb") as file:
        while position < size:
            request = encode(SnapshotRequest(name, position))
            try:
                reply = _decode_reply(await peers.request(node, Method.SNAPSHOT, request, _REPLY_S))
            except (HoldfastError, msgspec.MsgspecError) as error:
                # Whatever is the matter there, it is no reason for this node to leave.
                raise Unavailable(f"{node} did not give its state: {error}") from error
            name, size = reply.name, reply.size
            if not reply.piece:
                raise Unavailable(f"{node} gave nothing of its state")
            await asyncio.to_thread(file.write, reply.piece)
            position += len(reply.piece)
            on_progress(position, size)
        file.flush()
    await asyncio.to_thread(_check, incoming)
    return incoming


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

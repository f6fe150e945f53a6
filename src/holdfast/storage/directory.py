"""The data directory of one broker: who owns it, and which version wrote it.

::

    holdfast.lock      locked (flock) by the broker that runs here; holds its process id, for people
    holdfast.json      {"format": 2, "node": "n1", "created_ms": ..., "life": "..."}
    cluster.json       which cluster this node belongs to (backends/cluster/formation.py)
    peers.json         where the other nodes were last (backends/cluster/peer_book.py)
    removed.json       that this node was taken out of its cluster (backends/cluster/removal.py)
    votes.log          terms, votes and members of all groups (votes.py)
    plain.json         of a plain pair: which of the two this is, and how far it has come (backends/plain/note.py)
    journal/           of a plain pair: its messages in one row (backends/plain/journal.py)
    control/           the control log: segments (log.py)
    state.sqlite       what the control log has decided: topics, cursors, nodes (backends/cluster/state.py)
    topics/<topic>/<partition>/   segments (log.py); the topic's name is percent-encoded (model/names.py)
    topics/<topic>/topic.json     the topic's settings, to find it again if state.sqlite is lost
    trash/             topics that are being deleted
    damaged/           logs that were found damaged and replaced by what other nodes have
    restoring          a backup is being restored here, or that was cut off: no broker starts (backup/restoring.py)
    reserve            zeros; given back when the disk is full, so that topics can be deleted and reads served

`holdfast.json` is written to a temporary name, synced and renamed. Crash case: it is absent, and since nothing
else is written before it, the directory is new. Its `life` tells this directory from another that the same node
had before: what a disk has promised dies with it. A directory that lost something gets a new life. So does one whose
`holdfast.json` is lost, unless `votes.log` says that nobody else votes: then it goes on with the life that votes there.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.model.errors import DataDirectoryError
from holdfast.model.names import path_part
from holdfast.storage.durable import replace_file, sync_directory

FORMAT_VERSION = 2
LOCK = "holdfast.lock"
# While it is there, the directory is being filled from a backup.
RESTORING = "restoring"
# 1 is a broker of before there was a control log: it is read, and from then on it is 2.
FORMATS_READ = (1, FORMAT_VERSION)
# Enough for SQLite to open its file and to commit a deletion.
RESERVE_BYTES = 512 * 1024
# Somebody who only looks whether a broker runs here has the lock for a moment, and must not keep one from starting.
_LOOKED_AT_S = 0.25


class Identity(msgspec.Struct, frozen=True):
    format: int
    node: Annotated[str, msgspec.Meta(min_length=1)]
    created_ms: Annotated[int, msgspec.Meta(ge=0)]
    # Absent in directories of before there were clusters: they live since they were made.
    life: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$", max_length=32)] = ""
    # Terms up to this one were used in an earlier life that had to give way, and are never used again.
    term_floor: int = 0


class DataDirectory:
    """An opened and locked data directory."""

    def __init__(self, path: Path, identity: Identity, lock_fd: int | None) -> None:
        self.path = path
        self.identity = identity
        self._lock_fd = lock_fd

    @property
    def topics(self) -> Path:
        return self.path / "topics"

    def topic(self, name: str) -> Path:
        return self.topics / path_part(name)

    @property
    def trash(self) -> Path:
        return self.path / "trash"

    @property
    def damaged(self) -> Path:
        return self.path / "damaged"

    @property
    def state_file(self) -> Path:
        return self.path / "state.sqlite"

    @property
    def votes_file(self) -> Path:
        return self.path / "votes.log"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def life(self) -> str:
        """Hexadecimal; another one for each directory that a node ever had."""
        return self.identity.life or f"{self.identity.created_ms:x}"

    def begin_new_life(self, now_ms: int, *, term_floor: int = 0) -> None:
        """Something that was promised is lost: from now on this is somebody else, durably."""
        life = f"{max(now_ms, int(self.life, 16) + 1):x}"
        floor = max(term_floor, self.identity.term_floor)
        self.identity = _write_identity(self.path, msgspec.structs.replace(self.identity, life=life, term_floor=floor))
        sync_directory(self.path)

    def resume(self, life: str) -> None:
        """Go on with that life, durably. Only for a node that votes alone: no other node relies on this disk."""
        self.identity = _write_identity(self.path, msgspec.structs.replace(self.identity, life=life))
        sync_directory(self.path)

    def rename(self, node: str) -> None:
        """Give another name, durably, to a node that no other node knows yet."""
        self.identity = _write_identity(self.path, msgspec.structs.replace(self.identity, node=node))
        sync_directory(self.path)

    @classmethod
    def open(cls, path: Path, *, node: str, now_ms: int, restoring_lock_fd: int | None = None) -> DataDirectory:
        """Create or open `path` and lock it. Raises `DataDirectoryError` that says what to do.

        With `restoring_lock_fd` the caller has the lock already and restores a backup; from now on it is this one's.
        """
        lock_fd = take_lock(path) if restoring_lock_fd is None else restoring_lock_fd
        try:
            if restoring_lock_fd is None and (path / RESTORING).exists():
                raise DataDirectoryError(
                    f"restoring a backup to {path} was cut off, it is not whole; give `holdfast backup restore` again"
                )
            identity = read_identity(path)
            if identity is None:
                identity = _write_identity(path, Identity(FORMAT_VERSION, node, now_ms))
            elif identity.format != FORMAT_VERSION:
                # Before anything is written that an older version would not understand.
                identity = _write_identity(path, msgspec.structs.replace(identity, format=FORMAT_VERSION))
            directory = cls(path, identity, lock_fd)
            directory.topics.mkdir(exist_ok=True)
            directory.trash.mkdir(exist_ok=True)
            sync_directory(path)
        except OSError as error:
            os.close(lock_fd)
            raise DataDirectoryError(f"cannot use {path} as data directory: {error.strerror}") from error
        except BaseException:
            os.close(lock_fd)
            raise
        return directory

    @classmethod
    def open_unlocked(cls, path: Path) -> DataDirectory:
        """For looking only. Raises `DataDirectoryError` if it is not a data directory."""
        identity = read_identity(path)
        if identity is None:
            raise DataDirectoryError(f"{path} is not a data directory: it has no holdfast.json")
        return cls(path, identity, None)

    # --- the reserve: room for the few writes that a full disk must not prevent ----------------------

    def keep_reserve(self) -> None:
        """Take the reserve, if it is not there and there is room for it."""
        if self._reserve.exists():
            return
        try:
            self._reserve.write_bytes(bytes(RESERVE_BYTES))
        except OSError:
            self._reserve.unlink(missing_ok=True)  # the disk is full: there is none until there is room

    def release_reserve(self) -> bool:
        """Give its room back; whether there was any."""
        had_reserve = self._reserve.exists()
        self._reserve.unlink(missing_ok=True)
        return had_reserve

    @property
    def _reserve(self) -> Path:
        return self.path / "reserve"

    def close(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def read_identity(path: Path) -> Identity | None:
    """Who wrote this directory; `None` if it is new. Raises `DataDirectoryError` for another version."""
    file = path / "holdfast.json"
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataDirectoryError(f"cannot read {file}: {error.strerror}") from error
    try:
        identity = msgspec.json.decode(content, type=Identity)
    except msgspec.MsgspecError as error:
        raise DataDirectoryError(
            f"{file} is damaged ({error}); move it away and start again: a broker that stands alone goes on as it was, "
            "and a node of a cluster is let in again as one with a new disk"
        ) from error
    if identity.format not in FORMATS_READ:
        raise DataDirectoryError(
            f"{path} was written in format {identity.format}, this version reads format {FORMAT_VERSION}; "
            "use the version of holdfast that wrote it"
        )
    return identity


def make_directory(path: Path) -> None:
    """Make the directory and those above it, durably: with its name a power loss would take all in it."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def take_lock(path: Path) -> int:
    """Lock a directory, and nothing else: who it belongs to is not looked at. Raises `DataDirectoryError`."""
    try:
        make_directory(path)
        lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise DataDirectoryError(
            f"cannot use {path} as data directory: {error.strerror}; name another with --data"
        ) from error
    try:
        lock_directory(lock_fd, path)
    except OSError as error:
        os.close(lock_fd)
        raise DataDirectoryError(f"cannot use {path} as data directory: {error.strerror}") from error
    except BaseException:
        os.close(lock_fd)
        raise
    return lock_fd


def lock_directory(lock_fd: int, path: Path, advice: str = "stop it or name another directory with --data") -> None:
    """For this process alone. Raises `DataDirectoryError` that names the one that has it, and what to do."""
    until_s = time.monotonic() + _LOOKED_AT_S
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= until_s:
                owner = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise DataDirectoryError(f"{path} is in use by another broker (process {owner}); {advice}") from None
        time.sleep(_LOOKED_AT_S / 10)
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)


def _write_identity(path: Path, identity: Identity) -> Identity:
    replace_file(path / "holdfast.json", msgspec.json.encode(identity) + b"\n")
    return identity

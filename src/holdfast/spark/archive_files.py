"""An archive as a directory, on a disk or a file system that driver and executors share.

::

    archive/
      _archive/                                        Spark and Arrow pass over names that begin with _
        lock                                           held by the one process that writes
        commits/00000000000000000007.json              `archive_format.Commit`
        snapshots/00000000000000000050.json            `archive_format.State` behind commit 50
        files/00000000000000000007-3f2a9c/…/*.rows     what one commit has added: Parquet files (`*.parquet` in archives
                                                       of older versions), under a name that `**/*.parquet` passes over
        view                                           the commit that the view below shows
      topic=orders/date=2026-11-18/hour=05/*.parquet   the view: hard links to the files that count

A commit is a file that appears whole under its number, or not at all: it is written and synced under another name and
linked to its own, which fails if the number is taken. Files of rows are synced before, and the sums that Hadoop writes
beside them deleted: Spark would refuse a whole file of which a power loss has torn the sums. Every `SNAPSHOT_EVERY`
commits the state is written as well, and commits and snapshots before the last but one are deleted: readers that began
with the older one find everything they need.

Whoever reads goes by the commits (`load`), and needs no lock. The view is for whoever knows nothing of them, such as
`spark.read.parquet("archive")`. It follows the commits: first links of replaced files go, then those of new ones come.
So it has no row twice at any time; for a moment it may miss some. A file system without hard links has no view.

What a crash leaves, and what becomes of it when somebody opens the archive for writing again:

- rows without their commit, whole or in part: files that no commit knows. The number of the commit that they were
  written for is taken first, by one without rows; then they are deleted.
- a commit under its other name: deleted, as if it had never been.
- a commit that the view does not show yet: the view is brought up to it.
- a commit whose snapshot is missing: there will be another one. An older snapshot, commit or forgotten file that was
  to be deleted: deleted now or the next time.

Two processes cannot write at once: the second one finds the lock held (`archive_busy`). A file system can forget locks.
Then the one whose commit comes second fails, since the number is taken; and files that the other is still writing are
deleted only when their commit cannot come any more. Without locks and without hard links there is nothing that stops
two.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from holdfast.spark.archive_format import FORMAT, ArchivedFile, Commit, State, replayed
from holdfast.spark.errors import ArchiveBusy, ArchiveDamaged, BadOption

SNAPSHOT_EVERY: Final = 50
# How names of files end that Spark has written, and what they are called then, so that who looks for all Parquet files
# below an archive, as DuckDB and Polars do by a pattern, finds the view alone.
PARQUET: Final = ".parquet"
ROWS: Final = ".rows"
_RESTORE: Final = "restore the directory _archive from a copy"
_NUMBER_DIGITS: Final = 20
# Readers that a cleaning overtakes begin again; each time somebody has written a hundred commits meanwhile.
_LOAD_TRIES: Final = 5
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV))

# What Hadoop's patterns are made of.
_PATTERN: Final = re.compile(r"[\\{}\[\]*?^]")

T = TypeVar("T", Commit, State)


def local_path(text: str) -> Path:
    """The directory of an archive, from a path or a `file:` address."""
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        return Path(text).absolute()
    if scheme != "file":
        raise BadOption(
            f"{text}: an archive is a directory on a disk, or on a file system that all machines mount at one place, "
            f"such as NFS, and not in {scheme}. Archive to such a directory; history(…).write puts its rows anywhere",
        )
    return Path("/" + rest.lstrip("/"))


def address(path: Path) -> str:
    """A path as Hadoop takes it: without the escapes of an address."""
    return f"file://{path}"


class ArchiveReader:
    """What is archived, for whoever reads it."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = local_path(str(directory))
        self._own = self.directory / "_archive"
        self._commits = self._own / "commits"
        self._snapshots = self._own / "snapshots"
        self.files = self._own / "files"

    def exists(self) -> bool:
        return self._commits.is_dir()

    def load(self) -> State:
        """The newest state; empty where nothing was archived yet."""
        for _ in range(_LOAD_TRIES):
            newest = max(_numbers(self._snapshots), default=0)
            try:
                state = _read(self._snapshots / _name(newest), State) if newest else State()
            except FileNotFoundError:
                continue
            state = replayed(state, self._commits_behind(state.version))
            commits = [number for number in _numbers(self._commits) if number > state.version]
            # Where it was cleaned up meanwhile, commits were missing that are in a snapshot now. One that is missing
            # for another reason is not passed over: what comes behind it counts as well.
            if max(_numbers(self._snapshots), default=0) <= state.version and commits[:1] in ([], [state.version + 1]):
                return state
        raise ArchiveDamaged(f"{self._own}: a commit is missing, or the snapshot that has it; {_RESTORE}")

    def _commits_behind(self, version: int) -> dict[int, Commit]:
        found: dict[int, Commit] = {}
        while True:
            try:
                found[version + 1] = _read(self._commits / _name(version + 1), Commit)
            except FileNotFoundError:
                return found
            version += 1

    def address_of(self, file: ArchivedFile) -> str:
        """Where Spark reads a file, whatever its default file system is; it takes some characters for patterns."""
        return _PATTERN.sub(r"\\\g<0>", address(self.files / file.path))


class ArchiveWriter(ArchiveReader):
    """The one process that writes an archive; use `opened`."""

    state: State
    has_view: bool

    @contextlib.contextmanager
    def opened(self) -> Iterator[ArchiveWriter]:
        """Lock the archive and put in order what a crash has left."""
        for directory in (self._commits, self._snapshots, self.files):
            directory.mkdir(parents=True, exist_ok=True)
        for directory in (self._own, self.directory):
            _sync(directory)
        lock = os.open(self._own / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusy(f"{self.directory}: another process writes this archive") from None
            self._recover()
            yield self
        finally:
            os.close(lock)

    def _recover(self) -> None:
        for directory in (self._own, self._commits, self._snapshots):
            for half_written in directory.glob(".*"):
                half_written.unlink()
        self.has_view = self._can_link()
        self.state = self.load()
        self._sweep(self._fence())
        self._show()

    def new_place(self) -> Path:
        """A directory for the files of the next commit, which only this commit will know."""
        return self.files / f"{self.state.version + 1:0{_NUMBER_DIGITS}}-{secrets.token_hex(4)}"

    def discard(self, place: Path) -> None:
        """Delete what was written for a commit that does not come; what cannot be deleted is, at the next start."""
        shutil.rmtree(place, ignore_errors=True)

    def commit(self, commit: Commit) -> None:
        """Make a commit, and with it its files, count; on return it is on the disk, and the view shows it."""
        following = self.state.after(commit)
        for file in commit.added:
            rows = self.files / file.path
            _sync(rows)
            rows.with_name(f".{rows.name}.crc").unlink(missing_ok=True)
        for directory in {parent for file in commit.added for parent in Path(file.path).parents}:
            _sync(self.files / directory)
        self._put(self._commits / _name(commit.version), msgspec.json.encode(commit))
        self.state = following
        try:
            for path in commit.forgotten:
                self._delete(self.files / path)
            if commit.version % SNAPSHOT_EVERY == 0:
                self._snapshot()
            self._show()
        except OSError as error:
            counts = f"{error.strerror} (commit {commit.version} counts all the same; the next start does the rest)"
            raise OSError(error.errno, counts, error.filename2 or error.filename) from error

    # --- commits and snapshots ----------------------------------------------------------------------

    def _put(self, path: Path, content: bytes) -> None:
        """Have a file appear whole, if there is none of that name."""
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with open(draft, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if self.has_view:
                os.link(draft, path)
            elif path.exists():
                raise FileExistsError
            else:
                draft.rename(path)
        except FileExistsError:
            raise ArchiveBusy(f"{path}: another process has written this commit of the archive") from None
        finally:
            draft.unlink(missing_ok=True)
        _sync(path.parent)

    def _snapshot(self) -> None:
        before = max(_numbers(self._snapshots), default=0)
        path = self._snapshots / _name(self.state.version)
        if not path.exists():
            self._put(path, msgspec.json.encode(self.state))
        for number in _numbers(self._snapshots):
            if number < before:
                (self._snapshots / _name(number)).unlink()
        for number in _numbers(self._commits):
            if number <= before:
                (self._commits / _name(number)).unlink()

    # --- files that no commit knows -----------------------------------------------------------------

    def _fence(self) -> int:
        """Have no commit come any more for which files are there already: whoever wrote them may live, without a lock.

        Returns the number up to which none comes that is not there.
        """
        following = self.state.version + 1
        if all(_number_of(place) < following for place in self.files.iterdir()):
            return following - 1
        try:
            self.commit(Commit(version=following, time_ms=int(time.time() * 1000), kind="note"))
        except OSError as error:
            # Those files may be what fills the disk: then the lock has to do.
            if error.errno not in _FULL:
                raise
        return following

    def _sweep(self, fenced: int) -> None:
        """Delete files that count neither now nor for queries that were planned before, nor ever will."""
        known = self.state.files.keys() | self.state.retired.keys()
        places = {path.partition("/")[0] for path in known}
        for place in self.files.iterdir():
            if _number_of(place) > fenced:
                continue
            if place.name not in places:
                # Executors of a driver that was killed may be writing there still: then it is for the next time.
                shutil.rmtree(place, ignore_errors=True)
                continue
            for sums in list(place.rglob(".*.crc")):
                sums.unlink(missing_ok=True)
            # All of them first: deleting one takes directories away that the search would go on in.
            for path in [path for ending in (ROWS, PARQUET) for path in place.rglob(f"*{ending}")]:
                if str(path.relative_to(self.files)) not in known:
                    self._delete(path)

    def _delete(self, path: Path) -> None:
        """Delete a file, and the directories that are empty then."""
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something is in it
            for directory in path.relative_to(self.files).parents[:-1]:
                (self.files / directory).rmdir()

    # --- the view -----------------------------------------------------------------------------------

    def _can_link(self) -> bool:
        trial = self._own / f".trial.{secrets.token_hex(4)}"
        try:
            os.link(self._own / "lock", trial)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        trial.unlink()
        return True

    def _show(self) -> None:
        """Bring the view up to the newest commit: what is replaced goes first, so that no row is there twice."""
        if not self.has_view:
            return
        view = self._own / "view"
        shown = int(view.read_text("ascii")) if view.exists() else None
        commits = [] if shown is None else list(self._commits_behind(shown).values())
        if shown is None or shown + len(commits) != self.state.version:
            # Nobody knows what it shows.
            view.unlink(missing_ok=True)
            gone = list(self.directory.glob("topic=*/date=*/hour=*/*.parquet"))
            added = list(self.state.files.values())
        else:
            gone = [self._link_of(file) for commit in commits for file in commit.replaced]
            added = [file for commit in commits for file in commit.added if file.path in self.state.files]
        for link in gone:
            link.unlink(missing_ok=True)
        for file in added:
            link = self._link_of(file)
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.link(self.files / file.path, link)
        links = (*gone, *map(self._link_of, added))
        for directory in {parent for link in links for parent in link.relative_to(self.directory).parents}:
            _sync(self.directory / directory)
        _replace(view, str(self.state.version).encode())

    def _link_of(self, file: ArchivedFile) -> Path:
        name = f"{file.path.partition('/')[0]}-{Path(file.path).with_suffix(PARQUET).name}"
        # As Spark writes the topic, so that its readers and others find the name in it again.
        topic = Path(file.path).parts[1].partition("=")[2]
        return self.directory / f"topic={topic}" / f"date={file.date}" / f"hour={file.hour:02}" / name


def _name(number: int) -> str:
    return f"{number:0{_NUMBER_DIGITS}}.json"


def _number_of(place: Path) -> int:
    """The commit that files were written for; 0 for what somebody else put there."""
    number = place.name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _numbers(directory: Path) -> list[int]:
    """The numbers of the commits or snapshots that are there; names of half written ones begin with a dot."""
    return sorted(int(path.stem) for path in directory.glob("[0-9]*.json"))


def _read(path: Path, kind: type[T]) -> T:
    content = path.read_bytes()
    try:
        read = msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}; {_RESTORE}") from error
    if read.format > FORMAT:
        raise ArchiveDamaged(f"{path} was written by a newer version: its format is {read.format}; use that version")
    return read


def _replace(path: Path, content: bytes) -> None:
    """Have a file say something else, at once."""
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    _sync(draft)
    draft.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

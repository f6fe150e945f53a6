"""The directory of a spill: its files, and what each crash leaves of them.

::

    spill.lock                     locked (flock) by the broker that runs here; holds its process id, for people
    topics.json                    the topics there were (`topic_memory`)
    failover_<UUIDv7>.buf.tmp      being written
    failover_<UUIDv7>.buf          complete: will be stored and then deleted, the lowest name first
    qos0_<UUIDv7>.buf[.tmp]        the same for pushes that may be lost, which are written but not synced
    failover_<12 digits>.buf[.tmp] of Queen MQ, which is given a whole name and sums at the next start (`queen`)
    recovering/, recovered/        files of a recovery in bulk (`holdfast.recovery.backlog`), which no broker looks at
    failed/failover_<UUIDv7>.buf   lines that could not be stored: {"line", "reason", "event" or "event_base64"} each,
                                   and "again": true on their way back (`requeueing`)

A `.buf` holds one line for each message (`events`). Names rise, also where the clock of the machine goes back. Anything
else in the directory is left alone.

**Crash cases.**

- *Killed while writing*: the `.buf.tmp` ends with half a line, or after a power failure with pages that never came. The
  next start cuts it behind its last good line and makes it a `.buf`. Nothing behind that line was acknowledged, because
  acknowledgements wait for the sync of all of it. Whole lines in what is cut are kept in `failed`: should the disk have
  changed them later, they are not gone.
- *Killed between sync and rename*: as above, with nothing to cut.
- *Killed between rename and the sync of the directory*: either name is there after a power failure; both are read.
- *Killed while it is stored again*: the store itself has counted the lines, in the same transaction, or the file
  `.progress` beside it has (`ports`).
- *Killed between the last line and the delete*, or before the delete is on the disk: the store says that all lines are
  stored; the file is deleted. What the store knows of a file goes after the file is gone for good.
- *A line that is damaged* goes to `failed` with the reason, and the ones behind it are stored: only it is lost. So does
  what is behind the last line break of a complete file.
- *Killed while a line goes to `failed`*: that is noted, by the line's number, before the line counts as done. A line
  that the store refused is left out of its file from then on (`setting_aside`); any other one is recognised there.
- *Disk full*: what was begun is cut off again, and the publishers concerned are refused with `disk_full`.
- *A sync fails*: what reached the disk is unknown. The publishers are refused, and nothing is written here until the
  next start, as everywhere else (decision 19).
- *The directory goes away* (its disk is taken out): as a sync that fails.
"""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from uuid import UUID

import msgspec
import structlog
import uuid_utils

from holdfast.backends.spill import queen, sums
from holdfast.backends.spill.events import BadLine
from holdfast.model.errors import DataDirectoryError
from holdfast.model.limits import MIB
from holdfast.storage.directory import lock_directory, make_directory
from holdfast.storage.durable import sync_data, sync_directory

log = structlog.get_logger("holdfast.spill")

# Where files are that are recovered in bulk (`holdfast.recovery.backlog`): no broker looks there.
RECOVERING: Final = "recovering"
FAILOVER: Final = "failover"
QOS0: Final = "qos0"
_NAME: Final = re.compile(
    r"(failover|qos0)_([0-9a-f]{8}-[0-9a-f]{4}(?:(?:-[0-9a-f]{4}){2}-[0-9a-f]{12})?)\.buf(\.tmp)?\Z"
)
LOCK: Final = "spill.lock"
_IF_USED: Final = "stop it, or give this one a directory of its own with --spill-dir"
_IF_UNUSABLE: Final = "name another with --spill-dir, or go without it with --no-spill"
# Lines that are set aside in one go and said one by one.
_FAILED_LOGGED_MAX: Final = 10
# Read at once: nearly always a whole file, so that it is stored in one step. A line may be longer.
_PIECE_BYTES: Final = 8 * MIB


# Counted at a start before anybody is served: less than a second's reading.
_COUNTED_BYTES_MAX: Final = 512 * MIB


class SpillFile(NamedTuple):
    """A file of the directory; those of one kind are stored in the order of their names."""

    kind: str
    id: UUID
    path: Path

    @property
    def is_complete(self) -> bool:
        return self.path.suffix == ".buf"


class Failed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a file in `failed`."""

    line: int
    reason: str
    event: str | None = None
    event_base64: bytes | None = None
    # It is on its way back into a file (`requeueing`).
    again: bool = False


class SpillDirectory:
    """An opened and locked directory."""

    def __init__(self, path: Path, lock_fd: int | None) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._last_id = max((file.id.int for file in listed(path)), default=0)

    @classmethod
    def open(cls, path: Path, *, if_used: str = _IF_USED, if_unusable: str = _IF_UNUSABLE) -> SpillDirectory:
        """Create or open, and lock. Raises `DataDirectoryError` that says what to do: that depends on who asks."""
        try:
            make_directory(path)
            (path / "failed").mkdir(exist_ok=True)
            sync_directory(path)
            lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise DataDirectoryError(f"cannot use {path} for the spill: {error.strerror}; {if_unusable}") from error
        try:
            lock_directory(lock_fd, path, if_used)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, lock_fd)

    def close(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @property
    def is_there(self) -> bool:
        """Whether the directory is still the one that was opened: a disk may be taken out."""
        return (self.path / LOCK).exists()

    def new_file(self, kind: str) -> SpillFile:
        """A name above all others, for a file that is yet to be made."""
        self._last_id = max(uuid_utils.uuid7().int, self._last_id + 1)
        made = UUID(int=self._last_id)
        return SpillFile(kind, made, self.path / f"{kind}_{made}.buf.tmp")

    def file_before(self, path: Path, content: bytes) -> SpillFile:
        """The name of a complete file that is stored before one of that name, and before all that came later.

        The same content has the same name, so the store recognises it if a crash leaves it in two places.
        """
        match = _NAME.match(path.name)
        assert match is not None, "it is listed"
        made = UUID(int=queen.file_id(match[2]).int - 1 - zlib.crc32(content))
        return SpillFile(match[1], made, self.path / f"{match[1]}_{made}.buf")

    def recover(self) -> list[SpillFile]:
        """Take over what Queen MQ left, complete what a crash left, and list all that is to be stored.

        Raises `OSError`.
        """
        self._adopt()
        for file in listed(self.path):
            if not file.is_complete:
                self._complete(file)
        return [file for file in listed(self.path) if file.is_complete]

    def _adopt(self) -> None:
        for file in [*listed(self.path), *failed_of_queen(self.path)]:
            ending = ".buf" if file.is_complete else ".buf.tmp"
            names = (self.path / f"{file.kind}_{UUID(int=file.id.int + more)}{ending}" for more in count())
            target = next(free for free in names if free == file.path or not free.exists())
            if queen.adopt(file, target):
                log.info("spill_adopted", file=file.path.name, now=target.name)

    def _complete(self, file: SpillFile) -> None:
        data = file.path.read_bytes()
        kept = sums.whole_bytes(data)
        cut = data[kept:]
        if cut:
            log.warning("spill_tail_cut", file=file.path.name, cut_bytes=len(cut), kept_bytes=kept)
        first = data.count(b"\n", 0, kept)
        whole = cut.split(b"\n")[:-1]
        reason = "it is behind the last good line of a file that a crash left: it was not acknowledged"
        self.note_failed(file, [BadLine(first + place, line, reason) for place, line in enumerate(whole)])
        if not kept:
            file.path.unlink()
        else:
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, kept)
                sync_data(fd)
            finally:
                os.close(fd)
            file.path.rename(completed(file).path)
        sync_directory(self.path)

    def note_failed(self, file: SpillFile, bad: list[BadLine]) -> int:
        """Keep lines that cannot be stored, durably; returns how many are new there. Raises `OSError`."""
        if not bad:
            return 0
        path = self._failed_of(file)
        noted = {each.line - 1 for each in failed_lines(path)} if path.exists() else set()
        new = [each for each in bad if each.place not in noted]
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            end = os.fstat(fd).st_size
            # A full disk or a crash may have left half a line, which is not to be continued.
            is_torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
            view = memoryview(b"\n" * is_torn + b"".join(msgspec.json.encode(noted_of(each)) + b"\n" for each in new))
            while view:
                view = view[os.write(fd, view) :]
            sync_data(fd)
        finally:
            os.close(fd)
        sync_directory(path.parent)
        for each in new[:_FAILED_LOGGED_MAX]:
            log.error("spill_line_failed", file=file.path.name, line=each.place + 1, reason=each.reason)
        if len(new) > _FAILED_LOGGED_MAX:
            log.error("spill_lines_failed", file=file.path.name, more=len(new) - _FAILED_LOGGED_MAX, where=path.name)
        return len(new)

    def noted_failed(self, file: SpillFile) -> list[Failed]:
        """The lines of a file that are in `failed`, durably: who noted them may have been killed before the sync.

        Raises `OSError`.
        """
        path = self._failed_of(file)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            sync_data(fd)
        finally:
            os.close(fd)
        sync_directory(path.parent)
        return failed_lines(path)

    def _failed_of(self, file: SpillFile) -> Path:
        return self.path / "failed" / completed(file).path.name

    def sync(self) -> None:
        """What was deleted stays deleted. Raises `OSError`."""
        sync_directory(self.path)


def noted_of(bad: BadLine) -> Failed:
    """How a line is kept in `failed`."""
    try:
        return Failed(bad.place + 1, bad.reason, event=bad.line.decode())
    except UnicodeDecodeError:
        return Failed(bad.place + 1, bad.reason, event_base64=bad.line)


def listed(path: Path) -> list[SpillFile]:
    """The files of a spill, in the order in which they are stored; all other files are somebody else's."""
    found = []
    for each in path.iterdir():
        match = _NAME.match(each.name)
        if match is not None and each.is_file() and (queen.is_whole(match[2]) or _is_of_queen(each)):
            found.append(SpillFile(match[1], queen.file_id(match[2]), each))
    return sorted(found, key=lambda file: (file.kind, file.id.int))


def _is_of_queen(path: Path) -> bool:
    return queen.is_of_queen(path) or queen.is_half_adopted(path)


def failed_of_queen(path: Path) -> list[SpillFile]:
    """Files of Queen MQ in `failed`: it puts them there as they are, to try them again a little later."""
    directory = path / "failed"
    return [file for file in listed(directory) if queen.is_of_queen(file.path)] if directory.is_dir() else []


def completed(file: SpillFile) -> SpillFile:
    return file._replace(path=file.path.with_name(f"{file.kind}_{file.id}.buf"))


def failed_lines(path: Path) -> list[Failed]:
    """What stands in a file of `failed`, as far as it is whole."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(msgspec.json.decode(line, type=Failed))
        except msgspec.MsgspecError:
            continue  # the last line of a crash
    return found


def count_failed(path: Path) -> int:
    return sum(len(failed_lines(each)) for each in failed_files(path))


def count_waiting(path: Path) -> int:
    """The lines that a broker left in a directory; none where there is no such directory. Raises `OSError`."""
    if not path.is_dir():
        return 0
    return sum(piece.count(b"\n") for file in listed(path) for piece in pieces(file))


def about_lines(found: Sequence[SpillFile]) -> int:
    """How many lines files have: exactly, unless they are so large that counting would delay a start."""
    counted_bytes = lines = left_bytes = 0
    for file in found:
        if counted_bytes > _COUNTED_BYTES_MAX:
            left_bytes += file.path.stat().st_size
            continue
        for piece in pieces(file):
            counted_bytes += len(piece)
            lines += piece.count(b"\n")
    return lines + left_bytes * lines // max(1, counted_bytes)


def failed_files(path: Path) -> list[Path]:
    directory = path / "failed"
    if not directory.is_dir():
        return []
    return sorted(each for each in directory.iterdir() if _NAME.match(each.name) and each.suffix == ".buf")


def kind_of(path: Path) -> str:
    return path.name.partition("_")[0]


def failed_line(path: Path, position: int) -> Failed | None:
    """The line of a file in `failed` that begins at a byte."""
    with path.open("rb") as file:
        file.seek(position)
        try:
            return msgspec.json.decode(file.readline(), type=Failed)
        except msgspec.MsgspecError:
            return None


def read_piece(path: Path, position: int) -> bytes:
    """Whole lines from a place on; nothing at the end. What is behind the last line break is left out."""
    with path.open("rb") as file:
        return _piece(file, position)


def _piece(file: BinaryIO, position: int) -> bytes:
    file.seek(position)
    data = file.read(_PIECE_BYTES)
    while data and b"\n" not in data:
        more = file.read(_PIECE_BYTES)
        if not more:
            return b""
        data += more
    return data[: data.rfind(b"\n") + 1]


def rest(path: Path, position: int) -> bytes:
    """Everything from a place on."""
    with path.open("rb") as file:
        file.seek(position)
        return file.read()


def pieces(file: SpillFile) -> Iterator[bytes]:
    """Everything in a file that its broker may complete, store and delete meanwhile; raises `FileNotFoundError`.

    Once it is open it stays there for whoever reads it.
    """
    try:
        opened = file.path.open("rb")
    except FileNotFoundError:
        opened = completed(file).path.open("rb")
    with opened:
        position = 0
        while data := _piece(opened, position):
            yield data
            position += len(data)


def position_of_line(path: Path, number: int) -> int:
    """Where a line begins, counted from 0; the end if there are fewer."""
    position = 0
    while number > 0:
        piece = read_piece(path, position)
        lines = piece.count(b"\n")
        if not piece:
            break
        if lines <= number:
            number -= lines
            position += len(piece)
            continue
        behind = 0
        for _ in range(number):
            behind = piece.index(b"\n", behind) + 1
        return position + behind
    return position


def lines(path: Path, first: int, count: int) -> list[bytes]:
    """Some lines as they stand in a file, as many as one piece has."""
    return read_piece(path, position_of_line(path, first)).split(b"\n", count)[:count]


def as_text(data: bytes) -> str:
    """For people: text, or base64 where it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()

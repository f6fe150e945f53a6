"""Looking at the directory of a spill, whether a broker runs over it or not. Only `requeue` changes anything."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.backends.spill import events, files
from holdfast.backends.spill.files import SpillDirectory, SpillFile
from holdfast.model.errors import DataDirectoryError
from holdfast.storage.durable import sync_directory, write_file


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file; `lines` are messages. What is behind the last line break of one that is written is left out."""

    file: str
    is_complete: bool
    lines: int
    size_bytes: int
    oldest_ms: int | None = None
    newest_ms: int | None = None
    bad: list[str] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What there is. `broker` is the process that has the directory.

    `recovering` are files that a recovery in bulk has taken over and not finished: no broker stores those.
    """

    directory: str
    broker: int | None
    files: list[FileReport]
    failed: int
    queues: dict[str, int]
    recovering: int = 0

    @property
    def lines(self) -> int:
        return sum(file.lines for file in self.files)

    @property
    def bad(self) -> int:
        return sum(len(file.bad) for file in self.files)


def owner(path: Path) -> int | None:
    """The process that runs over a directory; 0 where it does not say.

    To look takes the lock for a moment, where nobody has it; a broker that starts in that moment tries again.
    """
    try:
        fd = os.open(path / "spill.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        # One that has just taken the lock has not written its number yet: what stands there is an earlier one's.
        return int(text) if text.isdigit() and Path(f"/proc/{text}").exists() else 0
    finally:
        os.close(fd)
    return None


def examine(path: Path) -> Report:
    """Every line of every file. Raises `DataDirectoryError`."""
    if not path.is_dir():
        raise DataDirectoryError(f"there is no spill in {path}: name its directory, or the settings that do")
    queues: Counter[str] = Counter()
    reports = []
    for file in _listed(path):
        with contextlib.suppress(FileNotFoundError):  # the broker has stored and deleted it
            reports.append(_examined(file, queues))
    failed = files.count_failed(path)
    return Report(
        directory=str(path),
        broker=owner(path),
        files=reports,
        failed=failed,
        queues=dict(queues),
        recovering=len(list((path / files.RECOVERING).glob("*.buf"))),
    )


def _listed(path: Path) -> Iterable[SpillFile]:
    """Each file once: one that is completed meanwhile may be found under both of its names."""
    return {(file.kind, file.id): file for file in files.listed(path)}.values()


def _examined(file: SpillFile, queues: Counter[str]) -> FileReport:
    position = lines = 0
    bad: list[str] = []
    times: list[int] = []
    for data in files.pieces(file):
        read, faults = events.events_of(data)
        bad += [f"line {lines + each.place + 1}: {each.reason}" for each in faults]
        present = [event for event in read if event is not None]
        queues.update(event.queue for event in present)
        if present:
            times += (min(event.at for event in present), max(event.at for event in present))
        lines += len(read)
        position += len(data)
    if file.is_complete and file.path.stat().st_size > position:
        lines += 1
        bad.append(f"line {lines}: the file ends within it")
    return FileReport(
        file=file.path.name,
        is_complete=file.is_complete,
        lines=lines,
        size_bytes=position,
        oldest_ms=min(times, default=None),
        newest_ms=max(times, default=None),
        bad=bad,
    )


def exported(path: Path, queue: str | None) -> Iterator[bytes]:
    """The good lines, in the order in which they are stored, as they stand in the files."""
    for file in _listed(path):
        with contextlib.suppress(FileNotFoundError):  # as above
            for data in files.pieces(file):
                read, _ = events.events_of(data)
                for event, line in zip(read, data.split(b"\n"), strict=False):
                    if event is not None and queue in (None, event.queue):
                        yield line


def exported_failed(path: Path) -> Iterator[bytes]:
    """What stands in `failed`, with the reasons."""
    for each in files.failed_files(path):
        yield from (msgspec.json.encode(line) for line in files.failed_lines(each))


def requeue(directory: SpillDirectory) -> int:
    """Put the lines of `failed` that can be read in front of all others; how many they are. Raises `OSError`.

    They are older than what waits, and what waits of their topics must not overtake them.

    The new file is durable before the lines go from `failed`: a crash between leaves them in both, to be stored twice
    at worst, and never in neither. Of a file that is still there nobody can say whether its lines count as done.
    """
    count = 0
    for path in files.failed_files(directory.path):
        if any((place / path.name).exists() for place in (directory.path, directory.path / files.RECOVERING)):
            continue
        noted = files.failed_lines(path)
        again = [line.event.encode() for line in noted if line.event is not None and _is_good(line.event)]
        if not again:
            continue
        file = directory.file_before(path)
        write_file(file.path, b"".join(line + b"\n" for line in again))
        sync_directory(directory.path)
        left = [line for line in noted if line.event is None or not _is_good(line.event)]
        if left:
            write_file(path, b"".join(msgspec.json.encode(line) + b"\n" for line in left))
        else:
            path.unlink()
        sync_directory(path.parent)
        count += len(again)
    return count


def _is_good(line: str) -> bool:
    return not events.events_of(line.encode() + b"\n")[1]

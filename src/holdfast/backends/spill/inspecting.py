"""Looking at the directory of a spill, whether a broker runs over it or not. Nothing is changed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.backends.spill import files, queen
from holdfast.backends.spill.files import SpillFile
from holdfast.backends.spill.log_target import Progress
from holdfast.model.errors import DataDirectoryError


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
    `bad_progress` are files of a cluster's node that do not say any more how far a file is stored.
    """

    directory: str
    broker: int | None
    files: list[FileReport]
    failed: int
    queues: dict[str, int]
    recovering: int = 0
    bad_progress: list[str] = []

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
        raise DataDirectoryError(
            f"there is no spill in {path}; give its directory as the argument, or the settings with --config"
        )
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
        bad_progress=[each.name for each in sorted(path.glob("*.progress")) if not _is_progress(each)],
    )


def _is_progress(path: Path) -> bool:
    try:
        msgspec.json.decode(path.read_bytes(), type=Progress)
    except FileNotFoundError:
        return True  # all of it is stored, and the broker has deleted it
    except msgspec.MsgspecError:
        return False
    return True


def _listed(path: Path) -> Iterable[SpillFile]:
    """Each file once: one that is completed meanwhile may be found under both of its names."""
    found = [*files.failed_of_queen(path), *files.listed(path)]
    return {(file.kind, file.id, file.path.parent): file for file in found}.values()


def _examined(file: SpillFile, queues: Counter[str]) -> FileReport:
    position = lines = 0
    bad: list[str] = []
    times: list[int] = []
    for data in files.pieces(file):
        read, faults = queen.events_of(data, file)
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
                read, _ = queen.events_of(data, file)
                for event, line in zip(read, data.split(b"\n"), strict=False):
                    if event is not None and queue in (None, event.queue):
                        yield line


def exported_failed(path: Path) -> Iterator[bytes]:
    """What stands in `failed`, with the reasons."""
    for each in files.failed_files(path):
        yield from (msgspec.json.encode(line) for line in files.failed_lines(each))

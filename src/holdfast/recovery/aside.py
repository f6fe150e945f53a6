"""Lines that cannot be stored are kept in `failed/<file>`: {"line", "reason", "event" or "event_base64"} each.

They are only added, each once, by its number: a task that runs twice finds its lines there. A crash may leave half a
line, which is not continued. Tasks that set lines of one file aside at the same time wait for each other, at a lock in
`recovering/`; whoever finds a line there makes sure that it stays.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from holdfast.backends.spill import files
from holdfast.backends.spill.events import BadLine
from holdfast.backends.spill.files import Failed
from holdfast.model.limits import MIB
from holdfast.storage.durable import sync_data, sync_directory

LOCK: Final = "set-aside.lock"
# Of lines in memory: a file may be nothing but damage.
_HELD_BYTES_MAX: Final = 8 * MIB


class Aside:
    """The lines of one file that go there; durable once it is finished."""

    def __init__(self, source: Path) -> None:
        self._path = source.parents[1] / "failed" / source.name
        self._lock = source.parent / LOCK
        self._held: list[BadLine] = []
        self._held_bytes = 0
        # Of the lines that are there, as far as they were read.
        self._numbers: set[int] = set()
        self._read_bytes = 0

    @property
    def numbers(self) -> set[int]:
        """Of the lines that are there for good, counted from 1."""
        if _size_bytes(self._path) != self._read_bytes:
            self._write()
        return self._numbers

    def add(self, bad: BadLine) -> None:
        self._held.append(bad)
        self._held_bytes += len(bad.line)
        if self._held_bytes > _HELD_BYTES_MAX:
            self._write()

    def finish(self) -> None:
        if self._held:
            self._write()

    def _write(self) -> None:
        with _locked(self._lock), self._path.open("a+b") as file:
            is_new = not self._read_bytes
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    file.write(b"\n")
                    break
                self._numbers.update(_number_of(line))
            for bad in self._held:
                if bad.place + 1 not in self._numbers:
                    file.write(msgspec.json.encode(files.noted_of(bad)) + b"\n")
                    self._numbers.add(bad.place + 1)
            file.flush()
            self._read_bytes = os.fstat(file.fileno()).st_size
            sync_data(file.fileno())
            if is_new:
                sync_directory(self._path.parent)
        self._held, self._held_bytes = [], 0


class Asides:
    """Those of all files of a recovery, for a task that stores (`steps.SetAside`)."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._of_files: dict[int, Aside] = {}

    def known(self, sources: Any, lines: Any) -> Any:
        is_known = np.zeros(len(lines), bool)
        # What is asked for is looked up, however many lines of a file are known.
        order = np.argsort(sources, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(sources[order])) + 1):
            if len(places) and (numbers := self._of_file(int(sources[places[0]])).numbers):
                is_known[places] = [number in numbers for number in (lines[places] + 1).tolist()]
        return is_known

    def keep(self, source: int, bad: BadLine) -> None:
        aside = self._of_file(source)
        aside.add(bad)
        aside.finish()

    def _of_file(self, source: int) -> Aside:
        if source not in self._of_files:
            self._of_files[source] = Aside(Path(self._paths[source]))
        return self._of_files[source]


def line_numbers(path: Path) -> Iterator[int]:
    """Those of the lines, counted from 1, that a file of `failed` has; as far as they are whole."""
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                yield from _number_of(line)


def _number_of(line: bytes) -> tuple[int, ...]:
    """None of what a crash left."""
    try:
        return (msgspec.json.decode(line, type=Failed).line,)
    except msgspec.MsgspecError:
        return ()


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""Lines that cannot be stored are kept in `failed/<file>`: {"line", "reason", "event" or "event_base64"} each.

The file is written as a whole, beside its name, and renamed: a task that runs twice writes the same again, and a line
is there once. Tasks that set lines of one file aside at the same time wait for each other, at a lock in `recovering/`.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

import msgspec

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
        self._part: IO[bytes] | None = None

    def add(self, bad: BadLine) -> None:
        self._held.append(bad)
        self._held_bytes += len(bad.line)
        if self._held_bytes > _HELD_BYTES_MAX:
            self._write()

    def _write(self) -> None:
        if self._part is None:
            self._part = self._path.with_name(f"{self._path.name}.{uuid4().hex}.part").open("w+b")
        self._part.writelines(msgspec.json.encode(files.noted_of(each)) + b"\n" for each in self._held)
        self._held, self._held_bytes = [], 0

    def finish(self) -> None:
        if not self._held and self._part is None:
            return
        self._write()
        assert self._part is not None
        with self._part as part, _locked(self._lock):
            part.flush()
            known = set(line_numbers(Path(part.name)))
            part.writelines(line for number, line in _noted(self._path) if number not in known)
            part.flush()
            sync_data(part.fileno())
            Path(part.name).replace(self._path)
            sync_directory(self._path.parent)


def keep(paths: Sequence[str], source: int, bad: BadLine) -> None:
    """Set one line aside, of one of these files."""
    aside = Aside(Path(paths[source]))
    aside.add(bad)
    aside.finish()


def line_numbers(path: Path) -> Iterator[int]:
    """Those of the lines, counted from 1, that a file of `failed` has."""
    return (number for number, _ in _noted(path))


def _noted(path: Path) -> Iterator[tuple[int, bytes]]:
    """As far as they are whole: the last may be a crash's."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=Failed).line, line
            except msgspec.MsgspecError:
                continue


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

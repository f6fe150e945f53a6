"""What a disk would hold after a power loss: only what was synced, and whatever else it likes.

A `ShadowDisk` stands between this process and one directory. It keeps the bytes and the names that were synced, and
the changes of names since, in their order. `image` then makes a directory such as a machine may find after its
power came back: synced bytes are there; of the others some sectors are, some are zeros, some are other
bytes; the length is anything between; of the changes of names that were not synced some are there, the first ones.

With `fail_at` the power goes in the middle of something: the call of that number does not happen any more, and
`testkit.crashes.Crashed` is raised in its place.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from testkit.crashes import CrashPoint

SECTOR_BYTES = 64  # smaller than a real one, so that small tests have many of them
CACHES = (".index", ".tmp")
_WATCHED = (
    *("fsync", "fdatasync", "unlink", "rename", "replace", "open"),
    *("ftruncate", "pwrite", "pwritev", "sendfile"),
)


class ShadowDisk:
    """Watches one directory of files. Files have numbers, which they keep when they are renamed."""

    def __init__(self, directory: Path) -> None:
        self._files = 0
        self._power = CrashPoint()
        self._patches = [mock.patch.object(os, name, self._watched(getattr(os, name), name)) for name in _WATCHED]
        self.move_to(directory)
        for patch in self._patches:
            patch.start()

    def close(self) -> None:
        for patch in self._patches:
            patch.stop()

    def move_to(self, directory: Path) -> None:
        """Watch another directory, of which everything is on the disk now."""
        self.directory = directory
        self._names = {path.name: self._new_file() for path in directory.iterdir()}
        self._synced_bytes = {file: (directory / name).read_bytes() for name, file in self._names.items()}
        # What files held that have no name any more.
        self._last_bytes: dict[int, bytes] = {}
        self._synced_names = dict(self._names)
        self._changes: list[dict[str, int | None]] = []

    @contextlib.contextmanager
    def fail_at(self, calls: int | None) -> Iterator[None]:
        """Lose power before the call of that number; `None` is never."""
        self._power = CrashPoint(calls)
        try:
            yield
        finally:
            self._power = CrashPoint()

    def sync(self, fd: int) -> None:
        """Take note that what this descriptor stands for is on the disk."""
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path == self.directory:
            self._synced_names, self._changes = dict(self._names), []
        elif path.parent == self.directory and path.name in self._names:
            self._synced_bytes[self._names[path.name]] = path.read_bytes()

    def image(self, target: Path, dice: random.Random) -> None:
        """Write to `target` what a power loss now might leave."""
        target.mkdir()
        names: dict[str, int | None] = dict(self._synced_names)
        # Changes of a directory are journalled in their order: if one did not make it, none behind it did.
        for change in self._changes[: dice.randrange(len(self._changes) + 1)]:
            names |= change
        name_now = {file: name for name, file in self._names.items()}
        for name, file in names.items():
            if file is None:
                continue
            current = (
                (self.directory / name_now[file]).read_bytes() if file in name_now else self._last_bytes.get(file, b"")
            )
            if name.endswith(CACHES):
                self._cache_image(target / name, current, dice)
            else:
                (target / name).write_bytes(torn(self._synced_bytes.get(file, b""), current, dice))

    def _cache_image(self, path: Path, content: bytes, dice: random.Random) -> None:
        kept = dice.choice(["whole", "whole", "absent", "empty", "short", "zeros"])
        if kept == "whole":
            path.write_bytes(content)
        elif kept == "empty":
            path.write_bytes(b"")
        elif kept == "short":
            path.write_bytes(content[: dice.randrange(len(content) + 1)])
        elif kept == "zeros":
            path.write_bytes(bytes(len(content)))

    # --- watching -----------------------------------------------------------------------------------

    def _new_file(self) -> int:
        self._files += 1
        return self._files

    def _watched(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        if name in ("fsync", "fdatasync"):
            real = self.sync
        note: dict[str, Callable[..., Any]] = {
            "unlink": self._unlinked,
            "rename": self._renamed,
            "replace": self._renamed,
            "open": self._opened,
        }

        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "open" or args[1] & os.O_CREAT:
                self._power.pass_by()
            if name in note:
                return note[name](real, *args, **kwargs)
            return real(*args, **kwargs)

        return call

    def _unlinked(self, real: Callable[..., Any], path: Path, **kwargs: Any) -> None:
        path = Path(path)
        content = path.read_bytes() if path.parent == self.directory and path.exists() else b""
        real(path, **kwargs)
        file = self._names.pop(path.name, None) if path.parent == self.directory else None
        if file is not None:
            self._last_bytes[file] = content
            self._changes.append({path.name: None})

    def _renamed(self, real: Callable[..., Any], source: Path, target: Path) -> None:
        source, target = Path(source), Path(target)
        if target.parent != self.directory:
            real(source, target)
            return
        replaced = self._names.get(target.name)
        if replaced is not None:
            self._last_bytes[replaced] = target.read_bytes()
        real(source, target)
        file = self._names.pop(source.name, None) or self._new_file()
        self._names[target.name] = file
        self._changes.append({source.name: None, target.name: file})

    def _opened(self, real: Callable[..., Any], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        fd: int = real(path, flags, *args, **kwargs)
        path = Path(path)
        if flags & os.O_CREAT and path.parent == self.directory and path.name not in self._names:
            self._names[path.name] = self._new_file()
            self._changes.append({path.name: self._names[path.name]})
        return fd


def torn(synced: bytes, current: bytes, dice: random.Random) -> bytes:
    """A file after a power loss: everything that was synced, and some of what was written behind it."""
    if not current.startswith(synced):
        # It was cut back after the sync, and that may not have reached the disk.
        return synced if dice.random() < 0.5 else current
    length = dice.choice([len(synced), len(current), dice.randint(len(synced), len(current))])
    mode = dice.choice(["kept", "zeros", "sectors", "sectors", "garbage"])
    found = bytearray(current[:length])
    for start in range(0, length, SECTOR_BYTES):
        begin, end = max(start, len(synced)), min(start + SECTOR_BYTES, length)
        if begin >= end or mode == "kept" or (mode in ("sectors", "garbage") and dice.random() < 0.5):
            continue
        found[begin:end] = dice.randbytes(end - begin) if mode == "garbage" else bytes(end - begin)
    return bytes(found)


def copy_of(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target)
    return target
